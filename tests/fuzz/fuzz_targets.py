"""What fuzzing runs on each input: every way of reading a bundle, and what must hold whatever the bytes are.

- Reading raises :class:`RowpackError` or nothing; the validator raises nothing.
- Every code is explained, and a report is JSON.
- What the validator calls valid opens and describes a model; what cannot be opened is not valid.
- Two readers of one text agree: ours and the library's, where the library's is not laxer by design.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgpack
from forged_bundles import MANIFEST, forged, frame, good_bundle, place_of, raw_frame, sections_end
from vector_recipes import piece_bytes

from rowpack_loaders.bundle import open_bundle
from rowpack_loaders.errors import Problem, RowpackError
from rowpack_loaders.model_description import describe_model
from rowpack_loaders.onnx_interface import has_misplaced_external_data, read_onnx_interface
from rowpack_loaders.onnx_wire import relocate_external_data
from rowpack_loaders.safetensors_header import parse_header
from rowpack_loaders.schema_data import error_codes
from rowpack_loaders.strict_json import parse_json
from rowpack_loaders.strict_msgpack import unpack_msgpack
from rowpack_loaders.validation import Report, manifest_rules, validate

GOOD = good_bundle()
LONGEST_SEED_BYTES = 65_536
_FILE = Path(f"/dev/shm/rowpack-fuzz-{os.getpid()}" if Path("/dev/shm").is_dir() else f"rowpack-fuzz-{os.getpid()}")


def check_file(data: bytes, *, header_is_new: bool = True) -> Report:
    """Run every reader over a file of ``data``; raise AssertionError, or whatever a reader raised.

    Where only a section changed there is nothing new in a header-only check, which is then left out.
    """
    _FILE.write_bytes(data)
    try:
        report = validate(_FILE)
        opens = _opens(_FILE)
        header_report = validate(_FILE, header_only=True) if header_is_new else None
    finally:
        _FILE.unlink()
    for problem in [*report.errors, *report.warnings]:
        assert problem.code in error_codes(), problem.code
        assert problem.where, problem.code
    json.dumps(report.as_json()).encode()
    assert opens or not report.valid, "valid, and does not open"
    if header_report is not None:
        told = {problem.code for problem in header_report.errors} - {"header_too_long"}
        assert told <= {problem.code for problem in report.errors}, "told by the header alone, and not by the whole"
    return report


def remember_schema_checks() -> None:
    """Check a manifest that was seen before only once: it takes half of the time of a validation."""
    check, seen = manifest_rules.schema_problems, dict[str, list[Problem]]()

    def checked(value: object, schema_name: str, where: str) -> Iterator[Problem]:
        key = json.dumps([value, schema_name])
        if key not in seen:
            if len(seen) > 1000:
                seen.clear()
            seen[key] = list(islice(check(value, schema_name, where), 200))
        yield from seen[key]

    manifest_rules.schema_problems = checked


def container(data: bytes) -> None:
    """Take ``data`` for a file."""
    check_file(data)


def header(data: bytes) -> None:
    """Take ``data`` for the header of the good bundle."""
    check_file(GOOD[:8] + len(data).to_bytes(8, "little") + data + GOOD[4096:])


def manifest(data: bytes) -> None:
    """Take ``data`` for the manifest of the good bundle, with a trailer that vouches for it."""
    if len(data) <= 16384:
        check_file(forged(GOOD, manifest_text=lambda _: data))


def trailer(data: bytes) -> None:
    """Take ``data`` for the text of the good bundle's trailer."""
    check_file(GOOD[: sections_end(GOOD)] + frame(data), header_is_new=False)


def runtime_json(data: bytes) -> None:
    """Take ``data`` for runtime.json."""
    check_file(with_section("runtime.json", data), header_is_new=False)


def weights(data: bytes) -> None:
    """Take ``data`` for the weight section, and its beginning for a safetensors header."""
    try:
        tensors = parse_header(data, total_bytes=len(data), where="fuzz")
        assert all(tensor.end_bytes <= len(data) for tensor in tensors.values())
    except RowpackError:
        pass
    check_file(with_section("weights.safetensors", data), header_is_new=False)


