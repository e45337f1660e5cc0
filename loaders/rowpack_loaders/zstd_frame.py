"""Unpack a section that is one zstandard frame, never to more bytes than its reader takes.

The frame's own statements are not believed: output is counted while it is made, the window it asks for is bounded, and
the frame must end where the section ends, so that no byte of it goes unread (RFC 8878, section 3.1.1).
"""

from __future__ import annotations

WINDOW_LIMIT_BYTES = 2**24
_MAGIC = bytes.fromhex("28 b5 2f fd")
_BLOCK_HEADER_BYTES = 3
_CHECKSUM_BYTES = 4
_REPEATED_BYTE_BLOCK = 1
_RESERVED_BLOCK = 3


class FrameError(ValueError):
    """The bytes are not one whole frame."""


class FrameTooLargeError(ValueError):
    """The frame unpacks to more bytes than are taken."""


def unpack_one_frame(data: bytes, limit_bytes: int) -> bytes:
    """Return what ``data`` unpacks to; raise :class:`FrameError` or :class:`FrameTooLargeError`."""
    import zstandard

    if not data.startswith(_MAGIC):
        raise FrameError(f"starts with {data[:4].hex(' ')!r}, not with {_MAGIC.hex(' ')!r}")
    try:
        end = _frame_end(data)
        if end != len(data):
            raise FrameError(f"{len(data)} bytes, of which the frame takes {end}")
        decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_LIMIT_BYTES)
        with decompressor.stream_reader(data, read_across_frames=False) as reader:
            unpacked: bytes = reader.read(limit_bytes + 1)
    except zstandard.ZstdError as error:
        raise FrameError(str(error)) from error
    if len(unpacked) > limit_bytes:
        raise FrameTooLargeError(f"more than {limit_bytes} bytes unpacked")
    return unpacked


def _frame_end(data: bytes) -> int:
    import zstandard

    parameters = zstandard.get_frame_parameters(data)
    position: int = zstandard.frame_header_size(data)
    is_last = False
    while not is_last:
        header = int.from_bytes(data[position : position + _BLOCK_HEADER_BYTES], "little")
        position += _BLOCK_HEADER_BYTES
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == _RESERVED_BLOCK:
            raise FrameError(f"a block of the reserved type before byte {position}")
        position += 1 if kind == _REPEATED_BYTE_BLOCK else size
        if position > len(data):
            raise FrameError(f"ends after {len(data)} bytes, inside a block that needs {position}")
    return position + (_CHECKSUM_BYTES if parameters.has_checksum else 0)
