"""Follow the protobuf wire format: varints and length-delimited fields, every length checked against its message.

Protobuf lets a field that should occur once occur again: the last value wins, and repeated messages are merged. Readers
that take the first value would see another model than the runtime does, so :class:`Message` refuses the repetition.
"""

from __future__ import annotations

from collections.abc import Iterator

from rowpack_loaders.errors import RowpackError

VARINT = 0
FIXED64 = 1
LENGTH_DELIMITED = 2
FIXED32 = 5

_VARINT_LIMIT_BYTES = 10
_FIXED_BYTES = {FIXED32: 4, FIXED64: 8}


def fields(data: memoryview, where: str) -> Iterator[tuple[int, int | memoryview, int, int]]:
    """Yield (field number, value, start, end) of a message's fields in order; ``data[start:end]`` has the tag too.

    The value is an integer for varints and a view for everything else. Raises ``onnx_malformed``.
    """
    position, end = 0, len(data)
    while position < end:
        start = position
        # Nearly every tag and length is one byte; a call for each would take a third of the time.
        tag, position = data[position], position + 1
        if tag > 0x7F:
            tag, position = _varint(data, start, where)
        wire_type = tag & 7
        if wire_type in _FIXED_BYTES:
            length = _FIXED_BYTES[wire_type]
        elif wire_type in (LENGTH_DELIMITED, VARINT):
            if position < end and data[position] <= 0x7F:
                length, position = data[position], position + 1
            else:
                length, position = _varint(data, position, where)
        else:
            raise malformed(where, f"wire type {wire_type}", "0, 1, 2 or 5")
        if tag < 8:
            raise malformed(where, "a field with the number 0", "field numbers from 1")
        if wire_type == VARINT:
            yield tag >> 3, length, start, position
            continue
        if length > end - position:
            raise malformed(where, f"a field of {length} bytes", f"at most {end - position} bytes")
        position += length
        yield tag >> 3, data[position - length : position], start, position


def messages_among(data: memoryview, wanted: int, where: str) -> Iterator[tuple[memoryview, int, int]]:
    """Yield (content, start, end) of each message in the field ``wanted``; no other field is looked into.

    For the thousands of nodes of a graph, of which none is needed. The fields are those of :func:`fields`, and a
    number in place of a message is refused as by :class:`Message`. Raises ``onnx_malformed``.
    """
    position, end = 0, len(data)
    while position < end:
        tag = data[position]
        if tag & 0x87 != LENGTH_DELIMITED or tag < 8 or position + 2 >= end:
            for number, value, start, stop in fields(data[position:], where):
                if number == wanted:
                    yield _message(value, number, where), position + start, position + stop
                position += stop
                break
            continue
        start = position
        length, position = data[position + 1], position + 2
        if length > 0x7F:
            if data[position] <= 0x7F:
                length, position = length & 0x7F | data[position] << 7, position + 1
            else:
                length, position = _varint(data, start + 1, where)
        if length > end - position:
            raise malformed(where, f"a field of {length} bytes", f"at most {end - position} bytes")
        position += length
        if tag >> 3 == wanted:
            yield data[position - length : position], start, position


class Message:
    """The fields of one message by number; every getter raises ``onnx_malformed`` for a value of the wrong form."""

    def __init__(self, data: memoryview, where: str) -> None:
        self.where = where
        self._values: dict[int, list[int | memoryview]] = {}
        for number, value, _, _ in fields(data, where):
            if number in self._values:
                self._values[number].append(value)
            else:
                self._values[number] = [value]

    def __contains__(self, number: int) -> bool:
        return number in self._values

    def integer(self, number: int, default: int = 0) -> int:
        """Return a varint that occurs at most once, as a signed 64-bit integer."""
        value = self._single(number)
        if value is None:
            return default
        if not isinstance(value, int):
            raise malformed(self.where, f"bytes in field {number}", "a number")
        return signed(value)

    def integers(self, number: int) -> tuple[int, ...]:
        """Return repeated varints, packed or not, as signed 64-bit integers."""
        found: list[int] = []
        for value in self._values.get(number, ()):
            if isinstance(value, int):
                found.append(signed(value))
                continue
            position = 0
            while position < len(value):
                item, position = _varint(value, position, self.where)
                found.append(signed(item))
        return tuple(found)

    def text(self, number: int, default: str = "") -> str:
        """Return a string that occurs at most once."""
        value = self._single(number)
        return default if value is None else _text(value, number, self.where)

    def message(self, number: int) -> memoryview | None:
        """Return the bytes of a message that occurs at most once, or None."""
        value = self._single(number)
        return None if value is None else _message(value, number, self.where)

    def messages(self, *numbers: int) -> Iterator[memoryview]:
        """Yield the bytes of repeated messages."""
        for number in numbers:
            for value in self._values.get(number, ()):
                yield _message(value, number, self.where)

    def _single(self, number: int) -> int | memoryview | None:
        values = self._values.get(number)
        if values is None:
            return None
        if len(values) > 1:
            raise malformed(self.where, f"field {number} {len(values)} times", "at most once")
        return values[0]


def text_pair(data: memoryview, where: str) -> tuple[str, str]:
    """Return the strings in fields 1 and 2 of a message, each "" where it is missing.

    Most such messages are two short strings and nothing else, which is seen from four bytes.
    """
    if len(data) >= 4 and data[0] == 1 << 3 | LENGTH_DELIMITED and data[1] <= min(0x7F, len(data) - 4):
        second = 2 + data[1]
        rest = len(data) - second - 2
        if data[second] == 2 << 3 | LENGTH_DELIMITED and data[second + 1] == rest <= 0x7F:
            return _text(data[2:second], 1, where), _text(data[second + 2 :], 2, where)
    pair = Message(data, where)
    return pair.text(1), pair.text(2)


def signed(value: int) -> int:
    """Return the signed 64-bit integer that a varint stands for."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def encoded_field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field."""
    if number < 16 and len(content) < 128:
        return bytes((number << 3 | LENGTH_DELIMITED, len(content))) + content
    return encoded_varint(number << 3 | LENGTH_DELIMITED) + encoded_varint(len(content)) + content


def encoded_integer(number: int, value: int) -> bytes:
    """Return a varint field; a negative value is written as its 64 bits."""
    return encoded_varint(number << 3 | VARINT) + encoded_varint(value & 2**64 - 1)


def encoded_varint(value: int) -> bytes:
    """Return a non-negative integer as a varint."""
    if value <= 0x7F:
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def malformed(where: str, found: str, expected: str) -> RowpackError:
    """Return the error for bytes that are not the message they should be."""
    return RowpackError(
        "onnx_malformed",
        "The bytes are not an ONNX model",
        where=where,
        found=found[:200],
        expected=expected,
        remedy="Build the bundle again, or copy it again if it was damaged",
    )


def _message(value: int | memoryview, number: int, where: str) -> memoryview:
    if isinstance(value, int):
        raise malformed(where, f"a number in field {number}", "a message")
    return value


def _text(value: int | memoryview, number: int, where: str) -> str:
    if isinstance(value, int):
        raise malformed(where, f"a number in field {number}", "text")
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise malformed(where, "a name that is not UTF-8", "UTF-8 text") from error


def _varint(data: memoryview, position: int, where: str) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_LIMIT_BYTES):
        if position + index >= len(data):
            break
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return value, position + index + 1
    raise malformed(where, "a number without an end", f"a varint of at most {_VARINT_LIMIT_BYTES} bytes")
