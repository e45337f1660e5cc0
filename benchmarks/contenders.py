"""The contenders of the speed benchmark: each loads one model and times prefill and decode on request.

Run as a process of its own (``python contenders.py NAME FOLDER_OR_BUNDLE THREADS``) that reads one JSON command a line
and answers with one: idle contenders then neither spin nor share a thread pool with the one being timed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


class RowpackContender:
    """A bundle on this project's loader; ``mode`` is ``chunked`` or ``token-loop``."""

    def __init__(self, bundle: Path, threads: int, mode: str) -> None:
        from rowpack_loaders import load

        self._session = load(bundle, threads=threads).session()
        self._mode = mode

    def prefill(self, token_ids: list[int]) -> float:
        """Run a prompt from the start; return seconds until its last row's logits are there."""
        start = time.perf_counter()
        self._session.prefill(token_ids, mode=self._mode)
        return time.perf_counter() - start

    def decode(self, steps: int) -> float:
        """Run ``steps`` greedy steps; return seconds a step."""
        token = 1
        start = time.perf_counter()
        for _ in range(steps):
            token = int(self._session.advance(token).argmax())
        return (time.perf_counter() - start) / steps


class TransformersContender:
    """The same checkpoint in Hugging Face transformers with its cache, the way ``generate`` runs it."""

    def __init__(self, folder: Path, threads: int, dtype: str) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        self._torch = torch
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self._model: Any = model.eval()
        self._state_name = "state" if model.config.model_type == "rwkv" else "past_key_values"
        self._state: Any = None

    def _run(self, token_ids: list[int], **state: Any) -> Any:
        with self._torch.inference_mode():
            extra = {} if self._state_name == "state" else {"logits_to_keep": 1}
            out = self._model(self._torch.tensor([token_ids]), use_cache=True, **state, **extra)
        self._state = getattr(out, self._state_name)
        return out.logits[0, -1]

    def prefill(self, token_ids: list[int]) -> float:
        """Run a prompt from the start; return seconds until its last row's logits are there."""
        start = time.perf_counter()
        self._run(token_ids)
        return time.perf_counter() - start

    def decode(self, steps: int) -> float:
        """Run ``steps`` greedy steps; return seconds a step."""
        token = 1
        start = time.perf_counter()
        for _ in range(steps):
            token = int(self._run([token], **{self._state_name: self._state}).argmax())
        return (time.perf_counter() - start) / steps


def make(name: str, source: Path, threads: int) -> RowpackContender | TransformersContender:
    """Return the contender called ``name``."""
    kind, _, choice = name.partition(" ")
    if kind == "rowpack":
        return RowpackContender(source, threads, choice)
    return TransformersContender(source, threads, choice)


def resident_bytes() -> dict[str, int]:
    """Return anonymous, file-backed and peak resident memory of this process."""
    wanted = ("RssAnon", "RssFile", "VmHWM")
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {fields[0][:-1]: int(fields[1]) * 1024 for fields in lines if fields and fields[0][:-1] in wanted}


def main() -> None:
    """Answer commands until standard input ends."""
    name, source, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    start = time.perf_counter()
    contender = make(name, source, threads)
    print(json.dumps({"load_s": time.perf_counter() - start}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "prefill":
            answer: dict[str, Any] = {"s": contender.prefill(command["token_ids"])}
        elif command["do"] == "decode":
            answer = {"s": contender.decode(command["steps"])}
        else:
            answer = resident_bytes()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
