"""Tell the forms of container apart that were ever written, and bring each header into the form of format 1.

One strict check serves them all (:mod:`rowpack_loaders.container_header`); a form only says what its keys are called:

    format_1     magic BUNDLE\\1\\0, five keys, sections name → {"offset", "length"}
    august_2026  magic BUNDLE\\1\\0, facts of the model beside "family", sections name → {"offset", "size"}
    trtfb        magic TRTFB\\0\\1\\0, otherwise as august_2026

Nothing else differs: the length of the header, where sections are counted from, and the limits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from rowpack_loaders.errors import RowpackError

CONTAINER_FORMAT = 1
TASK = "text_generation"
UNKNOWN = "unknown"
"""What stands where an older container does not say: its headers name neither a task nor a backend."""

MAGIC = bytes.fromhex("42 55 4E 44 4C 45 01 00")
TRTFB_MAGIC = bytes.fromhex("54 52 54 46 42 00 01 00")

# Facts by which a header of August 2026 is known; every writer of that form began with them.
_AUGUST_FACTS = ("model_id", "model_type")


@dataclass(frozen=True)
class ContainerForm:
    """One form of container: its name, its magic, and what a section's length is called in its header."""

    name: str
    magic: bytes
    length_key: str

    @property
    def names_task_and_backend(self) -> bool:
        """Whether the header has exactly the five keys of format 1."""
        return self.length_key == "length"


FORMAT_1 = ContainerForm("format_1", MAGIC, "length")
AUGUST_2026 = ContainerForm("august_2026", MAGIC, "size")
TRTFB = ContainerForm("trtfb", TRTFB_MAGIC, "size")


def check_magic(magic: bytes, where: str) -> None:
    """Refuse a file that starts as no container does."""
    if magic not in (MAGIC, TRTFB_MAGIC):
        raise RowpackError(
            "container_magic_unknown",
            "The file is not a bundle",
            where=where,
            found=magic.hex(" "),
            expected=MAGIC.hex(" "),
        )


def identify_form(magic: bytes, header: dict[str, object]) -> ContainerForm:
    """Return the form of a container with this magic and parsed header; a strange header counts as format 1."""
    if magic == TRTFB_MAGIC:
        return TRTFB
    if "format" not in header and any(fact in header for fact in _AUGUST_FACTS):
        return AUGUST_2026
    return FORMAT_1


def as_format_1(header: dict[str, object], form: ContainerForm) -> dict[str, object]:
    """Return ``header`` with the keys of format 1, its values unchecked.

    What a form does not have reads :data:`UNKNOWN`; what is missing although the form has it stays missing.
    """
    if form.names_task_and_backend:
        return header
    renamed: dict[str, object] = {"format": CONTAINER_FORMAT, "task": UNKNOWN, "backend": UNKNOWN}
    if "family" in header:
        renamed["family"] = header["family"]
    if "sections" in header:
        sections = header["sections"]
        renamed["sections"] = (
            {name: _renamed_entry(entry, form) for name, entry in sections.items()}
            if isinstance(sections, dict)
            else sections
        )
    return renamed


def facts_of(header: dict[str, object], form: ContainerForm) -> dict[str, object]:
    """Return what an older header says beside its family and sections; nothing for format 1."""
    if form.names_task_and_backend:
        return {}
    return {key: value for key, value in header.items() if key not in ("family", "sections")}


def _renamed_entry(entry: object, form: ContainerForm) -> object:
    if not isinstance(entry, dict) or "length" in entry:
        return entry  # refused by the check, as it stands
    return {"length" if key == form.length_key else key: value for key, value in entry.items()}
