"""Measure what quantised projections cost in accuracy, on trained checkpoints with reference answers.

    python benchmarks/quantization_accuracy.py [--backend ort|trt_rtx] [--checkpoint FOLDER] [--items 150]

``ort``: bundles in float32, int8, w8a8 and int4, with and without the head, run by the loader. ``trt_rtx``: ONNX
Runtime executes the exported graph with its Q/DQ nodes (E2M1, which it lacks, by plain operators) in fp16. A checkpoint
needs ``golden.json``: prompts with the reference's logits and greedy tokens, and verses without their last word. Prints
a table for ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from rowpack import build
from rowpack.checkpoint import open_checkpoint
from rowpack.export import export_graph
from rowpack.graph.dtypes import numpy_dtype
from rowpack.graph.model import serialize
from rowpack.model_preparation import BuildRequest, prepare_model
from rowpack.verification.runnable_graphs import runnable
from rowpack.weights import WEIGHTS_SECTION, stream_weights
from rowpack_loaders import load

ROOT = Path(__file__).parents[1]
TRAINED = (ROOT / "packager" / "rowpack" / "demo_checkpoint", ROOT / "tests" / "data" / "rwkv4-kjv-3.7m")
LONGEST_PROMPT = 150
GREEDY_TOKENS = 32
PRECISION = "fp16"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Variant:
    """A quantization, and for the processor what head and embedding are stored in."""

    name: str
    quantization: str | None = None
    head: str | None = None
    embedding: str | None = None


VARIANTS = {
    "ort": (
        Variant("none (float32)"),
        Variant("int8, head none", "int8", "none"),
        Variant("int8", "int8"),
        Variant("int8, embedding int8", "int8", None, "int8"),
        Variant("w8a8, head none", "w8a8", "none"),
        Variant("w8a8", "w8a8"),
        Variant("w8a8, embedding w8a8", "w8a8", None, "w8a8"),
        Variant("int4, head none", "int4", "none"),
        Variant("int4, head int8", "int4", "int8"),
        Variant("int4", "int4"),
        Variant("int4, head and embedding int8", "int4", "int8", "int8"),
        Variant("int4, embedding int4", "int4", None, "int4"),
    ),
    "trt_rtx": (Variant("none"), Variant("fp8", "fp8"), Variant("nvfp4", "nvfp4")),
}


@dataclass(frozen=True)
class Accuracy:
    """How one quantization answers: relative logit errors, greedy tokens and last words equal to the reference's."""

    checkpoint: str
    quantization: str
    mean_logit_error: float
    largest_logit_error: float
    equal_greedy_tokens: float
    equal_last_words: float
    right_last_words: int
    right_last_words_of_reference: int
    items: int


class Bundle:
    """A bundle for the processor, run by the loader as anybody would."""

    def __init__(self, checkpoint_folder: Path, variant: Variant, folder: Path) -> None:
        request = BuildRequest(
            checkpoint_folder,
            folder / "model.bundle",
            quantization=variant.quantization,
            head_quantization=variant.head,
            embedding_quantization=variant.embedding,
            decoder_engine_layout="split",
            verify=False,
        )
        self._session = load(build(request).path).session()

    def feed_prompt(self, ids: Sequence[int]) -> Array:
        """Run a prompt from the start; return the last row's logits."""
        logits: Array = self._session.prefill(ids)
        return logits

    def feed_token(self, token: int) -> Array:
        """Run one more row; return its logits."""
        logits: Array = self._session.step(token)
        return logits


class ExportedGraph:
    """The exported graph of a checkpoint with its weights in a folder of its own."""

    def __init__(self, checkpoint_folder: Path, variant: Variant, folder: Path) -> None:
        request = BuildRequest(
            checkpoint_folder,
            folder / "unused",
            backend="trt_rtx",
            precision=PRECISION,
            quantization=variant.quantization,
        )
        with open_checkpoint(checkpoint_folder, allow_missing_tokenizer=True) as checkpoint:
            prepared = prepare_model(checkpoint, request)
            with (folder / WEIGHTS_SECTION).open("wb") as stream:
                for piece in stream_weights(prepared.plan, checkpoint):
                    stream.write(piece)
        self.states = prepared.model.states
        graph = runnable(serialize(export_graph(prepared.model, prepared.plan, PRECISION)), PRECISION)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        # Stored weights are widened once at load and not again in every step.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        self.session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self._sequence = RunningSequence(self)

    def feed_prompt(self, ids: Sequence[int]) -> Array:
        """Run a prompt from the start; return the last row's logits."""
        self._sequence = RunningSequence(self)
        return self._sequence.feed(ids)

    def feed_token(self, token: int) -> Array:
        """Run one more row; return its logits."""
        return self._sequence.feed([token])


