"""What holds of every bundle: what is written is read, and no change of it goes unnoticed or breaks a reader."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from forged_bundles import MANIFEST, forged, good_bundle, header_of
from fuzz_targets import TARGETS, check_file, part, seeds, with_section
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_mutations import json_values, moved, places, removed, replaced, scalars

from rowpack.bundle import BundleWriter
from rowpack_loaders import open_bundle, validate
from rowpack_loaders.digests import canonical_json
from rowpack_loaders.section_names import case_twins, section_order, unportable_name_reason

GOOD = good_bundle()
MANIFEST_VALUE: Any = json.loads(part(MANIFEST))
MANIFEST_PLACES = list(places(MANIFEST_VALUE))
HEADER_VALUE = header_of(GOOD)
HEADER_PLACES = list(places(HEADER_VALUE))

# Few by default, so that the tests stay quick; docs/reliability.md tells of runs with many.
EXAMPLES = int(os.environ.get("ROWPACK_FUZZ_EXAMPLES", "12"))
bounded = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])

names = st.from_regex(r"[a-z0-9._-]{1,12}(/[a-z0-9._-]{1,8}){0,2}", fullmatch=True).filter(
    lambda name: unportable_name_reason(name) is None and name != MANIFEST
)
contents = st.binary(max_size=9000)
keys = st.text("abc_", min_size=1, max_size=6)
metadata = st.dictionaries(keys, scalars.filter(lambda value: type(value) is not int), max_size=4)


@bounded
@given(
    st.dictionaries(names, contents, max_size=6).filter(lambda sections: case_twins(sections) is None),
    metadata,
    metadata,
    st.integers(1, 3),
)
def test_what_is_written_is_read(
    sections: dict[str, bytes], extra: dict[str, Any], provenance: dict[str, Any], header_pages: int
) -> None:
    manifest = {"schema_version": "1.0", "required_features": [], "extra": extra}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.bundle"
        with BundleWriter(path, family="f", backend="b", payload_start_bytes=4096 * header_pages) as writer:
            for name in sorted(sections, key=section_order):
                writer.add_section(name, sections[name], media_type="application/octet-stream")
            finished = writer.finish(manifest, provenance)
        with open_bundle(path) as bundle:
            assert {name: bundle.read_section(name) for name in sections} == sections
            assert {name: bytes(bundle.section_view(name)) for name in sections} == sections
            assert bundle.manifest["extra"] == extra
            trailer = bundle.trailer()
            assert trailer is not None
            assert (trailer["provenance"], trailer["file_digest"]) == (provenance, finished.file_digest)
        found = {told.problem.code for told in validate(path).found if told.layer in LAYERS_OF_THE_CONTAINER}
        assert found == set()


LAYERS_OF_THE_CONTAINER = {"file", "container", "padding", "digests", "trailer", "unchanged"}


@settings(bounded, max_examples=3 * EXAMPLES)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_changed_byte_is_reported(position: int, change: int) -> None:
    data = bytearray(GOOD)
    data[position] ^= change
    assert not check_file(bytes(data)).valid


@bounded
@given(st.integers(0, len(GOOD)), st.binary(min_size=1, max_size=40))
def test_inserted_bytes_are_reported(position: int, inserted: bytes) -> None:
    assert not check_file(GOOD[:position] + inserted + GOOD[position:]).valid


@bounded
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 5000))
def test_removed_bytes_are_reported(position: int, count: int) -> None:
    data = GOOD[:position] + GOOD[position + count :]
    report = check_file(data)
    # Without its whole trailer a bundle is whole, and told to lack it.
    assert not report.valid or [problem.code for problem in report.warnings] == ["trailer_missing"]


@settings(bounded, max_examples=3 * EXAMPLES)
@given(st.sampled_from(MANIFEST_PLACES), json_values)
def test_any_value_anywhere_in_the_manifest_leaves_the_readers_whole(place: Any, value: Any) -> None:
    text = canonical_json(replaced(MANIFEST_VALUE, place, value))
    if len(text) <= 16384:
        check_file(forged(GOOD, manifest_text=lambda _: text))


@bounded
@given(st.sampled_from(MANIFEST_PLACES), st.sampled_from(MANIFEST_PLACES))
def test_a_value_of_the_manifest_in_another_place_leaves_the_readers_whole(place: Any, source: Any) -> None:
    text = canonical_json(moved(MANIFEST_VALUE, place, source))
    if len(text) <= 16384:
        check_file(forged(GOOD, manifest_text=lambda _: text))


@bounded
@given(st.sampled_from(MANIFEST_PLACES))
def test_a_key_of_the_manifest_removed_leaves_the_readers_whole(place: Any) -> None:
    check_file(forged(GOOD, manifest_text=lambda _: canonical_json(removed(MANIFEST_VALUE, place))))


@settings(bounded, max_examples=2 * EXAMPLES)
@given(st.sampled_from(HEADER_PLACES), json_values)
def test_any_value_anywhere_in_the_header_leaves_the_readers_whole(place: Any, value: Any) -> None:
    text = json.dumps(replaced(HEADER_VALUE, place, value)).encode()
    if len(text) <= 4080:
        check_file(GOOD[:16] + text.ljust(4080, b" ") + GOOD[4096:])


@bounded
@given(st.data())
def test_any_bytes_in_any_section_leave_the_readers_whole(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["runtime.json", "engine.onnx", "weights.safetensors", "golden.msgpack.zst"]))
    content = part(name)
    position = data.draw(st.integers(0, min(len(content), 600)))
    removed_bytes = data.draw(st.integers(0, 40))
    inserted = data.draw(st.binary(max_size=40))
    check_file(with_section(name, content[:position] + inserted + content[position + removed_bytes :]))


@pytest.mark.parametrize("target", TARGETS)
def test_the_seeds_of_fuzzing_are_fine(target: str) -> None:
    for seed in seeds(target)[:8]:
        TARGETS[target](seed)
        TARGETS[target](seed[: len(seed) // 2])
