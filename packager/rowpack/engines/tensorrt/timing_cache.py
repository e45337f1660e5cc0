"""The file of measured kernel times that makes a second build of full TensorRT fast and repeatable."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

from rowpack_loaders.errors import RowpackError


def read_timing_cache(path: Path | None) -> bytes | None:
    """Return the cache's bytes, empty when the file is not there yet, None when no cache is wanted."""
    if path is None:
        return None
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise _unusable(path, error) from error


def write_timing_cache(path: Path | None, encoded: str | None) -> str | None:
    """Replace the file by the cache a build ended with (base64); return its SHA-256, None without a cache."""
    if path is None or encoded is None:
        return None
    data = base64.b64decode(encoded)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise _unusable(path, error) from error
    return hashlib.sha256(data).hexdigest()


def _unusable(path: Path, error: OSError) -> RowpackError:
    return RowpackError(
        "timing_cache_unusable",
        "the timing cache cannot be read or written",
        where=str(path),
        found=str(error.strerror),
        expected="a file this program may read and replace, or a new name in a folder it may write to",
        remedy="Name another file with --timing-cache.",
    )
