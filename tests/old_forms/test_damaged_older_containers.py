"""Whatever happens to an older bundle: converting it ends well or with a code, and never in a wrong file."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import older_writers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowpack.bundle.migration import migrate
from rowpack_loaders import validate
from rowpack_loaders.errors import RowpackError

SAMPLES = older_writers.samples()

# Values that somebody might put where a size, a name or an object is expected.
ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, -1, 1, 2**31, 2**53 + 1, 10**9]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.just([]),
    st.just({}),
    st.lists(st.integers(-1, 99), max_size=3),
)


def outcome(data: bytes) -> str:
    """Convert a damaged bundle; return the code it is refused with, or ``valid``."""
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder) / "old.bundle", Path(folder) / "new.bundle"
        old.write_bytes(data)
        try:
            migrate(old, new)
        except RowpackError as error:
            assert sorted(path.name for path in Path(folder).iterdir()) == ["old.bundle"]
            return error.code
        report = validate(new)
        assert report.errors == [], "\n".join(map(str, report.errors))
        return "valid"


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_a_changed_byte(name: str, data: st.DataObject) -> None:
    sample = bytearray(SAMPLES[name])
    position = data.draw(st.integers(0, len(sample) - 1))
    sample[position] ^= data.draw(st.integers(1, 255))
    outcome(bytes(sample))


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_a_cut_file(name: str, data: st.DataObject) -> None:
    sample = SAMPLES[name]
    assert outcome(sample[: data.draw(st.integers(0, len(sample) - 1))]) != "valid", "the last section ends the file"


def with_changed_value(sample: bytes, section: str | None, path: list[str], value: Any) -> bytes:
    """Return a container whose header (or JSON section) has another value somewhere; lengths are mended."""
    (length,) = struct.unpack_from("<Q", sample, 8)
    header = json.loads(sample[16 : 16 + length])
    key = "length" if "format" in header else "size"
    places = {name: (entry["offset"], entry[key]) for name, entry in header["sections"].items()}
    sections = {name: sample[16 + length + start :][:size] for name, (start, size) in places.items()}
    changed = header if section is None else json.loads(sections[section])
    place = changed
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    if section is not None:
        sections[section] = json.dumps(changed).encode()
        offset = 0
        for name, data in sections.items():
            header["sections"][name] = {"offset": offset, key: len(data)}
            offset += len(data)
    return older_writers.container(sample[:8], json.dumps(header).encode(), sections)


def paths_of(value: Any, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the path of every member of nested objects."""
    if not isinstance(value, dict):
        return []
    found = []
    for key, member in value.items():
        found += [(*prefix, key), *paths_of(member, (*prefix, key))]
    return found


def described_values(sample: bytes) -> list[tuple[str | None, tuple[str, ...]]]:
    """Return every place in the header and in the JSON sections that describe the model."""
    (length,) = struct.unpack_from("<Q", sample, 8)
    header = json.loads(sample[16 : 16 + length])
    places: list[tuple[str | None, tuple[str, ...]]] = [(None, path) for path in paths_of(header)]
    for name, entry in header["sections"].items():
        if name in ("runtime.json", "config.json", "generation_config.json"):
            size = entry.get("length", entry.get("size"))
            data = sample[16 + length + entry["offset"] :][:size]
            places += [(name, path) for path in paths_of(json.loads(data))]
    return places


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_an_odd_value_anywhere(name: str, data: st.DataObject) -> None:
    try_odd_value(name, data)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_many_odd_values(name: str, data: st.DataObject) -> None:
    try_odd_value(name, data)


def try_odd_value(name: str, data: st.DataObject) -> None:
    """Put an odd value into some place of a sample that describes its model, and convert it."""
    section, path = data.draw(st.sampled_from(described_values(SAMPLES[name])))
    outcome(with_changed_value(SAMPLES[name], section, list(path), data.draw(ODD_VALUES)))