def onnx(data: bytes) -> None:
    """Take ``data`` for the decode engine."""
    try:
        interface = read_onnx_interface(data, where="fuzz")
        assert has_misplaced_external_data(data, len(interface.weights), where="fuzz") == bool(interface.misplaced)
        moved = read_onnx_interface(relocate_external_data(data, "x", 7, where="fuzz"), where="fuzz")
        assert [weight.name for weight in moved.weights] == [weight.name for weight in interface.weights]
        assert all(weight.location == "x" and weight.offset_bytes >= 7 for weight in moved.weights)
    except RowpackError as error:
        assert error.code == "onnx_malformed"
    check_file(with_section("engine.onnx", data), header_is_new=False)


def golden(data: bytes) -> None:
    """Take ``data`` for the golden section, and for what is packed in it."""
    check_file(with_section("golden.msgpack.zst", data), header_is_new=False)
    check_file(with_section("golden.msgpack.zst", raw_frame(data)), header_is_new=False)


def json_text(data: bytes) -> None:
    """Hold the strict JSON reader against the standard library's: it takes less, and never otherwise."""
    try:
        ours = parse_json(data, where="fuzz")
    except RowpackError:
        return
    assert ours == json.loads(data)


def msgpack_bytes(data: bytes) -> None:
    """Hold the strict MessagePack reader against the library's."""
    try:
        ours = unpack_msgpack(data)
    except ValueError:
        return
    assert ours == msgpack.unpackb(data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        container,
        header,
        manifest,
        trailer,
        runtime_json,
        weights,
        onnx,
        golden,
        json_text,
        msgpack_bytes,
    )
}


def seeds(target: str) -> list[bytes]:
    """Return good inputs of a target, for a fuzzer to begin with."""
    parts = {
        name: part(name) for name in (MANIFEST, "runtime.json", "weights.safetensors", "engine.onnx", "prefill.onnx")
    }
    packed = part("golden.msgpack.zst")
    of_target: dict[str, list[bytes]] = {
        "container": [GOOD, *bad_vectors()],
        "header": [GOOD[16:4096], GOOD[16:4096].rstrip(b" ")],
        "manifest": [parts[MANIFEST]],
        "trailer": [GOOD[sections_end(GOOD) : -16]],
        "runtime_json": [parts["runtime.json"]],
        "weights": [parts["weights.safetensors"]],
        "onnx": [parts["engine.onnx"], parts["prefill.onnx"]],
        "golden": [packed, packed[13:]],
        "json_text": [parts["runtime.json"], parts[MANIFEST]],
        "msgpack_bytes": [packed[16:]],
    }
    return of_target[target]


def bad_vectors() -> Iterator[bytes]:
    """Yield the files of ``schema/vectors/bad`` that are small."""
    vectors = Path(__file__).resolve().parents[2] / "schema" / "vectors"
    for path in sorted(vectors.glob("bad/*/recipe.json")):
        recipe = json.loads(path.read_text(encoding="utf-8"))
        base = (vectors / recipe["base"]).read_bytes() if recipe["base"] else b""
        pieces = [piece_bytes(piece, base) for piece in recipe["pieces"]]
        if recipe["kind"] == "file" and sum(len(data) * count for data, count in pieces) <= LONGEST_SEED_BYTES:
            yield b"".join(data * count for data, count in pieces)


def part(name: str) -> bytes:
    """Return a section of the good bundle."""
    start, end = place_of(GOOD, name)
    return GOOD[start:end]


def with_section(name: str, data: bytes) -> bytes:
    """Return the good bundle with other bytes in a section, moved behind the others where it is longer.

    Header and trailer follow; the manifest keeps its length and digest of the section, which a validator tells
    beside everything else.
    """
    start, end = place_of(GOOD, name)

    def follow(table: dict[str, Any]) -> None:
        table["sections"][name].update(length=len(data), offset=start - 4096)
        if len(data) > end - start:
            table["sections"][name]["offset"] = sections_end(GOOD) - 4096

    def replace(payload: bytes) -> bytes:
        if len(data) > end - start:
            return payload + data
        return payload[: start - 4096] + data.ljust(end - start, b"\0") + payload[end - 4096 :]

    return forged(GOOD, header=follow, payload=replace)


def _opens(path: Path) -> bool:
    try:
        with open_bundle(path) as bundle:
            describe_model(bundle.manifest)
    except RowpackError as error:
        assert error.code in error_codes(), error.code
        return False
    return True
