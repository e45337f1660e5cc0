"""The validator as a whole: damage anywhere is noticed, reading stays within bounds, reports follow their schema."""

from __future__ import annotations

import json
import mmap
import os
import random
import struct
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic_bundles import BundleParts, container_bytes, header_of, rewrite_manifest, single_parts

from rowpack_loaders.container import Container
from rowpack_loaders.schema_data import error_codes
from rowpack_loaders.validation import validate
from rowpack_loaders.validation.runner import LAYERS
from rowpack_loaders.validation.schema_check import schema_problems


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "x.bundle"
    BundleParts().write(target)
    return target


def test_good_bundles_are_valid_in_both_modes_without_a_warning(path: Path, tmp_path: Path) -> None:
    single = tmp_path / "single"
    single_parts().write(single)
    unverified = BundleParts(without={"golden.msgpack.zst"})
    unverified.manifest["self_test"] = None
    unverified.write(tmp_path / "unverified")
    bf16 = BundleParts()
    bf16.manifest["model"]["precision"] = "bf16"
    bf16.write(tmp_path / "bf16")
    for bundle in (path, single, tmp_path / "unverified", tmp_path / "bf16"):
        for header_only in (False, True):
            report = validate(bundle, header_only=header_only)
            assert (report.valid, report.errors, report.warnings) == (True, [], [])


