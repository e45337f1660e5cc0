"""Send what was written of a file to the disk while more of it is computed.

Left to itself Linux keeps gigabytes of a file in its cache before it begins, and the disk idles until the fsync at the
end, for which a build then waits. A thread asks for what is there meanwhile.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor

STRETCH_BYTES = 32 * 2**20
"""What is written between two requests, or more while one lasts."""


class WriteBack:
    """Calls fdatasync for an open file that one thread writes, in a thread of its own, one call at a time.

    The system tells a descriptor of a failure once, so that a call here may hear what the last fsync then does not:
    its OSError is kept, and raised by every later :meth:`wrote` and :meth:`finish`.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="write-back")
        self._call: Future[None] | None = None
        self._written_bytes = 0

    def wrote(self, byte_count: int) -> None:
        """Count bytes that were written, and begin a call when they are a stretch and none is under way."""
        self._written_bytes += byte_count
        if self._call is not None and not self._call.done():
            return
        self.finish()
        if self._written_bytes >= STRETCH_BYTES:
            self._written_bytes = 0
            send = getattr(os, "fdatasync", os.fsync)  # macOS has the latter only
            self._call = self._thread.submit(send, self._descriptor)

    def finish(self) -> None:
        """Wait for the call that is under way, and raise the OSError of the last one."""
        if self._call is not None:
            self._call.result()

    def stop(self) -> None:
        """Wait for the thread to end, whatever its call comes to; the descriptor can be closed then."""
        self._thread.shutdown()
