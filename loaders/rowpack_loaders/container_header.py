"""Check the parsed header of a container against the rules every loader in the field applies.

The header of format 1 has exactly five keys and each section entry exactly two: loaders that predate the manifest
refuse a sixth or a third, so a file that has one is refused here as well. Older forms are renamed first
(:mod:`rowpack_loaders.container_forms`) and go through the same check. All problems are found in one pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from rowpack_loaders.container_forms import CONTAINER_FORMAT, FORMAT_1, TASK, ContainerForm, as_format_1, facts_of
from rowpack_loaders.errors import Problem, RowpackError
from rowpack_loaders.section_names import case_twins, unsafe_name_reason
from rowpack_loaders.strict_json import LARGEST_INTEGER, is_json_integer, json_pointer, json_type_name

HEADER_KEYS = ("format", "family", "task", "backend", "sections")
SECTION_KEYS = ("offset", "length")

# Enough to see what is wrong; a hostile header could name a million.
MOST_PROBLEMS = 50

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
    """The five facts of a checked header; ``sections`` is in the header's order, with absolute offsets.

    ``form`` says which form of container it is; older ones leave ``task`` and ``backend`` unknown and say other
    things instead, which are in ``facts`` as they stand.
    """

    format: int
    family: str
    task: str
    backend: str
    sections: dict[str, SectionRange]
    form: ContainerForm = FORMAT_1
    facts: Mapping[str, object] = field(default_factory=dict)


def check_header(
    parsed: dict[str, object], *, payload_start: int, file_size: int, where: str, form: ContainerForm = FORMAT_1
) -> Header:
    """Return the header in ``parsed``, or raise :class:`RowpackError` with every rule that it breaks.

    The error carries the code of the first problem and lists all of them.
    """
    check = _HeaderCheck(payload_start, file_size, where, form)
    header = check.header(as_format_1(parsed, form), facts_of(parsed, form))
    if header is None or check.problems:
        first = check.problems[0]
        raise RowpackError(
            first.code,
            first.message,
            where=first.where,
            found=first.found,
            expected=first.expected,
            remedy=first.remedy,
            problems=check.problems,
        )
    return header


class _HeaderCheck:
    """Collect the problems of one header."""

    def __init__(self, payload_start: int, file_size: int, where: str, form: ContainerForm) -> None:
        self.payload_start = payload_start
        self.file_size = file_size
        self.where = where
        self.form = form
        self.problems: list[Problem] = []

    def header(self, parsed: dict[str, object], facts: Mapping[str, object]) -> Header | None:
        """Return the header, or None when a key is missing."""
        if not self._has_keys(parsed, HEADER_KEYS, self.where):
            return None
        if not is_json_integer(parsed["format"]) or parsed["format"] != CONTAINER_FORMAT:
            self._report(
                Problem(
                    "header_format_unsupported",
                    "The container has another format than this reader knows",
                    where=f"{self.where}/format",
                    found=repr(parsed["format"])[:64],
                    expected=str(CONTAINER_FORMAT),
                    remedy="Use a newer version of this program",
                )
            )
        family = self._identifier(parsed, "family")
        task = self._identifier(parsed, "task")
        backend = self._identifier(parsed, "backend")
        if task not in ("", TASK) and self.form.names_task_and_backend:
            self._report(
                Problem(
                    "header_task_unsupported",
                    "The bundle is for another task",
                    where=f"{self.where}/task",
                    found=task[:64],
                    expected=TASK,
                )
            )
        sections = self._sections(parsed["sections"])
        return Header(CONTAINER_FORMAT, family, task, backend, sections, self.form, facts)

    def _report(self, problem: Problem) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)

    def _has_keys(self, entry: dict[str, object], wanted: tuple[str, ...], where: str) -> bool:
        missing = [key for key in wanted if key not in entry]
        if missing:
            self._report(
                Problem(
                    "header_key_missing",
                    "The header lacks a key",
                    where=where,
                    found=_names(entry) or "no keys",
                    expected=", ".join(wanted),
                )
            )
        unknown = [key for key in entry if key not in wanted]
        if unknown:
            self._report(
                Problem(
                    "header_key_unknown",
                    "The header has a key that format 1 does not have",
                    where=where,
                    found=_names(unknown),
                    expected=f"only {', '.join(wanted)}",
                )
            )
        return not missing

    def _identifier(self, parsed: dict[str, object], key: str) -> str:
        value = parsed[key]
        if isinstance(value, str) and _IDENTIFIER.fullmatch(value) is not None:
            return value
        self._report(
            Problem(
                "header_identifier_invalid",
                f"The header's {key} is not an identifier",
                where=f"{self.where}/{key}",
                found=repr(value)[:64] if isinstance(value, str) else json_type_name(value),
                expected="[a-z][a-z0-9_]*",
            )
        )
        return ""

    def _sections(self, value: object) -> dict[str, SectionRange]:
        where = f"{self.where}/sections"
        sections: dict[str, SectionRange] = {}
        if not isinstance(value, dict):
            self._report(
                Problem(
                    "header_sections_invalid",
                    "The header's sections are not an object",
                    where=where,
                    found=json_type_name(value),
                    expected="an object",
                )
            )
            return sections
        for name, entry in value.items():
            reason = unsafe_name_reason(name)
            if reason is not None:
                self._report(
                    Problem(
                        "section_name_unsafe",
                        f"A section name is not acceptable: {reason}",
                        where=where,
                        found=repr(name[:64]),
                        expected="a relative name of printable characters",
                    )
                )
            section = self._section(entry, where + json_pointer(name[:64]))
            if section is not None:
                sections[name] = section
        self._refuse_twins(value, where)
        self._refuse_overlap(sections, where)
        return sections

    def _section(self, entry: object, where: str) -> SectionRange | None:
        if not isinstance(entry, dict):
            self._report(
                Problem(
                    "section_entry_invalid",
                    "A section entry is not an object",
                    where=where,
                    found=json_type_name(entry),
                    expected='{"offset": integer, "length": integer}',
                )
            )
            return None
        if not self._has_keys(entry, SECTION_KEYS, where):
            return None
        offset = self._section_number(entry["offset"], f"{where}/offset")
        length = self._section_number(entry["length"], f"{where}/length")
        if offset is None or length is None:
            return None
        available = self.file_size - self.payload_start
        if offset > available or length > available - offset:
            self._report(
                Problem(
                    "section_beyond_file",
                    "A section ends after the end of the file",
                    where=where,
                    found=f"bytes {offset} to {offset + length} of the payload",
                    expected=f"inside its {available} bytes",
                    remedy="Copy or download the file again",
                )
            )
            return None
        return SectionRange(self.payload_start + offset, length)

    def _section_number(self, value: object, where: str) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_INTEGER:
            return value
        self._report(
            Problem(
                "section_number_invalid",
                "A section's offset or length is not a non-negative integer",
                where=where,
                found=str(value)[:64] if isinstance(value, int | float) else json_type_name(value),
                expected="an integer from 0",
            )
        )
        return None

    def _refuse_twins(self, names: Iterable[str], where: str) -> None:
        twins = case_twins(names)
        if twins is not None:
            self._report(
                Problem(
                    "section_names_differ_by_case",
                    "Two section names differ only in case",
                    where=where,
                    found=f"{twins[0][:64]!r} and {twins[1][:64]!r}",
                    expected="names that stay apart on every file system",
                )
            )

    def _refuse_overlap(self, sections: dict[str, SectionRange], where: str) -> None:
        filled = sorted(
            ((section, name) for name, section in sections.items() if section.length_bytes),
            key=lambda item: (item[0].offset_bytes, item[1]),
        )
        for (before, before_name), (after, after_name) in pairwise(filled):
            if after.offset_bytes < before.end_bytes:
                overlap = f"{before_name!r} to {before.end_bytes}, {after_name!r} from {after.offset_bytes}"
                self._report(
                    Problem(
                        "section_overlap",
                        "Two sections share bytes",
                        where=where,
                        found=overlap,
                        expected="sections apart from each other",
                    )
                )


def _names(keys: Iterable[str]) -> str:
    return ", ".join(repr(key[:64]) for key in list(keys)[:10])
