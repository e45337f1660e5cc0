"""Keep a large mapping from filling the resident set while engines run over it.

A smoke run touches every weight once a launch. The pages are the file's own and the kernel could drop them at any
time, but they count as resident; giving them back as they go keeps a build's peak at a bound that does not depend
on the model. They stay in the page cache, so the next launch finds them there.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rowpack_loaders.host_memory import process_memory
from rowpack_loaders.mapped_section import MappedSection

RESIDENT_LIMIT_BYTES = 256 * 2**20
_CHECK_SECONDS = 0.01


@contextmanager
def mapped_section(path: Path, offset_bytes: int, length_bytes: int) -> Iterator[MappedSection]:
    """Map a section of ``path`` read-only and hold its resident pages near RESIDENT_LIMIT_BYTES."""
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), length_bytes, offset=offset_bytes, access=mmap.ACCESS_READ)
        section = MappedSection.of(path, file.fileno(), offset_bytes, memoryview(mapping))
    stop = threading.Event()
    trimmer = threading.Thread(target=_trim, args=(mapping, stop), name="trim-resident-pages", daemon=True)
    if length_bytes > RESIDENT_LIMIT_BYTES and hasattr(mmap, "MADV_DONTNEED"):
        trimmer.start()
    try:
        yield section
    finally:
        stop.set()
        if trimmer.is_alive():
            trimmer.join()
        # The mapping itself closes with its last view: a runtime may still hold some.
        del section


def _trim(mapping: mmap.mmap, stop: threading.Event) -> None:
    while not stop.wait(_CHECK_SECONDS):
        memory = process_memory()
        if memory is not None and memory.file_bytes > RESIDENT_LIMIT_BYTES:
            mapping.madvise(mmap.MADV_DONTNEED)
