"""Check parsed JSON against one of the published schemas and tell each violation as a problem."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from rowpack_loaders.errors import Problem
from rowpack_loaders.schema_data import load_schema
from rowpack_loaders.strict_json import is_json_integer, json_pointer, json_type_name

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError


def schema_problems(value: object, schema_name: str, where: str) -> Iterator[Problem]:
    """Yield a problem for each violation of the schema, with the JSON pointer of its place behind ``where#``.

    Codes: ``schema_key_missing``, ``schema_key_unknown``, ``schema_value_invalid``.
    """
    for error in _validator(schema_name).iter_errors(value):
        yield from _problems(error, f"{where}#{json_pointer(*error.absolute_path)}")


@cache
def _validator(schema_name: str) -> Any:
    from jsonschema import Draft202012Validator, validators
    from jsonschema.exceptions import ValidationError

    def pattern(validator: object, wanted: str, instance: object, schema: object) -> Iterator[ValidationError]:
        # Python's $ also matches before a closing line feed, that of JSON Schema (ECMA 262) does not.
        if isinstance(instance, str) and re.search(wanted.replace("$", r"\Z"), instance) is None:
            yield ValidationError(f"{instance!r} does not match {wanted!r}")

    # JSON Schema takes 1.0 for an integer; readers in other languages do not.
    strict_types = Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda checker, instance: is_json_integer(instance)
    )
    extend: Any = validators.extend
    schema = load_schema(schema_name)
    complete = _without_references(schema, schema.get("$defs", {}))
    return extend(Draft202012Validator, {"pattern": pattern}, type_checker=strict_types)(complete)


def _without_references(part: Any, definitions: Any) -> Any:
    """Return the schema with each definition where it is referred to, none of which refers to itself.

    The library looks every reference up for every value; without any a manifest is checked in half the time.
    """
    if isinstance(part, list):
        return [_without_references(member, definitions) for member in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        part = {**definitions[part["$ref"].removeprefix("#/$defs/")], **part}
        del part["$ref"]
    return {key: _without_references(value, definitions) for key, value in part.items()}


def _problems(error: ValidationError, where: str) -> Iterator[Problem]:
    if error.validator == "required":
        yield from _missing_keys(error, where)
    elif error.validator == "additionalProperties":
        yield from _unknown_keys(error, where)
    elif error.validator == "anyOf" and isinstance(error.instance, dict):
        # An object or null: what is wrong is inside the object, and only the first alternative takes one.
        for inner in error.context:
            if inner.schema_path[0] == 0:
                yield from _problems(inner, where + json_pointer(*inner.relative_path))
    else:
        yield Problem(
            "schema_value_invalid",
            "A value does not follow the schema",
            where=where,
            found=_shown(error.instance),
            expected=_expectation(error),
        )


def _missing_keys(error: ValidationError, where: str) -> Iterator[Problem]:
    # The library yields one error a missing key, and names the key only in its message.
    wanted: Any = error.validator_value
    instance: Any = error.instance
    for key in wanted:
        if key not in instance and error.message.startswith(repr(key)):
            yield Problem(
                "schema_key_missing",
                "An object lacks a key",
                where=where,
                found=", ".join(list(instance)[:20])[:200] or "no keys",
                expected=key,
            )


def _unknown_keys(error: ValidationError, where: str) -> Iterator[Problem]:
    schema: Any = error.schema
    known = schema.get("properties", {})
    instance: Any = error.instance
    for key in instance:
        if key not in known:
            yield Problem(
                "schema_key_unknown",
                "An object has a key that its schema does not have",
                where=where + json_pointer(key[:128]),
                found=repr(key[:128]),
                expected=f"only {', '.join(known)}"[:400],
            )


def _expectation(error: ValidationError) -> str:
    schema: Any = error.schema
    keyword = error.validator
    if keyword == "type":
        wanted = error.validator_value
        return " or ".join(wanted) if isinstance(wanted, list) else str(wanted)
    if keyword in ("enum", "const"):
        return _shown(error.validator_value)
    description = schema.get("description", "") if isinstance(schema, dict) else ""
    return f"{keyword} {_shown(error.validator_value)}" if keyword != "anyOf" else str(description)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return json_type_name(value)
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:160]}…"
