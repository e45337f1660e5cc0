"""docs/format.md says what the schemas and the writer do: its generated parts are made again here.

``python tests/container/test_format_document.py`` writes them anew.
"""

from __future__ import annotations

import json
import re
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from synthetic_bundles import BundleParts

from rowpack_loaders.schema_data import load_schema

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "format.md"


def manifest_keys() -> str:
    """Return the table of every manifest key with its type and meaning, from the schema."""
    schema: dict[str, Any] = load_schema("manifest")
    rows = "".join(f"| `{path}` | {kind} | {text} |\n" for path, kind, text in key_rows(schema, schema, "", {}))
    return f"\n| key | type | meaning |\n| --- | --- | --- |\n{rows}"


def key_rows(
    schema: dict[str, Any], part: dict[str, Any], prefix: str, opened: dict[int, str]
) -> Iterator[tuple[str, str, str]]:
    """Yield path, type and description of every key below ``part``.

    A shared definition is opened where it is first used; ``opened`` holds those places.
    """
    for key, value in part.get("properties", {}).items():
        resolved = resolve(schema, value)
        path = f"{prefix}{key}"
        optional = "" if key in part.get("required", []) else ", optional"
        text = value.get("description") or resolved["description"]
        first = opened.setdefault(id(resolved), path)
        if "properties" in resolved and first != path:
            yield path, type_name(schema, value) + optional, f"{text} Its keys are those of `{first}`."
            continue
        yield path, type_name(schema, value) + optional, text
        yield from key_rows(schema, resolved, f"{path}.", opened)
        for suffix, inner in (("[]", resolved.get("items")), (".*", resolved.get("additionalProperties"))):
            if isinstance(inner, dict):
                yield from key_rows(schema, resolve(schema, inner), f"{path}{suffix}.", opened)


def resolve(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference, also one of "an object or null"."""
    if "anyOf" in part and "$ref" in part["anyOf"][0]:
        part = part["anyOf"][0]
    if "$ref" in part:
        found: dict[str, Any] = schema["$defs"][part["$ref"].removeprefix("#/$defs/")]
        return found
    return part


def type_name(schema: dict[str, Any], part: dict[str, Any]) -> str:
    """Return the type of a value in words."""
    nullable = " or null" if {"type": "null"} in part.get("anyOf", []) else ""
    part = resolve(schema, part)
    if "enum" in part:
        return ", ".join(f"`{json.dumps(value).strip(chr(34))}`" for value in part["enum"])
    kind = part.get("type", "value")
    return (" or ".join(kind) if isinstance(kind, list) else str(kind)) + nullable


def hexdump() -> str:
    """Return the start of each part of a small bundle, as hexdump prints it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.bundle"
        # Without the golden vectors, whose stored form depends on the version of the zstd library.
        unverified = BundleParts(without={"golden.msgpack.zst"})
        unverified.manifest["self_test"] = None
        unverified.write(path)
        data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data, 8)
    places = json.loads(data[16 : 16 + length])["sections"]
    (trailer,) = struct.unpack("<Q", data[-16:-8])
    parts = [("magic, header length, header", 0, 64)]
    for name in ("manifest.json", "engine.onnx", "weights.safetensors"):
        parts.append((f"{name}, {places[name]['length']} bytes", 16 + length + places[name]["offset"], 32))
    parts.append((f"trailer, {trailer} bytes of JSON, then their number and the magic", len(data) - trailer - 16, 32))
    parts.append(("", len(data) - 16, 16))
    lines = []
    for title, start, count in parts:
        if title:
            lines.append(f"# {title}")
        lines.extend(hexdump_line(data, offset) for offset in range(start, start + count, 16))
    return "\n```\n" + "\n".join(lines) + "\n```\n"


def hexdump_line(data: bytes, offset: int) -> str:
    """Return one line: offset, sixteen bytes, the printable ones as text."""
    piece = data[offset : offset + 16]
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
    return f"{offset:08x}  {piece.hex(' '):47}  {text}"


def generated(document: str) -> str:
    """Return the document with its generated parts made anew."""
    for name, made in (("hexdump", hexdump()), ("manifest keys", manifest_keys())):
        pattern = re.compile(rf"(<!-- {name}: [^\n]*-->)\n.*?(<!-- end of {name} -->)", re.DOTALL)
        (found,) = pattern.finditer(document)
        document = f"{document[: found.start()]}{found[1]}{made}{found[2]}{document[found.end() :]}"
    return document


def test_the_generated_parts_are_those_of_today() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    assert document == generated(document), f"run: python {Path(__file__).name}"


def test_the_document_names_every_schema_and_every_trailer_key() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    for name in ("header", "manifest", "runtime.qwen3_5", "runtime.rwkv", "golden", "validate_report"):
        assert f"schema/{name}.schema.json" in document
    for key in ("trailer_version", "header_sha256", "manifest_sha256", "file_digest", "provenance_sha256"):
        assert f"`{key}`" in document


if __name__ == "__main__":
    DOCUMENT.write_text(generated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit()