def test_reports_follow_their_schema_and_use_known_codes(path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(path.read_bytes()[:-1])
    missing = tmp_path / "missing"
    for bundle in (path, broken, missing, tmp_path):
        for header_only in (False, True):
            report = validate(bundle, header_only=header_only).as_json()
            assert list(schema_problems(report, "validate_report", "report")) == []
            assert json.loads(json.dumps(report)) == report
    for problem in [*validate(broken).errors, *validate(missing).errors]:
        assert problem.code in error_codes()


def test_places_are_told_relative_to_the_bundle(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(container_bytes(header_of({"a": {"offset": 9, "length": 9}})))
    (problem,) = validate(path).errors
    assert problem.where == "header#/sections/a"


def positions_in_every_part(data: bytes, step: int) -> Iterator[int]:
    """Yield positions in every part of a bundle, each ``step``-th of the parts that are text."""
    (length,) = struct.unpack_from("<Q", data, 8)
    text_end = 16 + len(data[16 : 16 + length].rstrip(b" "))
    (trailer,) = struct.unpack("<Q", data[-16:-8])
    yield from range(0, 16, min(step, 3))
    yield from range(16, text_end, step)
    yield from (text_end, 16 + length - 1)
    yield from random.Random(1).sample(range(16 + length, len(data) - trailer - 16), 1000 // step)
    for place in json.loads(data[16:text_end])["sections"].values():
        start = 16 + length + place["offset"]
        yield from (start, start + place["length"] - 1, start + place["length"])
    yield from range(len(data) - trailer - 16, len(data) - 16, step)
    yield from range(len(data) - 16, len(data), min(step, 3))


@pytest.mark.parametrize("step", [83, pytest.param(5, marks=pytest.mark.slow)])
def test_no_changed_byte_goes_unnoticed(path: Path, step: int) -> None:
    data = path.read_bytes()
    chooser = random.Random(2)
    unnoticed = []
    for position in positions_in_every_part(data, step):
        changed = bytearray(data)
        changed[position] ^= 1 << chooser.randrange(8)
        path.write_bytes(changed)
        if validate(path).valid:
            unnoticed.append(position)
    assert unnoticed == []


def test_a_bundle_cut_at_any_boundary_is_invalid(path: Path) -> None:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data, 8)
    places = json.loads(data[16 : 16 + length])["sections"].values()
    starts = [16 + length + place["offset"] for place in places]
    ends = [16 + length + place["offset"] + place["length"] for place in places]
    cuts = {0, 8, 15, 16, 17, 16 + length, *starts, *ends, *(end - 1 for end in ends)}
    cuts |= set(range(len(data) - 16, len(data))) | {cut + 1 for cut in ends}
    for cut in sorted(cuts):
        path.write_bytes(data[:cut])
        report = validate(path)
        # Without its trailer the rest is whole: that is told as a warning.
        if cut == max(ends):
            assert [problem.code for problem in report.warnings] == ["trailer_missing"]
        else:
            assert not report.valid, cut
        assert validate(path, header_only=True).path == path


def test_one_byte_more_is_noticed(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")
    assert "trailing_bytes_undeclared" in [problem.code for problem in validate(path).errors]


def test_header_only_reads_no_more_than_the_first_mebibyte(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[tuple[int, int]] = []
    pread = os.pread

    def watched(descriptor: int, length: int, offset: int) -> bytes:
        reads.append((offset, length))
        return pread(descriptor, length, offset)

    def forbidden(*_: object) -> None:
        raise AssertionError("read by a way that is not counted")

    monkeypatch.setattr(os, "pread", watched)
    monkeypatch.setattr(os, "preadv", forbidden)
    monkeypatch.setattr(mmap, "mmap", forbidden)
    report = validate(path, header_only=True)
    assert report.valid
    assert "runtime_json" in report.checked.layers
    assert sum(length for _, length in reads) <= 2**20
    assert max(offset + length for offset, length in reads) <= 2**20

    reads.clear()
    path.write_bytes(container_bytes(header_of({}), pad_to=2**21))
    assert [problem.code for problem in validate(path, header_only=True).errors] == ["header_too_long"]
    path.write_bytes(container_bytes(header_of({"manifest.json": {"offset": 0, "length": 2**20}}), bytes(2**20)))
    found = [problem.code for problem in validate(path, header_only=True).errors]
    assert "manifest_beyond_first_mebibyte" in found
    assert sum(length for _, length in reads) <= 2**20


def test_every_problem_is_told_in_one_run(path: Path) -> None:
    parts = BundleParts()
    parts.manifest["tokens"]["eos"][0]["id"] = 99
    parts.manifest["states"][0]["dtype"] = "float16"
    parts.manifest["limits"]["note"] = True
    parts.runtime_json["hidden_size"] = 5
    parts.golden["cases"][0]["kind"] = ""
    parts.write(path)
    data = bytearray(path.read_bytes())
    data[20000] = 7
    path.write_bytes(data)
    codes = {problem.code for problem in validate(path).errors}
    assert codes == {
        "token_id_beyond_vocabulary",
        "state_dtype_mismatch",
        "layout_decision_number_mismatch",
        "schema_key_unknown",
        "runtime_json_mismatch",
        "schema_value_invalid",
        "gap_not_zero",
    }


def test_keys_of_a_newer_minor_are_warnings(path: Path) -> None:
    parts = BundleParts()
    parts.manifest["schema_version"] = "1.1"
    parts.manifest["flavour"] = "vanilla"
    parts.write(path)
    report = validate(path)
    assert report.valid
    assert [(problem.code, problem.where) for problem in report.warnings] == [
        ("schema_key_unknown", "manifest.json#/flavour")
    ]


def test_a_malformed_manifest_is_told_once_with_its_place(path: Path) -> None:
    parts = BundleParts()
    parts.manifest["engines"]["decode"]["rows"] = "one"
    parts.write(path)
    assert [(problem.code, problem.where) for problem in validate(path).errors] == [
        ("schema_value_invalid", "manifest.json#/engines/decode/rows")
    ]


def test_an_unknown_major_is_not_judged_by_rules_of_this_one(path: Path) -> None:
    def become_another(manifest: dict[str, Any]) -> None:
        manifest.clear()
        manifest.update(schema_version="2.0", required_features=[])

    rewrite_manifest(path, become_another)
    assert [problem.code for problem in validate(path).errors] == ["manifest_schema_unsupported"]


def test_a_rule_broken_a_thousand_times_is_told_a_hundred_times(path: Path) -> None:
    parts = BundleParts()
    parts.manifest["tokens"]["eos"] = [{"id": 16 + index, "sources": ["x"]} for index in range(150)]
    parts.write(path)
    codes = [problem.code for problem in validate(path).errors]
    assert codes.count("token_id_beyond_vocabulary") == 100


def test_progress_ends_at_the_sum_of_the_sections(path: Path) -> None:
    told: list[tuple[int, int]] = []
    report = validate(path, progress=lambda done, total: told.append((done, total)))
    with Container.open(path) as container:
        total = sum(place.length_bytes for place in container.sections.values())
    assert told[-1] == (total, total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert report.checked.digested_bytes == total


def test_memory_does_not_grow_with_the_sections(tmp_path: Path) -> None:
    parts = BundleParts()
    parts.sections = {name: bytes(2**26) for name in ("a.bin", "b.bin")}
    parts.write(tmp_path / "large")
    del parts
    validate(tmp_path / "large", header_only=True)  # what is imported and remembered is not counted
    tracemalloc.start()
    validate(tmp_path / "large")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2**25


def test_an_interruption_ends_every_thread(tmp_path: Path) -> None:
    parts = BundleParts()
    parts.sections = {name: bytes(2**26) for name in ("a.bin", "b.bin")}
    parts.write(tmp_path / "large")
    told: list[int] = []

    def interrupt(done: int, total: int) -> None:
        told.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        validate(tmp_path / "large", progress=interrupt)
    assert max(told) < 2**25
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("validate-")]


def test_a_file_that_changes_while_it_is_checked_is_noticed(path: Path) -> None:
    touched = False

    def touch(done: int, total: int) -> None:
        nonlocal touched
        if not touched:
            touched = True
            os.utime(path, ns=(1, 1))

    assert [problem.code for problem in validate(path, progress=touch).errors] == ["container_changed_while_reading"]


def test_a_large_sparse_bundle_is_checked_by_its_header_at_once(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    parts = BundleParts()
    parts.write(path)
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data, 8)
    header = json.loads(data[16 : 16 + length])
    header["sections"]["weights.safetensors"]["length"] = 20 * 2**30
    del header["sections"]["golden.msgpack.zst"]
    text = json.dumps(header, separators=(",", ":")).encode().ljust(length, b" ")
    with path.open("r+b") as file:
        file.write(data[:16] + text)
        file.truncate(16 + length + header["sections"]["weights.safetensors"]["offset"] + 20 * 2**30)
    codes = {problem.code for problem in validate(path, header_only=True).errors}
    assert codes == {"section_length_mismatch", "section_declared_missing", "section_reference_missing"}


def test_layers_and_rules_have_names_of_their_own() -> None:
    layers = [layer.name for layer in LAYERS]
    rules = [rule.__name__ for layer in LAYERS for rule in layer.rules]
    assert (layers[0], layers[-1]) == ("file", "unchanged")
    assert len(layers) == len(set(layers))
    assert len(rules) == len(set(rules))
