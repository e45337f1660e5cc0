"""Print a bundle as bytes with what they are beside them, the long stretches left out."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

WIDTH = 16


def annotated_hexdump(data: bytes) -> str:
    """Return the dump of a whole bundle: every field, and the first bytes of whatever is long."""
    (header_length,) = struct.unpack_from("<Q", data, 8)
    start = 16 + header_length
    header = data[16:start]
    text_length = len(header.rstrip(b" "))
    places = sorted(json.loads(header)["sections"].items(), key=lambda item: int(item[1]["offset"]))
    lines = [
        *field(data, 0, 8, "magic: BUNDLE, 1, 0"),
        *field(data, 8, 8, f"H = {header_length:#x} = {header_length}, so the payload starts at {start:#x}"),
        *whole(data, 16, text_length, "the header's JSON"),
        *stretch(data, 16 + text_length, header_length - text_length, "spaces up to the payload"),
    ]
    end = start
    for name, place in places:
        begin, length = start + place["offset"], place["length"]
        if begin > end:
            lines += stretch(data, end, begin - end, "zeros up to the next multiple of 4096")
        lines += [f"-- {name}: offset {place['offset']:#x} of the payload, {length} bytes"]
        lines += section(data, name, begin, length)
        end = begin + length
    (trailer_length,) = struct.unpack_from("<Q", data, len(data) - 16)
    lines += ["-- trailer, right behind the last section"]
    lines += stretch(data, end, trailer_length, "the trailer's JSON")
    lines += field(data, len(data) - 16, 8, f"its length, {trailer_length}")
    lines += field(data, len(data) - 8, 8, "magic: PROV, 1, 0, 0, 0; the file ends here")
    return "\n".join(lines)


def section(data: bytes, name: str, begin: int, length: int) -> Iterator[str]:
    """Yield the lines of one section."""
    if name == "weights.safetensors":
        (header_length,) = struct.unpack_from("<Q", data, begin)
        yield from field(data, begin, 8, f"safetensors: {header_length} bytes of header")
        yield from stretch(data, begin + 8, header_length, "its JSON, padded with spaces")
        yield from stretch(data, begin + 8 + header_length, length - 8 - header_length, "the tensors, back to back")
    elif name.endswith(".zst"):
        yield from field(data, begin, 4, "magic of a zstandard frame")
        yield from stretch(data, begin + 4, length - 4, "the frame")
    else:
        what = "protobuf: an ONNX ModelProto" if name.endswith(".onnx") else "JSON"
        yield from stretch(data, begin, length, what)


def field(data: bytes, begin: int, length: int, what: str) -> Iterator[str]:
    """Yield a short field, whole."""
    yield f"{begin:08x}  {data[begin : begin + length].hex(' '):{3 * WIDTH - 1}}  {what}"


def whole(data: bytes, begin: int, length: int, what: str) -> Iterator[str]:
    """Yield every byte of a stretch."""
    for start in range(begin, begin + length, WIDTH):
        (line,) = stretch(data, start, min(WIDTH, begin + length - start), what if start == begin else "")
        yield line.rstrip()


def stretch(data: bytes, begin: int, length: int, what: str) -> Iterator[str]:
    """Yield the first bytes of a stretch, and say how much is left out."""
    piece = data[begin : begin + min(length, WIDTH)]
    shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
    yield f"{begin:08x}  {piece.hex(' '):{3 * WIDTH - 1}}  {shown:{WIDTH}}  {what}"
    if length > WIDTH:
        yield f"          … {length - WIDTH} bytes more"
