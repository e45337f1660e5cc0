"""Take the SHA-256 of the checkpoint's files, beside the stages of a build, and stop when the build does."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType

from rowpack.checkpoint import InputFile

PIECE_BYTES = 4 * 2**20


class InputDigests:
    """Read ``files`` in a thread of its own from ``with`` on; leaving the block early ends the reading.

    Without that a build that fails would wait until the last of many gigabytes is read.
    """

    def __init__(self, files: Sequence[InputFile]) -> None:
        self._files = files
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="input-sha256")
        self._records: Future[list[dict[str, object]]] | None = None

    def __enter__(self) -> InputDigests:
        self._records = self._pool.submit(self._read)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._pool.shutdown()

    def records(self) -> list[dict[str, object]]:
        """Wait for the manifest's record of every file; raises what reading one raised."""
        if self._records is None:
            raise RuntimeError("the digests are taken inside a with block")
        return self._records.result()

    def _read(self) -> list[dict[str, object]]:
        return [input_record(file, self._sha256(file)) for file in self._files]

    def _sha256(self, file: InputFile) -> str:
        digest = hashlib.sha256()
        buffer = bytearray(PIECE_BYTES)
        with file.path.open("rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                if self._stopped.is_set():
                    raise CancelledError
                digest.update(memoryview(buffer)[:count])
        return digest.hexdigest()


def input_record(file: InputFile, sha256: str) -> dict[str, object]:
    """Return what the manifest says of a checkpoint file."""
    return {"file": file.name, "length": file.byte_count, "sha256": sha256}
