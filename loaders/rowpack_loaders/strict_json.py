"""Parse JSON that somebody else wrote, believing nothing about it.

Python's ``json`` accepts what other readers of the same file refuse or read differently: repeated keys (the
last wins), ``NaN``, integers of any size, lone surrogates. Two readers that disagree about a file are a
fault of the format, so everything on which readers may disagree is refused here with a code and a place.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

from rowpack_loaders.errors import RowpackError

MAX_DEPTH = 64
MAX_VALUES = 1_000_000
SMALLEST_INTEGER = -(2**63)
LARGEST_INTEGER = 2**63 - 1

# All up to the next bracket is one match, strings skipped whole, so brackets inside them do not count. Nothing
# backtracks, and closing quote and bracket are optional, so that hostile input costs one pass and not one a quote.
_UP_TO_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+"?+)*+([\[\]{}]|\Z)', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONGEST_INTEGER_TEXT = len(str(SMALLEST_INTEGER))


def parse_json(
    data: bytes | bytearray | memoryview,
    *,
    where: str,
    max_depth: int = MAX_DEPTH,
    max_values: int = MAX_VALUES,
) -> object:
    """Return the value that ``data`` holds as UTF-8 JSON, or raise :class:`RowpackError`.

    ``where`` names the text in errors (``"header"``, ``"manifest.json"``). Refused: a byte order mark, bytes
    that are not UTF-8, repeated keys, NaN and Infinity (also as ``1e999``), integers outside 64 signed bits
    and ``-0``, lone surrogates, nesting deeper than ``max_depth`` and more than ``max_values`` values. The
    caller bounds ``len(data)``; time and memory are linear in it.
    """
    text = _decode(bytes(data), where)
    _check_size(bytes(data), where, max_depth, max_values)

    def refuse_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
        collected = dict(pairs)
        if len(collected) != len(pairs):
            raise _duplicate_key(pairs, where)
        return collected

    def read_integer(digits: str) -> int:
        return _read_integer(digits, where)

    def read_number(digits: str) -> float:
        return _read_number(digits, where)

    def refuse_constant(name: str) -> object:
        raise _not_finite(name, where)

    try:
        value: object = json.loads(
            text,
            object_pairs_hook=refuse_repeated_keys,
            parse_int=read_integer,
            parse_float=read_number,
            parse_constant=refuse_constant,
        )
    except json.JSONDecodeError as error:
        raise RowpackError(
            "json_malformed",
            f"The text is not valid JSON: {error.msg}",
            where=f"{where}, character {error.pos}",
            found=repr(text[error.pos : error.pos + 16]) if error.pos < len(text) else "the end of the text",
            expected="one JSON value",
        ) from error
    if _SURROGATE_ESCAPE.search(data):
        _refuse_lone_surrogates(value, where)
    return value


def parse_json_object(
    data: bytes | bytearray | memoryview,
    *,
    where: str,
    max_depth: int = MAX_DEPTH,
    max_values: int = MAX_VALUES,
) -> dict[str, object]:
    """Return the JSON object in ``data``; as :func:`parse_json`, and any other kind of value is refused."""
    value = parse_json(data, where=where, max_depth=max_depth, max_values=max_values)
    if not isinstance(value, dict):
        raise RowpackError(
            "json_not_an_object",
            "The JSON text is not an object",
            where=where,
            found=json_type_name(value),
            expected="an object",
        )
    return value


def json_type_name(value: object) -> str:
    """Return the JSON name of a parsed value's type, for error messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number with a fraction"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, dict):
        return "an object"
    return "an array"


def json_pointer(*parts: str | int) -> str:
    """Return the JSON pointer (RFC 6901) of a place; errors put it behind ``manifest.json#``."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def is_json_integer(value: object) -> bool:
    """Tell whether ``value`` was written as an integer; ``true`` and ``1.0`` were not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _decode(data: bytes, where: str) -> str:
    if data.startswith(b"\xef\xbb\xbf"):
        raise RowpackError(
            "json_byte_order_mark",
            "The JSON text starts with a byte order mark",
            where=where,
            found="ef bb bf",
            expected="UTF-8 without a byte order mark",
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowpackError(
            "json_not_utf8",
            "The JSON text is not UTF-8",
            where=f"{where}, byte {error.start}",
            found=data[error.start : error.start + 4].hex(" "),
            expected="UTF-8",
        ) from error


def _check_size(data: bytes, where: str, max_depth: int, max_values: int) -> None:
    # Commas and openings inside strings are counted too: the bound is on work and need not be exact.
    openings = data.count(b"{") + data.count(b"[")
    values = data.count(b",") + openings + 1
    if values > max_values:
        raise RowpackError(
            "json_too_many_values",
            "The JSON text holds too many values",
            where=where,
            found=f"about {values}",
            expected=f"at most {max_values}",
        )
    if openings <= max_depth:
        return
    depth = 0
    for match in _UP_TO_BRACKET.finditer(data):
        bracket = match[1]
        if bracket in (b"{", b"["):
            depth += 1
            if depth > max_depth:
                raise RowpackError(
                    "json_too_deep",
                    "The JSON text is nested too deeply",
                    where=f"{where}, byte {match.start(1)}",
                    found=f"more than {max_depth} levels",
                    expected=f"at most {max_depth} levels",
                )
        elif bracket in (b"}", b"]"):
            depth -= 1


def _duplicate_key(pairs: Sequence[tuple[str, object]], where: str) -> RowpackError:
    seen: set[str] = set()
    repeated = ""
    for key, _ in pairs:
        if key in seen:
            repeated = key
            break
        seen.add(key)
    return RowpackError(
        "json_duplicate_key",
        "A JSON object names a key twice",
        where=where,
        found=repr(repeated[:128]),
        expected="each key once",
    )


def _read_integer(digits: str, where: str) -> int:
    # The length is looked at first: int() of a long text takes quadratic time.
    value = int(digits) if len(digits) <= _LONGEST_INTEGER_TEXT else None
    if value is None or not SMALLEST_INTEGER <= value <= LARGEST_INTEGER or digits == "-0":
        raise RowpackError(
            "json_integer_out_of_range",
            "A JSON integer is outside the range that every reader can hold",
            where=where,
            found=digits if len(digits) <= 40 else f"{digits[:40]}… ({len(digits)} digits)",
            expected=f"an integer from {SMALLEST_INTEGER} to {LARGEST_INTEGER}",
        )
    return value


def _read_number(digits: str, where: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _not_finite(digits[:40], where)
    return value


def _not_finite(text: str, where: str) -> RowpackError:
    return RowpackError(
        "json_not_finite",
        "A JSON number is not finite",
        where=where,
        found=text,
        expected="a finite number",
    )


def _refuse_lone_surrogates(value: object, where: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowpackError(
            "json_lone_surrogate",
            "A JSON string holds half of a surrogate pair",
            where=where,
            found=repr(error.object[error.start : error.start + 1]),
            expected="strings that are valid Unicode",
        ) from error
