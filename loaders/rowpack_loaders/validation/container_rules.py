"""Rules about the file as a container: what every reader demands, and what this project's writer promises.

Readers accept more than the writer writes, because older containers are to be read too; the validator holds a
bundle to the writer's rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from rowpack_loaders.container import HEADER_LIMIT_BYTES, PREAMBLE_BYTES, Container
from rowpack_loaders.container_forms import FORMAT_1
from rowpack_loaders.errors import Problem
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.section_names import section_order, unportable_name_reason
from rowpack_loaders.validation.subject import FIRST_READ_BYTES, Finding, Rule, Subject

ALIGNMENT_BYTES = 4096
WRITTEN_HEADER_LIMIT_BYTES = 16 * 2**20
LARGEST_GAP_BYTES = 16 * 2**20


def container_opens(subject: Subject) -> Iterator[Finding]:
    """Open the container; every reader rule about magic, header and section table is checked there."""
    limit = FIRST_READ_BYTES - PREAMBLE_BYTES if subject.header_only else HEADER_LIMIT_BYTES
    container = Container.open(subject.path, header_limit_bytes=limit)
    if container.form is not FORMAT_1:
        container.close()
        yield Problem(
            "container_form_superseded",
            "The file is a container of an older form, which readers read and nobody writes any more",
            where="byte 0",
            found=container.form.name,
            expected=FORMAT_1.name,
            remedy="Convert it with rowpack migrate OLD -o NEW",
        )
        return
    subject.open_container = container


def header_is_of_written_size(subject: Subject) -> Iterator[Finding]:
    """Readers take 100 MiB of header, writers write at most 16."""
    length = len(subject.container.header_bytes)
    if length > WRITTEN_HEADER_LIMIT_BYTES:
        yield Problem(
            "header_longer_than_written",
            "The header is longer than writers may make it",
            where="byte 8",
            found=f"{length} bytes",
            expected=f"at most {WRITTEN_HEADER_LIMIT_BYTES} bytes",
        )


def header_is_padded_with_spaces(subject: Subject) -> Iterator[Finding]:
    """The header text starts with its object and ends in nothing but spaces."""
    text = subject.container.header_bytes.rstrip(b" ")
    if not (text.startswith(b"{") and text.endswith(b"}")):
        yield Problem(
            "header_padding_invalid",
            "The header is padded with something else than spaces behind it",
            where=f"byte {PREAMBLE_BYTES}",
            found=f"{text[:8]!r} … {text[-8:]!r}",
            expected="an object, then spaces",
        )


def places_are_aligned(subject: Subject) -> Iterator[Finding]:
    """Payload and sections start on multiples of 4096, so that they can be mapped."""
    starts = {"the payload": subject.container.payload_start}
    starts |= {repr(name): place.offset_bytes for name, place in subject.container.sections.items()}
    for name, offset in starts.items():
        if offset % ALIGNMENT_BYTES:
            yield Problem(
                "section_not_aligned",
                f"The start of {name} is not on a multiple of {ALIGNMENT_BYTES} bytes",
                where=f"byte {offset}",
                found=f"{offset % ALIGNMENT_BYTES} bytes behind a multiple",
                expected=f"a multiple of {ALIGNMENT_BYTES}",
            )


def names_are_portable(subject: Subject) -> Iterator[Finding]:
    """Section names open on every file system when unpacked."""
    for name in subject.container.sections:
        reason = unportable_name_reason(name)
        if reason is not None:
            yield Problem(
                "section_name_not_portable",
                f"A section name is not fit for every file system: {reason}",
                where="header#/sections",
                found=repr(name),
                expected="[a-z0-9._/-]{1,128}, at most 3 levels, no device names",
            )


def sections_are_in_order(subject: Subject) -> Iterator[Finding]:
    """Sections stand in the fixed order, in the file and in the header."""
    names = list(subject.container.sections)
    # Sorting keeps the header's order where sections without bytes share a place.
    in_file = sorted(names, key=lambda name: subject.container.sections[name].offset_bytes)
    wanted = sorted(names, key=section_order)
    for place, order in (("the file", in_file), ("the header", names)):
        if order != wanted:
            yield Problem(
                "sections_out_of_order",
                f"The sections are not in the fixed order in {place}",
                where="header#/sections",
                found=", ".join(order)[:400],
                expected=", ".join(wanted)[:400],
            )


def manifest_is_within_first_mebibyte(subject: Subject) -> Iterator[Finding]:
    """The first MiB decides whether a bundle can be used."""
    place = subject.section(MANIFEST_SECTION)
    if place is not None and place.end_bytes > FIRST_READ_BYTES:
        yield Problem(
            "manifest_beyond_first_mebibyte",
            "The manifest ends after the first MiB",
            where=f"byte {place.offset_bytes}",
            found=f"ends at byte {place.end_bytes}",
            expected=f"at most {FIRST_READ_BYTES}",
        )


def gaps_are_zero(subject: Subject) -> Iterator[Finding]:
    """Bytes between sections belong to nothing and are zero, so that no digest need cover them."""
    end = subject.container.payload_start
    places = sorted(subject.container.sections.values(), key=lambda place: place.offset_bytes)
    for place in places:
        if place.offset_bytes - end > LARGEST_GAP_BYTES:
            yield Problem(
                "gap_too_large",
                "Sections stand so far apart that the bytes between them are not looked at",
                where=f"byte {end}",
                found=f"{place.offset_bytes - end} bytes",
                expected=f"at most {LARGEST_GAP_BYTES} bytes",
            )
        elif place.offset_bytes > end:
            gap = subject.container.read_at(end, place.offset_bytes - end)
            used = gap.lstrip(b"\0")
            if used:
                yield Problem(
                    "gap_not_zero",
                    "Bytes that belong to no section are not zero",
                    where=f"byte {place.offset_bytes - len(used)}",
                    found=used[:16].hex(" "),
                    expected="zeros",
                )
        end = max(end, place.end_bytes)


def end_is_accounted_for(subject: Subject) -> Iterator[Finding]:
    """Behind the last section stands a trailer right away, or nothing."""
    container = subject.container
    trailer = container.trailer_range()
    start = container.file_size if trailer is None else trailer.offset_bytes
    if start > container.sections_end:
        yield Problem(
            "trailing_bytes_undeclared",
            "Bytes behind the last section belong to no section and to no trailer",
            where=f"byte {container.sections_end}",
            found=f"{start - container.sections_end} bytes",
            expected="a trailer, or the end of the file",
        )


def file_is_unchanged(subject: Subject) -> Iterator[Finding]:
    """What was checked is still what the file holds."""
    subject.container.check_unchanged()
    yield from ()


OPENING_RULES: tuple[Rule, ...] = (container_opens,)
RULES: tuple[Rule, ...] = (
    header_is_of_written_size,
    header_is_padded_with_spaces,
    places_are_aligned,
    names_are_portable,
    sections_are_in_order,
    manifest_is_within_first_mebibyte,
)
PADDING_RULES: tuple[Rule, ...] = (gaps_are_zero, end_is_accounted_for)
CLOSING_RULES: tuple[Rule, ...] = (file_is_unchanged,)
