"""Whole models as three engines (exported, decode, prefill), and the loop a loader runs over them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from oracles import Array, causal_mask
from subgraph import cpu_session

from rowpack.checkpoint import open_checkpoint
from rowpack.export import export_graph
from rowpack.families import find_family
from rowpack.families.declaration import ModelDescription
from rowpack.graph.dtypes import numpy_dtype
from rowpack.surgery import decode_model, prefill_model
from rowpack.weights import WEIGHTS_SECTION, WeightPlan, plan_weights, stream_weights

CACHE_ROWS = 512


@dataclass
class ModelEngines:
    """The engines made from one checkpoint; ``folder`` takes the weight file they share."""

    checkpoint: Path
    folder: Path
    precision: str = "fp32"
    prefill_rows: int = 64
    config: dict[str, Any] = field(init=False)
    description: ModelDescription = field(init=False)
    plan: WeightPlan = field(init=False)

    def __post_init__(self) -> None:
        with open_checkpoint(self.checkpoint, allow_missing_tokenizer=True) as checkpoint:
            self.config = checkpoint.config
            self.description = find_family(checkpoint.config).describe(
                checkpoint.config, list(checkpoint.tensors), self.precision, CACHE_ROWS
            )
            self.plan = plan_weights(self.description.weights)
            with (self.folder / WEIGHTS_SECTION).open("wb") as stream:
                for piece in stream_weights(self.plan, checkpoint):
                    stream.write(piece)

    @cached_property
    def exported_model(self) -> onnx.ModelProto:
        """The model with its mixers as function calls."""
        return export_graph(self.description, self.plan, self.precision)

    @cached_property
    def decode_model(self) -> onnx.ModelProto:
        """The model for one row."""
        return decode_model(self.exported_model)

    @cached_property
    def prefill_model(self) -> onnx.ModelProto:
        """The model for 1..prefill_rows rows."""
        return prefill_model(self.exported_model, self.prefill_rows)

    @cached_property
    def exported(self) -> onnxruntime.InferenceSession:
        """The exported model, runnable as it is."""
        return self.session(self.exported_model)

    @cached_property
    def decode(self) -> onnxruntime.InferenceSession:
        """The decode engine."""
        return self.session(self.decode_model)

    @cached_property
    def prefill(self) -> onnxruntime.InferenceSession:
        """The prefill engine."""
        return self.session(self.prefill_model)

    def session(self, model: onnx.ModelProto) -> onnxruntime.InferenceSession:
        """Load ``model`` with its weights from ``folder``."""
        return cpu_session(
            model.SerializeToString(),
            **{
                "session.model_external_initializers_file_folder_path": str(self.folder),
                "session.disable_prepacking": "1",
            },
        )

    def sequence(self) -> ModelSequence:
        """Start a sequence from the initial states."""
        return ModelSequence(self.description)


class ModelSequence:
    """States and caches of one sequence; caches are buffers whose unfilled rows hold NaN."""

    def __init__(self, description: ModelDescription) -> None:
        self._states = description.states
        self.position = 0
        self._caches: dict[str, Array] = {}
        self.values: dict[str, Array] = {}
        for state in self._states:
            if state.update == "append_rows":
                self._caches[state.input_name] = np.full(state.shape, np.nan, numpy_dtype(state.dtype))
            else:
                start = np.full(state.shape, state.initial_value, numpy_dtype(state.dtype))
                self.values[state.input_name] = start

    def feed(self, engine: onnxruntime.InferenceSession, ids: Sequence[int]) -> Array:
        """Run ``ids`` through ``engine`` at once; return the last row's logits."""
        rows = len(ids)
        feeds: dict[str, Array] = {"token_id": np.array(ids, np.int32)}
        if self._caches:
            feeds["position_id"] = np.arange(self.position, self.position + rows, dtype=np.int32)
            feeds["attention_mask"] = causal_mask(rows, self.position)
        filled = {name: cache[: self.position] for name, cache in self._caches.items()}
        names = [output.name for output in engine.get_outputs()]
        results = dict(zip(names, engine.run(None, {**feeds, **filled, **self.values}), strict=True))
        for state in self._states:
            present = results[state.output_name]
            if state.update == "append_rows":
                self._caches[state.input_name][self.position : self.position + rows] = present
            else:
                self.values[state.input_name] = present
        self.position += rows
        logits: Array = results["logits"]
        return logits[0]

    def prefill(
        self, engine: onnxruntime.InferenceSession, ids: Sequence[int], cuts: Sequence[int] | None = None
    ) -> Array:
        """Feed a prompt in pieces of ``cuts`` rows (on the 64 grid unless given)."""
        cuts = cuts or [64] * (len(ids) // 64) + ([len(ids) % 64] if len(ids) % 64 else [])
        assert sum(cuts) == len(ids)
        start, logits = 0, np.empty(0)
        for count in cuts:
            logits = self.feed(engine, ids[start : start + count])
            start += count
        return logits

    def greedy(self, engine: onnxruntime.InferenceSession, logits: Array, count: int) -> list[int]:
        """Return ``count`` greedy tokens after ``logits``."""
        tokens = [int(logits.argmax())]
        while len(tokens) < count:
            tokens.append(int(self.feed(engine, tokens[-1:]).argmax()))
        return tokens


def golden_cases(checkpoint: Path) -> list[dict[str, Any]]:
    """Return the reference's cases of a shipped checkpoint."""
    cases: list[dict[str, Any]] = json.loads((checkpoint / "golden.json").read_text("utf-8"))["cases"]
    return cases


def golden_error(logits: Array, case: dict[str, Any]) -> float:
    """Return the largest deviation from the reference's five largest logits, over the largest of them."""
    top = case["last_row_top5"]
    scale = max(abs(value) for _, value in top)
    return max(abs(float(logits[token]) - value) for token, value in top) / scale
