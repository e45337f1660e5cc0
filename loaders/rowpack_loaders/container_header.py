"""Check the parsed header of a format-1 container against the rules every loader in the field applies.

The header has exactly five keys and each section entry exactly two: loaders that predate the manifest refuse
a sixth or a third, so a file that has one is refused here as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.section_names import case_twins, unsafe_name_reason
from rowpack_loaders.strict_json import LARGEST_INTEGER, is_json_integer, json_pointer, json_type_name

CONTAINER_FORMAT = 1
TASK = "text_generation"
HEADER_KEYS = ("format", "family", "task", "backend", "sections")
SECTION_KEYS = ("offset", "length")

_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]{0,127}")


@dataclass(frozen=True)
class SectionRange:
    """Absolute position of a section in the file."""

    offset_bytes: int
    length_bytes: int

    @property
    def end_bytes(self) -> int:
        """The offset of the first byte after the section."""
        return self.offset_bytes + self.length_bytes


@dataclass(frozen=True)
class Header:
    """The five facts of a checked header; ``sections`` is in the header's order, with absolute offsets."""

    format: int
    family: str
    task: str
    backend: str
    sections: dict[str, SectionRange]


def check_header(parsed: dict[str, object], *, payload_start: int, file_size: int, where: str) -> Header:
    """Return the header in ``parsed``, or raise :class:`RowpackError` for the first rule that it breaks."""
    _check_keys(parsed, HEADER_KEYS, where)
    if not is_json_integer(parsed["format"]) or parsed["format"] != CONTAINER_FORMAT:
        raise RowpackError(
            "header_format_unsupported",
            "The container has another format than this reader knows",
            where=f"{where}/format",
            found=repr(parsed["format"])[:64],
            expected=str(CONTAINER_FORMAT),
            remedy="Use a newer version of this program",
        )
    family = _identifier(parsed, "family", where)
    task = _identifier(parsed, "task", where)
    backend = _identifier(parsed, "backend", where)
    if task != TASK:
        raise RowpackError(
            "header_task_unsupported",
            "The bundle is for another task",
            where=f"{where}/task",
            found=task,
            expected=TASK,
        )
    sections = _sections(parsed["sections"], payload_start, file_size, f"{where}/sections")
    return Header(CONTAINER_FORMAT, family, task, backend, sections)


def _check_keys(entry: dict[str, object], wanted: tuple[str, ...], where: str) -> None:
    missing = [key for key in wanted if key not in entry]
    if missing:
        raise RowpackError(
            "header_key_missing",
            "The header lacks a key",
            where=where,
            found=", ".join(key[:64] for key in list(entry)[:10]) or "no keys",
            expected=", ".join(wanted),
        )
    unknown = [key for key in entry if key not in wanted]
    if unknown:
        raise RowpackError(
            "header_key_unknown",
            "The header has a key that format 1 does not have",
            where=where,
            found=", ".join(repr(key[:64]) for key in unknown[:10]),
            expected=f"only {', '.join(wanted)}",
        )


def _identifier(parsed: dict[str, object], key: str, where: str) -> str:
    value = parsed[key]
    if not isinstance(value, str) or _IDENTIFIER.fullmatch(value) is None:
        raise RowpackError(
            "header_identifier_invalid",
            f"The header's {key} is not an identifier",
            where=f"{where}/{key}",
            found=repr(value)[:64] if isinstance(value, str) else json_type_name(value),
            expected="[a-z][a-z0-9_]*",
        )
    return value


def _sections(value: object, payload_start: int, file_size: int, where: str) -> dict[str, SectionRange]:
    if not isinstance(value, dict):
        raise RowpackError(
            "header_sections_invalid",
            "The header's sections are not an object",
            where=where,
            found=json_type_name(value),
            expected="an object",
        )
    sections: dict[str, SectionRange] = {}
    for name, entry in value.items():
        reason = unsafe_name_reason(name)
        if reason is not None:
            raise RowpackError(
                "section_name_unsafe",
                f"A section name is not acceptable: {reason}",
                where=where,
                found=repr(name[:64]),
                expected="a relative name of printable characters",
            )
        sections[name] = _section(entry, payload_start, file_size, where + json_pointer(name[:64]))
    twins = case_twins(sections)
    if twins is not None:
        raise RowpackError(
            "section_names_differ_by_case",
            "Two section names differ only in case",
            where=where,
            found=f"{twins[0]!r} and {twins[1]!r}",
            expected="names that stay apart on every file system",
        )
    _refuse_overlap(sections, where)
    return sections


def _section(entry: object, payload_start: int, file_size: int, where: str) -> SectionRange:
    if not isinstance(entry, dict):
        raise RowpackError(
            "section_entry_invalid",
            "A section entry is not an object",
            where=where,
            found=json_type_name(entry),
            expected='{"offset": integer, "length": integer}',
        )
    _check_keys(entry, SECTION_KEYS, where)
    offset = _section_number(entry["offset"], f"{where}/offset")
    length = _section_number(entry["length"], f"{where}/length")
    available = file_size - payload_start
    if offset > available or length > available - offset:
        raise RowpackError(
            "section_beyond_file",
            "A section ends after the end of the file",
            where=where,
            found=f"bytes {offset} to {offset + length} of the payload",
            expected=f"inside its {available} bytes",
            remedy="Copy or download the file again",
        )
    return SectionRange(payload_start + offset, length)


def _section_number(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_INTEGER:
        raise RowpackError(
            "section_number_invalid",
            "A section's offset or length is not a non-negative integer",
            where=where,
            found=str(value)[:64] if isinstance(value, int | float) else json_type_name(value),
            expected="an integer from 0",
        )
    return value


def _refuse_overlap(sections: dict[str, SectionRange], where: str) -> None:
    filled = sorted(
        ((section, name) for name, section in sections.items() if section.length_bytes),
        key=lambda item: (item[0].offset_bytes, item[1]),
    )
    for (before, before_name), (after, after_name) in pairwise(filled):
        if after.offset_bytes < before.end_bytes:
            raise RowpackError(
                "section_overlap",
                "Two sections share bytes",
                where=where,
                found=f"{after_name!r} at {after.offset_bytes}, {before_name!r} to {before.end_bytes}",
                expected="sections apart from each other",
            )
