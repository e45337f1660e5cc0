"""What strict JSON accepts, and each thing on which readers could disagree."""

from __future__ import annotations

import json
import time

import pytest

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.strict_json import is_json_integer, json_pointer, parse_json, parse_json_object

REFUSED = {
    "byte order mark": (b"\xef\xbb\xbf{}", "json_byte_order_mark"),
    "not UTF-8": (b'{"a":"\xff"}', "json_not_utf8"),
    "surrogate bytes": (b'"\xed\xa0\x80"', "json_not_utf8"),
    "UTF-16": ("{}".encode("utf-16-le"), "json_malformed"),
    "empty": (b"", "json_malformed"),
    "two values": (b"{}{}", "json_malformed"),
    "trailing comma": (b"[1,]", "json_malformed"),
    "single quotes": (b"{'a':1}", "json_malformed"),
    "control character in a string": (b'"a\nb"', "json_malformed"),
    "NUL behind the value": (b"{}\0", "json_malformed"),
    "duplicate key": (b'{"a":1,"a":1}', "json_duplicate_key"),
    "duplicate key by escape": (b'{"a":1,"\\u0061":2}', "json_duplicate_key"),
    "duplicate key inside": (b'{"x":[{"a":1,"a":2}]}', "json_duplicate_key"),
    "NaN": (b'{"a":NaN}', "json_not_finite"),
    "Infinity": (b"[-Infinity]", "json_not_finite"),
    "overflowing number": (b"[1e999]", "json_not_finite"),
    "2^63": (b"[9223372036854775808]", "json_integer_out_of_range"),
    "below -2^63": (b"[-9223372036854775809]", "json_integer_out_of_range"),
    "10,000 digits": (b"[" + b"9" * 10_000 + b"]", "json_integer_out_of_range"),
    "minus zero": (b"[-0]", "json_integer_out_of_range"),
    "lone surrogate": (b'"\\ud800"', "json_lone_surrogate"),
    "lone surrogate in a key": (b'{"\\udc00":1}', "json_lone_surrogate"),
    "65 levels": (b"[" * 65 + b"]" * 65, "json_too_deep"),
    "a million levels": (b"[" * 500_000, "json_too_deep"),
    "too many values": (b"[" + b"0," * 1_000_000 + b"0]", "json_too_many_values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_readers_could_disagree_about_is_refused(name: str) -> None:
    data, code = REFUSED[name]
    with pytest.raises(RowpackError) as caught:
        parse_json(data, where="the text")
    assert caught.value.code == code
    assert caught.value.problem.where is not None
    assert caught.value.problem.where.startswith("the text")


@pytest.mark.parametrize(
    "text",
    [
        '{"a":[1,2.5,-3,"x",null,true,false,{}],"b":{"c":[]}}',
        '{"a":1,"b":{"a":1}}',
        " [ 9223372036854775807 , -9223372036854775808 ] ",
        '"\\ud83d\\ude00 and 😀"',
        "[" * 64 + "]" * 64,
        '{"brackets in a string":"' + "[{" * 100 + '","escaped \\" quote":"[[["}',
    ],
)
def test_ordinary_json_reads_as_by_the_standard_library(text: str) -> None:
    assert parse_json(text.encode(), where="text") == json.loads(text)


def test_only_objects_where_an_object_is_wanted() -> None:
    assert parse_json_object(b'{"a":1}', where="text") == {"a": 1}
    with pytest.raises(RowpackError, match="json_not_an_object"):
        parse_json_object(b"[1]", where="text")


def test_unclosed_strings_cost_one_pass() -> None:
    # Each quote could start a string: a scanner that tried them all would take minutes.
    hostile = b"[" * 65 + b'"\\' * 2_000_000
    started = time.perf_counter()
    with pytest.raises(RowpackError):
        parse_json(hostile, where="text")
    assert time.perf_counter() - started < 5


def test_depth_is_counted_outside_of_strings_only() -> None:
    shallow = '"{[\\\\", "\\"[", ' * 40
    text = "[" * 64 + shallow + "[0], " + shallow
    with pytest.raises(RowpackError) as refused:
        parse_json(text.encode(), where="text")
    assert refused.value.code == "json_too_deep"
    assert refused.value.problem.where == f"text, byte {64 + len(shallow)}"
    assert parse_json(("[" * 63 + shallow + "[0]" + "]" * 63).encode(), where="text")


def test_true_and_one_point_zero_are_not_integers() -> None:
    assert [is_json_integer(value) for value in (1, True, 1.0, "1")] == [True, False, False, False]


def test_pointers_are_escaped() -> None:
    assert json_pointer("a/b", 3, "~") == "/a~1b/3/~0"
