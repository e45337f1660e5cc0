"""Run a bundle as a loader would that knows one engine and no manifest. Frozen: never teach it anything new.

Written from the byte rules of format 1 and the table of inputs and outputs alone; nothing of rowpack. It counts the
keys of ``runtime.json``, zeroes every buffer, keeps the whole cache as one array with a mask over the rows that are not
filled, and feeds every prompt token by token. ``engine.onnx`` and ``weights.safetensors`` are unpacked side by side,
where they are an ordinary ONNX model with external data.
"""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

KEY_COUNTS = {"qwen3_5": 20, "rwkv": 14}
MASKED = np.float32(-1e4)
CACHE_DTYPES = {"fp16": np.float16, "fp32": np.float32}


class SingleEngineLoader:
    """One model and one sequence."""

    def __init__(self, path: Path) -> None:
        self.family, sections = read_sections(path)
        self.runtime: dict[str, Any] = json.loads(sections["runtime.json"])
        if len(self.runtime) != KEY_COUNTS[self.family]:
            raise ValueError(f"{self.family} runtime.json has an unexpected field set")
        if self.runtime["decoder_engine_layout"] != "single":
            raise ValueError(f"{self.family} requires decoder_engine_layout='single'")
        self.tokenizer = Tokenizer.from_buffer(sections["tokenizer.json"]) if "tokenizer.json" in sections else None
        with tempfile.TemporaryDirectory() as folder:
            for name in ("engine.onnx", "weights.safetensors"):
                (Path(folder) / name).write_bytes(sections[name])
            self.session = onnxruntime.InferenceSession(
                str(Path(folder) / "engine.onnx"), providers=["CPUExecutionProvider"]
            )
        self.states = self.zeroed_states()
        self.position = 0

    def zeroed_states(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return every state and cache by the name it goes in by."""
        facts = self.runtime
        states: dict[str, np.ndarray[Any, Any]] = {}
        if self.family == "rwkv":
            for layer in range(facts["num_hidden_layers"]):
                for word in ("attn", "ff", "num", "den", "max"):
                    states[f"{word}_state_{layer}"] = np.zeros((1, facts["hidden_size"]), np.float32)
            return states
        recurrent = (facts["mamba_nheads"], facts["mamba_d_state"], facts["mamba_head_dim"])
        for index in range(facts["num_mamba_layers"]):
            states[f"conv_state_{index}"] = np.zeros((facts["conv_dim"], facts["mamba_d_conv"]), np.float32)
            states[f"ssm_state_{index}"] = np.zeros(recurrent, np.float32)
        rows = (facts["max_cache_length"], facts["num_key_value_heads"] * facts["head_dim"])
        for index in range(facts["num_attention_layers"]):
            for letter in ("k", "v"):
                states[f"cache_{letter}_{index}"] = np.zeros(rows, CACHE_DTYPES[facts["precision"]])
        return states

    def step(self, token_id: int) -> np.ndarray[Any, Any]:
        """Feed one token; return the logits of the next."""
        feeds: dict[str, Any] = {"token_id": np.array([token_id], np.int32), **self.states}
        if self.family == "qwen3_5":
            capacity = self.runtime["max_cache_length"]
            mask = np.full((1, capacity + 1), MASKED)
            mask[0, : self.position] = 0
            mask[0, capacity] = 0
            feeds |= {"position_id": np.array([self.position], np.int32), "attention_mask": mask}
        names = [output.name for output in self.session.get_outputs()]
        present = dict(zip(names, self.session.run(names, feeds), strict=True))
        for name in self.states:
            word, _, rest = name.partition("_")
            if word == "cache":
                self.states[name][self.position] = present[f"present_{rest}"][0]
            else:
                self.states[name] = present[f"present_{word}_{rest.removeprefix('state_')}"]
        self.position += 1
        logits: np.ndarray[Any, Any] = present["logits"][0]
        return logits

    def generate(self, prompt_ids: list[int], count: int, *, stop_at_end: bool = True) -> list[int]:
        """Return up to ``count`` greedy tokens after the prompt; the end token ends them."""
        for token_id in prompt_ids:
            logits = self.step(token_id)
        generated: list[int] = []
        while True:
            generated.append(int(logits.argmax()))
            ended = stop_at_end and generated[-1] == self.runtime["eos_token_id"]
            if len(generated) == count or ended:
                return generated
            logits = self.step(generated[-1])


def read_sections(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return family and sections of a format-1 container; its header has five keys, its entries two."""
    data = path.read_bytes()
    if data[:8] != b"BUNDLE\x01\x00":
        raise ValueError("invalid bundle magic")
    (length,) = struct.unpack_from("<Q", data, 8)
    header = json.loads(data[16 : 16 + length])
    if len(header) != 5 or header["format"] != 1 or header["task"] != "text_generation":
        raise ValueError("unexpected bundle header field set")
    if any(set(entry) != {"offset", "length"} for entry in header["sections"].values()):
        raise ValueError("unexpected bundle section field set")
    start = 16 + length
    places = {name: start + entry["offset"] for name, entry in header["sections"].items()}
    lengths = {name: entry["length"] for name, entry in header["sections"].items()}
    return header["family"], {name: data[begin : begin + lengths[name]] for name, begin in places.items()}
