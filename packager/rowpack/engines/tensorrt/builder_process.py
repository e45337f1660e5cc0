"""Start the builder's child process, hand it its request, and read its three streams to the end.

A plan's bytes depend on what happened in its process before, so each gets a process of its own with a fixed command
line, environment and working folder. That also lets its memory be measured and freed, its messages be collected, and
a build be ended at any time.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

CHILD_PROGRAM = Path(__file__).with_name("builder_child.py")

PASSED_ENVIRONMENT = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""What a library and its driver may need to be found; nothing else of the environment reaches the child."""

PLAN_PIECE_BYTES = 4 * 2**20
"""Plan bytes that are handed on at once."""

STDERR_LIMIT_BYTES = 64 * 2**10
"""How much of what libraries print is kept: the end, where the reason is."""

_PIPE_BYTES = 2**20

Message = dict[str, Any]


class BuilderProcess:
    """One child process; a context manager that leaves no process behind.

    ``request`` is the child's first line (``task`` and what the task needs), ``graph`` the bytes after it, and
    ``mapped_file`` the descriptor of a file that the child maps.
    """

    def __init__(self, request: Mapping[str, Any], graph: bytes = b"", mapped_file: int | None = None) -> None:
        self.stderr = b""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-I", "-B", str(CHILD_PROGRAM)],
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env=_environment(),
                start_new_session=True,
            )
        try:
            self._send_request(request, graph, mapped_file)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def events(self) -> Iterator[Message | memoryview]:
        """Yield the child's messages as they come, and its plan in pieces that are valid until the next.

        A line that is no message comes as a logged error.
        """
        assert self._process.stdout is not None and self._process.stderr is not None
        plan, stderr = self._process.stdout, self._process.stderr
        fcntl.fcntl(plan, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        buffer, filled = bytearray(PLAN_PIECE_BYTES), 0
        received = b""
        with selectors.DefaultSelector() as selector:
            for stream in (self._channel, plan, stderr):
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    if key.fileobj is plan:
                        count = os.readv(plan.fileno(), [memoryview(buffer)[filled:]])
                        filled += count
                        if filled and (count == 0 or filled == len(buffer)):
                            yield memoryview(buffer)[:filled]
                            filled = 0
                    elif key.fileobj is stderr:
                        piece = os.read(stderr.fileno(), _PIPE_BYTES)
                        self.stderr = (self.stderr + piece)[-STDERR_LIMIT_BYTES:]
                        count = len(piece)
                    else:
                        piece = self._receive()
                        *lines, received = (received + piece).split(b"\n")
                        for line in lines:
                            yield _message(line)
                        count = len(piece)
                    if count == 0:
                        selector.unregister(key.fileobj)
        self._process.wait()

    def agree(self) -> None:
        """Let the child go on after it told the network."""
        self._channel.sendall(b'{"go": true}\n')

    @property
    def exit_status(self) -> int | None:
        """The child's exit status: negative for a signal, None while it runs."""
        return self._process.poll()

    @property
    def printed(self) -> str:
        """What libraries printed, the end of it."""
        return self.stderr.decode("utf-8", errors="replace")

    def __enter__(self) -> BuilderProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._channel.close()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _send_request(self, request: Mapping[str, Any], graph: bytes, mapped_file: int | None) -> None:
        line = json.dumps({**request, "graph_bytes": len(graph), "sys_path": sys.path}).encode() + b"\n"
        descriptors = [] if mapped_file is None else [mapped_file]
        try:
            sent = socket.send_fds(self._channel, [line], descriptors)
            self._channel.sendall(line[sent:] + graph)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the child ended early; why is in its exit status and in what it printed

    def _receive(self) -> bytes:
        try:
            return self._channel.recv(_PIPE_BYTES)
        except ConnectionResetError:
            return b""


def ask_library(modules: Sequence[str]) -> Message:
    """Return what the first of ``modules`` that is installed says of itself: version, capabilities, device.

    The module is loaded in a process of its own: 200 MB of library stay out of this one. A module that cannot be
    loaded gives ``{"error": …}``.
    """
    with BuilderProcess({"task": "facts", "modules": list(modules)}) as process:
        for event in process.events():
            if isinstance(event, dict) and event["kind"] == "library":
                return event
        return {"error": process.printed.strip()[-400:] or f"its process ended with status {process.exit_status}"}


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if isinstance(message, dict) and "kind" in message:
        return message
    return {"kind": "log", "severity": "ERROR", "text": f"a line that is no message of the builder: {line[:200]!r}"}


def _environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ}
    return {"LC_ALL": "C", "PATH": "/usr/bin:/bin", **passed}
