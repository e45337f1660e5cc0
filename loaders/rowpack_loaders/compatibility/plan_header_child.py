"""Ask the installed TensorRT library whether it takes a plan; a program of its own, started by plan_headers.py.

The first bytes of a plan come from a file that nobody vouches for and are read by native code, which therefore runs
in a process of its own. The one argument is JSON: ``modules`` to try and the parent's ``sys_path``. Standard input
holds the plan's first bytes; one JSON object goes to standard output. It imports nothing of rowpack.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def main(request: dict[str, list[str]]) -> int:
    """Print the answer for the plan whose first bytes are on standard input."""
    sys.path[:] = request["sys_path"]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print must not print into the answer
    answers.write(json.dumps(answer(request["modules"], sys.stdin.buffer.read())) + "\n")
    answers.flush()
    return 0


def answer(modules: list[str], header: bytes) -> dict[str, Any]:
    """Return ``validity`` and ``diagnostics`` (names of bits) with the library's messages, or ``error``."""
    trt: Any = None
    problem = "no module was named"
    for name in modules:
        try:
            trt = importlib.import_module(name)
            break
        except ImportError as error:
            problem = str(error)
    if trt is None:
        return {"error": problem}
    if not hasattr(trt.Runtime, "get_engine_validity"):
        return {"error": "the library does not judge plans without loading them"}
    messages: list[str] = []
    logger = make_logger(trt, messages)
    runtime = trt.Runtime(logger)
    validity, bits = runtime.get_engine_validity(header[: runtime.engine_header_size])
    members = getattr(trt.EngineInvalidityDiagnostics, "__members__", {})
    names = [name for name, member in members.items() if int(member) & int(bits)]
    return {
        "version": str(trt.__version__),
        "validity": validity.name,
        "diagnostics": names,
        "messages": messages,
    }


def make_logger(trt: Any, messages: list[str]) -> Any:
    """Return a logger that keeps the texts of errors."""

    def begin(self: Any) -> None:
        trt.ILogger.__init__(self)

    def log(self: Any, severity: Any, text: str) -> None:
        if severity.name in ("INTERNAL_ERROR", "ERROR"):
            messages.append(text)

    return type("Logger", (trt.ILogger,), {"__init__": begin, "log": log})()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
