"""The container by its byte rules, made by hand, and every way in which a file can fail them."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from synthetic_bundles import container_bytes, header_of

from rowpack_loaders.container import HEADER_LIMIT_BYTES, Container
from rowpack_loaders.errors import RowpackError

MAGIC = b"BUNDLE\1\0"
SECTION = {"offset": 0, "length": 5}


def code_of(path: Path) -> str:
    """Return the code with which opening ``path`` fails."""
    with pytest.raises(RowpackError) as caught:
        Container.open(path)
    return caught.value.code


def write(path: Path, data: bytes) -> Path:
    """Write a file and return its path."""
    path.write_bytes(data)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.bundle"


def test_a_container_written_byte_by_byte_is_read(path: Path) -> None:
    header = (
        b'{"format":1,"family":"rwkv","task":"text_generation","backend":"ort",'
        b'"sections":{"a":{"offset":2,"length":5},"b/c":{"offset":0,"length":1}}}  '
    )
    write(path, MAGIC + struct.pack("<Q", len(header)) + header + b"b\0hello" + b"anything behind")
    with Container.open(path) as container:
        assert (container.family, container.backend, container.header.task) == ("rwkv", "ort", "text_generation")
        assert container.payload_start == 16 + len(header)
        assert container.file_size == path.stat().st_size
        assert list(container.sections) == ["a", "b/c"]
        assert container.sections["a"].offset_bytes == 16 + len(header) + 2
        assert container.read_section("a") == b"hello"
        assert bytes(container.section_view("a")) == b"hello"
        assert bytes(container.section_mapping()["b/c"]) == b"b"
        assert container.trailer() is None


def test_views_are_read_only_share_one_mapping_and_outlive_the_container(path: Path) -> None:
    write(path, container_bytes(header_of({"a": SECTION, "b": {"offset": 5, "length": 5}}), b"helloworld"))
    container = Container.open(path)
    first, second = container.section_view("a"), container.section_view("b")
    assert first.readonly and first.obj is second.obj
    container.close()
    container.close()
    assert bytes(first) + bytes(second) == b"helloworld"
    with pytest.raises(RowpackError, match="container_closed"):
        container.read_section("a")
    with pytest.raises(RowpackError, match="container_closed"):
        container.section_view("a")


def test_empty_sections_and_symbolic_links_are_fine(path: Path, tmp_path: Path) -> None:
    write(path, container_bytes(header_of({"a": {"offset": 0, "length": 0}})))
    link = tmp_path / "link"
    link.symlink_to(path)
    with Container.open(link) as container:
        assert container.read_section("a") == b""
        assert container.section_view("a").nbytes == 0


def test_a_section_is_refused_unread_when_it_is_too_large_or_absent(path: Path) -> None:
    write(path, container_bytes(header_of({"a": SECTION}), b"hello"))
    with Container.open(path) as container:
        assert container.read_section("a", limit_bytes=5) == b"hello"
        with pytest.raises(RowpackError, match="section_too_large"):
            container.read_section("a", limit_bytes=4)
        with pytest.raises(RowpackError, match="section_missing"):
            container.read_section("b")


def test_only_regular_files_are_opened_and_nothing_is_waited_for(tmp_path: Path) -> None:
    assert code_of(tmp_path) == "container_not_a_regular_file"
    os.mkfifo(tmp_path / "fifo")
    assert code_of(tmp_path / "fifo") == "container_not_a_regular_file"
    assert code_of(Path("/dev/null")) == "container_not_a_regular_file"
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind(str(tmp_path / "s"))
        assert code_of(tmp_path / "s") == "container_not_a_regular_file"
    assert code_of(tmp_path / "missing") == "container_not_found"
    assert code_of(tmp_path / "missing" / "deeper") == "container_not_found"
    assert code_of(tmp_path / "nul\0") == "container_not_found"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert code_of(loop) == "container_not_readable"


PREAMBLES = {
    "empty file": (b"", "container_too_short"),
    "fifteen bytes": (MAGIC + b"\1" + bytes(6), "container_too_short"),
    "another magic": (b"PK\3\4" + bytes(100), "container_magic_unknown"),
    "magic of version 2": (b"BUNDLE\2\0" + bytes(100), "container_magic_unknown"),
    "header of no bytes before August 2026": (b"TRTFB\0\1\0" + bytes(100), "header_empty"),
    "header of no bytes": (MAGIC + bytes(100), "header_empty"),
    "header past the end": (MAGIC + struct.pack("<Q", 5) + b"{  }", "header_beyond_file"),
    "header beyond the limit": (MAGIC + struct.pack("<Q", HEADER_LIMIT_BYTES + 1) + b"{}", "header_too_long"),
    "header of 2^64-1 bytes": (MAGIC + b"\xff" * 8 + b"{}", "header_too_long"),
}


@pytest.mark.parametrize("name", PREAMBLES)
def test_a_wrong_start_is_told_apart(name: str, path: Path) -> None:
    data, code = PREAMBLES[name]
    assert code_of(write(path, data)) == code


def sections_with(**entry: Any) -> dict[str, Any]:
    """Return a header whose only section has ``entry`` mixed into a good one."""
    return header_of({"a": {**SECTION, **entry}})


HEADERS: dict[str, tuple[object, str]] = {
    "an array": ([], "json_not_an_object"),
    "cut JSON": (b'{"format":1', "json_malformed"),
    "byte order mark": (b"\xef\xbb\xbf{}", "json_byte_order_mark"),
    "not UTF-8": (b'{"\xff":1}', "json_not_utf8"),
    "a key twice": (b'{"format":1,"format":1}', "json_duplicate_key"),
    "a section twice": (b'{"sections":{"a":{},"a":{}}}', "json_duplicate_key"),
    "NaN": (b'{"format":NaN}', "json_not_finite"),
    "deep nesting": (b'{"format":' + b"[" * 1000 + b"]" * 1000 + b"}", "json_too_deep"),
    "no keys": ({}, "header_key_missing"),
    "a sixth key": (header_of({}, version=1), "header_key_unknown"),
    "format 2": (header_of({}, format=2), "header_format_unsupported"),
    "format true": (header_of({}, format=True), "header_format_unsupported"),
    "format 1.0": (header_of({}, format=1.0), "header_format_unsupported"),
    "format as text": (header_of({}, format="1"), "header_format_unsupported"),
    "another task": (header_of({}, task="embedding"), "header_task_unsupported"),
    "upper-case family": (header_of({}, family="Qwen"), "header_identifier_invalid"),
    "family with a line feed": (header_of({}, family="rwkv\n"), "header_identifier_invalid"),
    "backend null": (header_of({}, backend=None), "header_identifier_invalid"),
    "sections an array": (header_of({}) | {"sections": []}, "header_sections_invalid"),
    "entry an array": (header_of({"a": [0, 5]}), "section_entry_invalid"),
    "entry without length": (header_of({"a": {"offset": 0}}), "header_key_missing"),
    "a third entry key": (sections_with(sha256=""), "header_key_unknown"),
    "size instead of length": (header_of({"a": {"offset": 0, "size": 5}}), "header_key_missing"),
    "offset true": (sections_with(offset=True), "section_number_invalid"),
    "offset 0.0": (sections_with(offset=0.0), "section_number_invalid"),
    "offset negative": (sections_with(offset=-1), "section_number_invalid"),
    "offset text": (sections_with(offset="0"), "section_number_invalid"),
    "length null": (sections_with(length=None), "section_number_invalid"),
    "length 2^63": (sections_with(length=2**63), "json_integer_out_of_range"),
    "length 2^63-1": (sections_with(length=2**63 - 1), "section_beyond_file"),
    "sum past 2^64": (sections_with(offset=2**63 - 1, length=2**63 - 1), "section_beyond_file"),
    "one byte past the end": (sections_with(length=6), "section_beyond_file"),
    "offset past the end, no bytes": (sections_with(offset=6, length=0), "section_beyond_file"),
    "overlap": (header_of({"a": SECTION, "b": {"offset": 4, "length": 1}}), "section_overlap"),
    "same range": (header_of({"a": SECTION, "b": SECTION}), "section_overlap"),
    "name empty": (header_of({"": SECTION}), "section_name_unsafe"),
    "name ..": (header_of({"a/../../b": SECTION}), "section_name_unsafe"),
    "name absolute": (header_of({"/etc/passwd": SECTION}), "section_name_unsafe"),
    "name with a backslash": (header_of({"a\\b": SECTION}), "section_name_unsafe"),
    "name with a drive": (header_of({"c:a": SECTION}), "section_name_unsafe"),
    "name with NUL": (header_of({"a\0": SECTION}), "section_name_unsafe"),
    "name of 10,000 characters": (header_of({"a" * 10_000: SECTION}), "section_name_unsafe"),
    "names that differ by case": (
        header_of({"readme": {"offset": 0, "length": 1}, "README": {"offset": 1, "length": 1}}),
        "section_names_differ_by_case",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_wrong_header_is_refused_by_its_own_code(name: str, path: Path) -> None:
    header, code = HEADERS[name]
    assert code_of(write(path, container_bytes(header, b"hello"))) == code


def test_every_problem_of_a_header_is_told_at_once(path: Path) -> None:
    header = header_of({"a": {"offset": -1, "length": 1}, "..": SECTION}, family=7)
    write(path, container_bytes(header, b"hello"))
    with pytest.raises(RowpackError) as caught:
        Container.open(path)
    codes = [problem.code for problem in caught.value.problems]
    assert codes == ["header_identifier_invalid", "section_number_invalid", "section_name_unsafe"]


def test_ten_thousand_sections_are_read(path: Path) -> None:
    sections = {f"s{index}": {"offset": index, "length": 1} for index in range(10_000)}
    write(path, container_bytes(header_of(sections), bytes(10_000)))
    with Container.open(path) as container:
        assert len(container.sections) == 10_000


def test_a_file_cut_anywhere_is_never_taken_for_whole(path: Path) -> None:
    whole = container_bytes(header_of({"a": SECTION}), b"hello")
    codes = set()
    for length in range(len(whole)):
        codes.add(code_of(write(path, whole[:length])))
    assert codes == {"container_too_short", "header_beyond_file", "section_beyond_file"}
    write(path, whole)
    Container.open(path).close()


def trailer_frame(text: bytes, length: int | None = None) -> bytes:
    """Return a trailer whose length may lie."""
    return text + struct.pack("<Q", len(text) if length is None else length) + b"PROV\1\0\0\0"


def test_a_trailer_is_read_behind_the_last_section(path: Path) -> None:
    text = json.dumps({"trailer_version": 1}).encode()
    write(path, container_bytes(header_of({"a": SECTION}), b"hello" + trailer_frame(text)))
    with Container.open(path) as container:
        assert container.trailer() == {"trailer_version": 1}
        place = container.trailer_range()
        assert place is not None
        assert place.offset_bytes == container.sections_end


def test_the_trailer_magic_inside_a_payload_is_no_trailer(path: Path) -> None:
    payload = trailer_frame(b"{}")
    write(path, container_bytes(header_of({"a": {"offset": 0, "length": len(payload)}}), payload))
    with Container.open(path) as container:
        assert container.trailer() is None


@pytest.mark.parametrize("length", [0, 3, 2**24 + 1, 2**63, 2**64 - 1])
def test_a_trailer_whose_length_lies_is_refused(path: Path, length: int) -> None:
    write(path, container_bytes(header_of({"a": SECTION}), b"hello" + trailer_frame(b"{}", length)))
    with Container.open(path) as container, pytest.raises(RowpackError, match="trailer_length_invalid"):
        container.trailer()


def test_a_file_that_changes_while_it_is_read_is_noticed(path: Path) -> None:
    write(path, container_bytes(header_of({"a": SECTION}), b"hello"))
    with Container.open(path) as container:
        os.truncate(path, path.stat().st_size - 1)
        with pytest.raises(RowpackError, match="container_changed_while_reading"):
            container.read_section("a")
        with pytest.raises(RowpackError, match="container_changed_while_reading"):
            container.section_view("a")
        with pytest.raises(RowpackError, match="container_changed_while_reading"):
            container.read_into(memoryview(bytearray(5)), container.sections["a"].offset_bytes)
    write(path, container_bytes(header_of({"a": SECTION}), b"hello"))
    with Container.open(path) as container:
        os.utime(path, ns=(0, 0))
        with pytest.raises(RowpackError, match="container_changed_while_reading"):
            container.check_unchanged()


def test_replacing_the_file_leaves_an_open_container_whole(path: Path, tmp_path: Path) -> None:
    write(path, container_bytes(header_of({"a": SECTION}), b"hello"))
    with Container.open(path) as container:
        write(tmp_path / "new", container_bytes(header_of({"a": SECTION}), b"world")).replace(path)
        container.check_unchanged()
        assert container.read_section("a") == b"hello"


def test_threads_read_through_one_descriptor(path: Path) -> None:
    sections = {f"s{index}": {"offset": index * 1000, "length": 1000} for index in range(16)}
    write(path, container_bytes(header_of(sections), b"".join(bytes([index]) * 1000 for index in range(16))))
    wrong: list[int] = []
    with Container.open(path) as container:

        def read(index: int) -> None:
            for _ in range(200):
                if container.read_section(f"s{index}") != bytes([index]) * 1000:
                    wrong.append(index)

        threads = [threading.Thread(target=read, args=(index,)) for index in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_failed_opening_leaks_no_descriptor(path: Path) -> None:
    write(path, container_bytes([]))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        code_of(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("function", ["pread", "preadv"])
def test_a_fault_of_the_disk_is_an_error_with_a_code(
    path: Path, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, container_bytes(header_of({"a": SECTION}), b"hello"))

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with Container.open(path) as container:
        monkeypatch.setattr(os, function, fail)
        with pytest.raises(RowpackError, match="container_not_readable"):
            container.read_section("a")
            container.read_into(memoryview(bytearray(5)), container.payload_start)
