"""Run one contender: ``python -m contenders MODULE REQUEST``, the request as a JSON object.

Reads one JSON command a line and answers each with one line, the first unasked: what importing and loading took.
A process of its own means that nothing is shared with the contender before, neither a thread pool nor an allocator.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from resident_memory import read_resident_memory

from contenders import LoadRequest, Sequence


def answer(sequence: Sequence, command: dict[str, Any]) -> dict[str, Any]:
    """Carry out one command; ``s`` is the seconds of a prompt, or of one step."""
    if command["do"] == "memory":
        memory = read_resident_memory()
        return {} if memory is None else asdict(memory)
    start = time.perf_counter()
    if command["do"] == "prefill":
        next_token = sequence.prefill(command["token_ids"])
        return {"s": time.perf_counter() - start, "next_token": next_token}
    token = 1
    for _ in range(command["steps"]):
        token = sequence.step(token)
    return {"s": (time.perf_counter() - start) / command["steps"]}


def main() -> None:
    """Load, then answer commands until standard input ends."""
    contender, fields = importlib.import_module(f"contenders.{sys.argv[1]}"), json.loads(sys.argv[2])
    library = fields.pop("library")
    request = LoadRequest(Path(fields.pop("source")), library=Path(library) if library else None, **fields)
    start = time.perf_counter()
    contender.import_runtime()
    imported = time.perf_counter()
    sequence: Sequence = contender.load(request)
    loaded = time.perf_counter()
    first = {"import_s": imported - start, "load_s": loaded - imported, "versions": contender.versions()}
    print(json.dumps(first), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(sequence, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