class RunningSequence:
    """One sequence: its states, and its caches as long as they are filled."""

    def __init__(self, model: ExportedGraph) -> None:
        self._model = model
        self._position = 0
        self._values: dict[str, Array] = {}
        for state in model.states:
            shape = (0, *state.shape[1:]) if state.update == "append_rows" else state.shape
            self._values[state.input_name] = np.full(shape, state.initial_value, numpy_dtype(state.dtype))

    def feed(self, ids: Sequence[int]) -> Array:
        """Run rows; return the last one's logits."""
        rows, names = len(ids), {tensor.name for tensor in self._model.session.get_inputs()}
        feeds = {"token_id": np.array(ids, np.int32), **self._values}
        if "attention_mask" in names:
            mask = np.zeros((rows, self._position + rows), np.float32)
            mask[:, self._position :] = np.triu(np.full((rows, rows), -1e4, np.float32), 1)
            feeds["attention_mask"] = mask
            feeds["position_id"] = np.arange(self._position, self._position + rows, dtype=np.int32)
        outputs = [tensor.name for tensor in self._model.session.get_outputs()]
        results = dict(zip(outputs, self._model.session.run(None, feeds), strict=True))
        for state in self._model.states:
            present = results[state.output_name]
            if state.update == "append_rows":
                present = np.concatenate([self._values[state.input_name], present])
            self._values[state.input_name] = present
        self._position += rows
        logits: Array = results["logits"][0]
        return logits


MODELS: dict[str, type[Bundle | ExportedGraph]] = {"ort": Bundle, "trt_rtx": ExportedGraph}


def greedy(model: Bundle | ExportedGraph, logits: Array, count: int) -> list[int]:
    """Return ``count`` greedy tokens after ``logits``."""
    tokens = [int(logits.argmax())]
    while len(tokens) < count:
        tokens.append(int(model.feed_token(tokens[-1]).argmax()))
    return tokens


def measure(checkpoint: Path, backend: str, variant: Variant, most_items: int) -> Accuracy:
    """Return how the checkpoint answers in one variant."""
    golden = json.loads((checkpoint / "golden.json").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        model = MODELS[backend](checkpoint, variant, Path(folder))
        errors, equal, tokens = [], 0, 0
        for case in golden["cases"]:
            if len(case["prompt_ids"]) > LONGEST_PROMPT:
                continue
            logits = model.feed_prompt(case["prompt_ids"]).copy()
            scale = max(abs(value) for _, value in case["last_row_top5"])
            errors.append(max(abs(float(logits[token]) - value) for token, value in case["last_row_top5"]) / scale)
            found = greedy(model, logits, GREEDY_TOKENS)
            pairs = list(zip(found, case["greedy_ids"], strict=False))
            equal += next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs))
            tokens += len(pairs)
        items = golden["last_word"]["items"][:most_items]
        answers = [greedy(model, model.feed_prompt(item["context_ids"]), len(item["reference_ids"])) for item in items]
    return Accuracy(
        checkpoint.name,
        variant.name,
        float(np.mean(errors)),
        float(np.max(errors)),
        equal / tokens,
        sum(answer == item["reference_ids"] for answer, item in zip(answers, items, strict=True)) / len(items),
        sum(answer == item["target_ids"] for answer, item in zip(answers, items, strict=True)),
        sum(item["reference_ids"] == item["target_ids"] for item in items),
        len(items),
    )


def table(results: list[Accuracy]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| checkpoint | quantization | logit error, mean (largest) | greedy tokens as the reference | "
        "last words as the reference | last words right (reference) |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for entry in results:
        lines.append(
            f"| {entry.checkpoint} | {entry.quantization} | {entry.mean_logit_error:.4f} "
            f"({entry.largest_logit_error:.3f}) | {100 * entry.equal_greedy_tokens:.0f} % "
            f"| {100 * entry.equal_last_words:.0f} % | {entry.right_last_words} "
            f"({entry.right_last_words_of_reference}) of {entry.items} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure every checkpoint without quantization and with each of the backend's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", action="append", type=Path, help="a folder with golden.json; may be repeated")
    parser.add_argument("--items", type=int, default=150, help="verses to complete")
    parser.add_argument("--backend", choices=VARIANTS, default="ort", help="whose quantizations are measured")
    arguments = parser.parse_args()
    results = []
    for checkpoint in arguments.checkpoint or TRAINED:
        for variant in VARIANTS[arguments.backend]:
            results.append(measure(checkpoint, arguments.backend, variant, arguments.items))
            print(results[-1], file=sys.stderr)
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
