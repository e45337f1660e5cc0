"""Write the keys of a published schema as a Markdown table: type, unit, meaning, who writes and who relies on each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rowpack_loaders.schema_data import load_schema

Schema = dict[str, Any]

WRITTEN_BY, FOR, UNIT = "x-written-by", "x-for", "x-unit"


@dataclass(frozen=True)
class KeyRow:
    """One key; ``written_by`` and ``use`` are those of the nearest part above that tells them."""

    path: str
    kind: str
    unit: str
    written_by: str
    use: str
    text: str


def key_table(name: str) -> str:
    """Return the table of every key of a schema; who writes and reads is told where the schema tells it."""
    rows = list(key_rows(load_schema(name)))
    told = any(row.written_by for row in rows)
    lines = ["| key | type | written by | for | meaning |" if told else "| key | type | meaning |"]
    lines.append("| --- | --- | --- | --- | --- |" if told else "| --- | --- | --- |")
    for row in rows:
        kind = f"{row.kind}, {row.unit}" if row.unit else row.kind
        who = f" {row.written_by} | {row.use} |" if told else ""
        lines.append(f"| `{row.path}` | {kind} |{who} {row.text} |")
    return "\n" + "\n".join(lines) + "\n"


def key_rows(schema: Schema) -> Iterator[KeyRow]:
    """Yield every key of a schema, outer ones first."""
    yield from _rows(schema, schema, "", {}, {})


def _rows(
    schema: Schema, part: Schema, prefix: str, opened: dict[int, str], inherited: dict[str, str]
) -> Iterator[KeyRow]:
    # A shared definition is opened where it is first used; ``opened`` holds those places.
    for key, value in part.get("properties", {}).items():
        resolved = resolve(schema, value)
        path = f"{prefix}{key}"
        optional = "" if key in part.get("required", []) else ", optional"
        here = {**inherited, **_annotations(resolved), **_annotations(value)}
        text = value.get("description") or resolved["description"]
        first = opened.setdefault(id(resolved), path)
        kind = type_name(schema, value) + optional
        unit = here.pop(UNIT, "")
        row = (path, kind, unit, here.get(WRITTEN_BY, ""), here.get(FOR, ""))
        if "properties" in resolved and first != path:
            yield KeyRow(*row, f"{text} Its keys are those of `{first}`.")
            continue
        yield KeyRow(*row, text)
        yield from _rows(schema, resolved, f"{path}.", opened, here)
        for suffix, inner in (("[]", resolved.get("items")), (".*", resolved.get("additionalProperties"))):
            if isinstance(inner, dict):
                yield from _rows(schema, resolve(schema, inner), f"{path}{suffix}.", opened, here)


def _annotations(part: Schema) -> dict[str, str]:
    return {key: part[key] for key in (WRITTEN_BY, FOR, UNIT) if key in part}


def resolve(schema: Schema, part: Schema) -> Schema:
    """Follow a reference, also one of "an object or null"."""
    if "anyOf" in part and "$ref" in part["anyOf"][0]:
        part = part["anyOf"][0]
    if "$ref" in part:
        found: Schema = schema["$defs"][part["$ref"].removeprefix("#/$defs/")]
        return found
    return part


def type_name(schema: Schema, part: Schema) -> str:
    """Return the type of a value in words."""
    nullable = " or null" if {"type": "null"} in part.get("anyOf", []) else ""
    part = resolve(schema, part)
    if "const" in part:
        return f"`{json.dumps(part['const']).strip(chr(34))}`"
    if "enum" in part:
        return ", ".join(f"`{json.dumps(value).strip(chr(34))}`" for value in part["enum"])
    kind = part.get("type", "value")
    return (" or ".join(kind) if isinstance(kind, list) else str(kind)) + nullable
