"""What the writer writes, byte for byte, and that it publishes a whole file or nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from killed_writers import run_until_killed
from synthetic_bundles import BundleParts

from rowpack.bundle import BundleWriter
from rowpack.bundle.output_file import OutputFile, remove_stale
from rowpack_loaders.digests import canonical_json, content_digest
from rowpack_loaders.errors import RowpackError

OCTETS = "application/octet-stream"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "x.bundle"


def writer(target: Path, **options: Any) -> BundleWriter:
    """Return a writer with a small reserve."""
    return BundleWriter(target, family="rwkv", backend="ort", **{"manifest_reserve_bytes": 5000, **options})


def write_two_sections(target: Path) -> bytes:
    """Write the smallest interesting bundle and return its bytes."""
    with writer(target) as bundle:
        bundle.add_section("runtime.json", b"{}", media_type="application/json", required=False)
        bundle.add_section("weights.safetensors", [b"hello ", b"", b"world"], media_type="application/x")
        bundle.finish({"schema_version": "1.0", "ä": 1.5}, {"who": "me"})
    return target.read_bytes()


def test_the_file_is_laid_out_by_the_byte_rules(target: Path) -> None:
    data = write_two_sections(target)

    # Fixed start: magic, and a header that pads to the first page.
    assert data[:16].hex(" ") == "42 55 4e 44 4c 45 01 00 f0 0f 00 00 00 00 00 00"
    header = data[16:4096].rstrip(b" ")
    assert json.loads(header) == {
        "format": 1,
        "family": "rwkv",
        "task": "text_generation",
        "backend": "ort",
        "sections": {
            "manifest.json": {"offset": 0, "length": data.index(b"\0", 4096) - 4096},
            # 5000 bytes are reserved for the manifest: two pages.
            "runtime.json": {"offset": 8192, "length": 2},
            "weights.safetensors": {"offset": 12288, "length": 11},
        },
    }
    assert b" " not in header
    assert list(json.loads(header)) == ["format", "family", "task", "backend", "sections"]

    # Sections where the header says, zeros between them.
    manifest = data[4096 : data.index(b"\0", 4096)]
    assert data[4096 + len(manifest) : 12288] == bytes(8192 - len(manifest))
    assert data[12288:12290] == b"{}"
    assert data[12290:16384] == bytes(4094)
    assert data[16384:16395] == b"hello world"

    # The manifest, completed and canonical.
    value = json.loads(manifest)
    assert manifest == canonical_json(value)
    assert value["sections"] == {
        "runtime.json": {
            "media_type": "application/json",
            "length": 2,
            "sha256": hashlib.sha256(b"{}").hexdigest(),
            "encoding": "raw",
            "required": False,
        },
        "weights.safetensors": {
            "media_type": "application/x",
            "length": 11,
            "sha256": hashlib.sha256(b"hello world").hexdigest(),
            "encoding": "raw",
            "required": True,
        },
    }
    without_digest = {key: member for key, member in value.items() if key != "content_digest"}
    assert value["content_digest"] == "sha256:" + hashlib.sha256(canonical_json(without_digest)).hexdigest()

    # The trailer, right behind the last section.
    assert data[-8:].hex(" ") == "50 52 4f 56 01 00 00 00"
    (length,) = struct.unpack("<Q", data[-16:-8])
    assert len(data) == 16395 + length + 16
    trailer = json.loads(data[16395:-16])
    assert data[16395:-16] == canonical_json(trailer)
    header_sha256 = hashlib.sha256(data[:4096]).hexdigest()
    manifest_sha256 = hashlib.sha256(manifest).hexdigest()
    table = {
        "manifest.json": {"length": len(manifest), "offset": 0, "sha256": manifest_sha256},
        "runtime.json": {"length": 2, "offset": 8192, "sha256": hashlib.sha256(b"{}").hexdigest()},
        "weights.safetensors": {
            "length": 11,
            "offset": 12288,
            "sha256": hashlib.sha256(b"hello world").hexdigest(),
        },
    }
    whole = json.dumps({"header": header_sha256, "sections": table}, separators=(",", ":"), sort_keys=True)
    assert trailer == {
        "trailer_version": 1,
        "header_sha256": header_sha256,
        "manifest_sha256": manifest_sha256,
        "content_digest": value["content_digest"],
        "file_digest": "sha256:" + hashlib.sha256(whole.encode()).hexdigest(),
        "provenance": {"who": "me"},
        "provenance_sha256": hashlib.sha256(b'{"who":"me"}').hexdigest(),
    }


def test_the_result_names_the_file_and_its_digests(target: Path) -> None:
    finished = BundleParts().write(target)
    trailer = json.loads(target.read_bytes()[_trailer_start(target) : -16])
    assert (finished.path, finished.file_size) == (target, target.stat().st_size)
    assert (finished.content_digest, finished.file_digest) == (trailer["content_digest"], trailer["file_digest"])


def _trailer_start(path: Path) -> int:
    data = path.read_bytes()
    return len(data) - 16 - int(struct.unpack("<Q", data[-16:-8])[0])


def test_the_same_input_gives_the_same_file(tmp_path: Path) -> None:
    assert write_two_sections(tmp_path / "first") == write_two_sections(tmp_path / "elsewhere")


def test_arrays_stream_in_as_they_are(target: Path) -> None:
    arrays: list[npt.NDArray[Any]] = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.zeros((0, 4), np.float16),
        np.array(7, np.int64),
    ]
    with writer(target) as bundle:
        place = bundle.add_section("a", (array.data for array in arrays), media_type=OCTETS, length_bytes=32)
        # The section can be read from the temporary file at once: the smoke run maps it there.
        stored = bundle.temporary_path.read_bytes()[place.offset_bytes : place.end_bytes]
        assert stored == b"".join(array.tobytes() for array in arrays)
        assert bundle.section_range("a") == place


def test_large_streams_are_not_held(target: Path) -> None:
    pieces = 64
    alive = 0
    most_alive = 0

    class Piece(bytearray):
        def __init__(self) -> None:
            nonlocal alive, most_alive
            super().__init__(2**20)
            alive += 1
            most_alive = max(most_alive, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def stream() -> Iterator[bytearray]:
        for _ in range(pieces):
            yield Piece()

    with writer(target) as bundle:
        place = bundle.add_section("a", stream(), media_type=OCTETS)
    assert place.length_bytes == pieces * 2**20
    assert most_alive <= 3


@pytest.mark.parametrize(
    "name", ["manifest.json", "A", "a/../b", "/a", "con", "a/b/c/d", "aux.txt", "a.", "", "x" * 129]
)
def test_names_that_may_not_be_written_are_refused(name: str, target: Path) -> None:
    with writer(target) as bundle, pytest.raises(ValueError, match="section name"):
        bundle.add_section(name, b"", media_type=OCTETS)


def test_order_and_repetition_are_checked(target: Path) -> None:
    with writer(target) as bundle:
        bundle.add_section("engine.onnx", b"", media_type=OCTETS)
        with pytest.raises(ValueError, match=r"belongs before 'engine\.onnx'"):
            bundle.add_section("tokenizer.json", b"", media_type=OCTETS)
        with pytest.raises(ValueError, match="twice"):
            bundle.add_section("engine.onnx", b"", media_type=OCTETS)
        with pytest.raises(ValueError, match="has 1 bytes, not 2"):
            bundle.add_section("prefill.onnx", b"x", media_type=OCTETS, length_bytes=2)


def test_too_small_reserves_are_told(target: Path) -> None:
    target.write_bytes(b"old")
    with writer(target, manifest_reserve_bytes=1) as bundle, pytest.raises(RowpackError) as caught:
        bundle.finish({"text": "x" * 5000}, {})
    assert caught.value.code == "manifest_exceeds_reserve"
    with writer(target) as bundle, pytest.raises(RowpackError) as caught:
        for index in range(100):
            bundle.add_section(f"{index:0100}", b"", media_type=OCTETS)
    assert caught.value.code == "header_exceeds_reserve"
    assert target.read_bytes() == b"old"
    assert list(target.parent.iterdir()) == [target]
    with writer(target, payload_start_bytes=32768, manifest_reserve_bytes=32768) as bundle:
        for index in range(100):
            bundle.add_section(f"{index:0100}", b"", media_type=OCTETS)
        bundle.finish({}, {})
    assert target.read_bytes()[8:16] == struct.pack("<Q", 32768 - 16)


def test_a_manifest_that_readers_would_round_is_refused(target: Path) -> None:
    with writer(target) as bundle, pytest.raises(ValueError, match="/a/0"):
        bundle.finish({"a": [2**53 + 1]}, {})
    assert not target.exists()


# -- publishing --------------------------------------------------------------------------------------------------


def test_a_failed_build_leaves_the_old_file_and_nothing_else(target: Path) -> None:
    target.write_bytes(b"old")

    def failing() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("the checkpoint is damaged")

    with pytest.raises(RuntimeError), writer(target) as bundle:
        bundle.add_section("a", failing(), media_type=OCTETS)
    assert target.read_bytes() == b"old"
    assert list(target.parent.iterdir()) == [target]


def test_the_target_appears_whole_with_permissions_by_umask(target: Path) -> None:
    previous = os.umask(0o027)
    try:
        with writer(target) as bundle:
            bundle.add_section("a", b"x", media_type=OCTETS)
            assert not target.exists()
            assert bundle.temporary_path.name == ".x.bundle.rowpack-part"
            bundle.finish({}, {})
    finally:
        os.umask(previous)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert list(target.parent.iterdir()) == [target]


def test_a_mapped_reader_keeps_the_old_file(target: Path) -> None:
    from rowpack_loaders.container import Container

    write_two_sections(target)
    with Container.open(target) as old:
        view = old.section_view("weights.safetensors")
        BundleParts().write(target)
        assert bytes(view) == b"hello world"
        old.check_unchanged()


def test_a_symbolic_link_at_the_target_is_replaced_not_followed(target: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "precious"
    elsewhere.write_bytes(b"precious")
    target.symlink_to(elsewhere)
    write_two_sections(target)
    assert elsewhere.read_bytes() == b"precious"
    assert not target.is_symlink()


def test_a_killed_build_leaves_no_target_and_the_next_one_cleans_up(target: Path) -> None:
    program = (
        "import os, sys, signal\n"
        "from rowpack.bundle import BundleWriter\n"
        "writer = BundleWriter(sys.argv[1], family='rwkv', backend='ort')\n"
        "writer.add_section('a', b'x' * 100000, media_type='x')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run_until_killed(program, target)
    (stale,) = target.parent.iterdir()
    assert stale.name == ".x.bundle.rowpack-part"
    assert stale.stat().st_size > 100000
    write_two_sections(target)
    assert list(target.parent.iterdir()) == [target]


def test_a_running_build_is_not_taken_for_a_stale_one(target: Path) -> None:
    other = target.with_name("x.bundle.2")
    with writer(target) as first, writer(other) as second:
        assert remove_stale(target) == []
        assert all(bundle.temporary_path.exists() for bundle in (first, second))
        with pytest.raises(RowpackError) as caught:
            writer(target)
        assert caught.value.code == "output_busy"
        first.add_section("a", b"first", media_type=OCTETS)
        first.finish({}, {})
        with writer(target) as third:
            third.add_section("a", b"third", media_type=OCTETS)
            third.finish({}, {})
    assert b"third" in target.read_bytes()
    assert list(target.parent.iterdir()) == [target]


REFUSED_WRITES = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EACCES: "output_not_writable",
    errno.EROFS: "output_not_writable",
    errno.EIO: "output_write_failed",
}


@pytest.mark.parametrize("number", REFUSED_WRITES)
def test_what_the_system_refuses_is_told_and_undone(number: int, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target.write_bytes(b"old")

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    for function in ("pwrite", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, refuse)
            with pytest.raises(RowpackError) as caught, writer(target) as bundle:
                bundle.add_section("a", b"x", media_type=OCTETS)
                bundle.finish({}, {})
        assert caught.value.code == REFUSED_WRITES[number]
        assert target.read_bytes() == b"old"
        assert list(target.parent.iterdir()) == [target]


def test_a_disk_that_fills_up_in_the_middle_of_a_section(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 3 * 2**20
    write = os.pwrite

    def limited(descriptor: int, data: memoryview, offset: int) -> int:
        if offset >= room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[: room - offset], offset)

    monkeypatch.setattr(os, "pwrite", limited)
    with pytest.raises(RowpackError, match="disk_full"), writer(target) as bundle:
        bundle.add_section("a", (bytes(2**20) for _ in range(8)), media_type=OCTETS)
    assert list(target.parent.iterdir()) == []


def test_a_section_larger_than_the_disk_is_refused_before_it_is_written(target: Path) -> None:
    def untouched() -> Iterator[bytes]:
        raise AssertionError("nothing may be read")
        yield b""

    with pytest.raises(RowpackError) as caught, writer(target) as bundle:
        bundle.add_section("a", untouched(), media_type=OCTETS, length_bytes=2**60)
    assert caught.value.code == "disk_full"


def test_impossible_outputs_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, code in {
        tmp_path: "output_is_directory",
        tmp_path / "missing" / "x": "output_folder_missing",
        tmp_path / "fifo": "output_not_a_file",
        Path("/proc/x.bundle"): "output_write_failed",
    }.items():
        with pytest.raises(RowpackError) as caught:
            writer(path)
        assert caught.value.code == code, path
    assert [entry.name for entry in tmp_path.iterdir()] == ["fifo"]


def test_discarding_twice_and_after_publishing_is_harmless(target: Path) -> None:
    file = OutputFile(target)
    file.discard()
    file.discard()
    file = OutputFile(target)
    file.write(memoryview(b"x"), 0)
    file.publish()
    file.discard()
    assert target.read_bytes() == b"x"


def test_the_content_digest_leaves_out_what_does_not_reproduce() -> None:
    base: dict[str, Any] = {
        "sections": {"engine.plan": {"length": 1, "sha256": "a"}, "engine.onnx": {"length": 1, "sha256": "a"}},
        "layout_decision": {"capacity_bytes": 1, "capacity_source": "host_memory"},
        "self_test": {"executed": "engines", "cases": 1},
    }

    def changed(*path: str) -> str:
        value = json.loads(json.dumps(base))
        place = value
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = 2
        return content_digest(value)

    original = content_digest(base)
    for path in [
        ("content_digest",),
        ("sections", "engine.plan", "length"),
        ("sections", "engine.plan", "sha256"),
        ("layout_decision", "capacity_bytes"),
        ("layout_decision", "capacity_source"),
        ("layout_decision",),
        ("self_test", "executed"),
    ]:
        assert changed(*path) == original
    for path in [("x",), ("sections", "engine.onnx", "sha256"), ("self_test", "cases")]:
        assert changed(*path) != original


def test_a_section_can_be_taken_back(target: Path) -> None:
    """As if it had never been written, whatever comes after it, or nothing."""
    expected = write_two_sections(target)
    with writer(target) as bundle:
        bundle.add_section("runtime.json", b"{}", media_type="application/json", required=False)
        bundle.add_section("engine.onnx", b"x" * 20000, media_type=OCTETS)
        with pytest.raises(ValueError, match="not the last"):
            bundle.drop_section("runtime.json")
        bundle.drop_section("engine.onnx")
        bundle.add_section("weights.safetensors", b"hello world", media_type="application/x")
        bundle.add_section("golden.msgpack.zst", b"x" * 9000, media_type=OCTETS)
        bundle.drop_section("golden.msgpack.zst")
        bundle.finish({"schema_version": "1.0", "ä": 1.5}, {"who": "me"})
    assert target.read_bytes() == expected
    with writer(target) as bundle, pytest.raises(ValueError, match="not the last"):
        bundle.drop_section("runtime.json")
