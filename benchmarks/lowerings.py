"""Time the fused operators of ONNX Runtime against our plain subgraphs, each alone and in whole models.

    python benchmarks/lowerings.py
    python benchmarks/lowerings.py --shape qwen3_5-4b --without-models
    python benchmarks/lowerings.py --folder /tmp/lowerings --prompt-tokens 8,64,142
    python benchmarks/lowerings.py --quantization int4

Every form runs in turn in one process, as the loader sets sessions up; the tables give medians, and ratios to the plain
form. More rows than 64 take the plain form several calls. ``deviation`` is the largest difference from the plain form,
relative to each tensor's scale. Kernels by element type are listed as the installed runtime tells them.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lowering_cases import PLAIN_ROWS, LoweringCase, lowering_cases
from markdown_table import markdown_table, with_ratio
from measured_machine import describe_machine, rowpack_version
from pattern_cases import pattern_cases

from rowpack_loaders.runtimes.onnxruntime_import import import_onnxruntime

onnxruntime = import_onnxruntime()

OPERATORS = (
    "LinearAttention",
    "GatedDeltaNet",
    "CausalConvWithState",
    "GroupQueryAttention",
    "GatedRMSNorm",
    "SkipSimplifiedLayerNormalization",
    "RMSNormalization",
    "QuickGelu",
    "ScaledSiLU",
    "Softplus",
    "LinearAttentionGate",
    "RotaryEmbedding",
)


def kernels() -> list[str]:
    """Return one line an operator: the element types that the processor has a kernel for."""
    definitions = onnxruntime.capi.onnxruntime_pybind11_state.get_all_opkernel_def()
    lines = []
    for name in OPERATORS:
        types = {
            kind.removeprefix("tensor(").removesuffix(")")
            for kernel in definitions
            if kernel.op_name == name and kernel.provider == "CPUExecutionProvider"
            for kind in kernel.type_constraints.get("T", [])
        }
        lines.append(f"{name}: {', '.join(sorted(types)) or 'no kernel'}")
    return lines


class BoundForm:
    """One form of a mixer, loaded as the loader does, with its inputs bound once."""

    def __init__(self, case: LoweringCase, form: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.intra_op.spin_duration_us", "20")
        options.add_session_config_entry("session.disable_prepacking", "1")
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(case.model(form), options, providers=providers)
        rows = min(case.rows, PLAIN_ROWS) if form == "plain" and case.mixer == "delta rule" else case.rows
        self.calls = math.ceil(case.rows / rows)
        feeds = {name: x[:rows] if name in case.row_inputs else x for name, x in case.inputs.items()}
        self._binding = self._session.io_binding()
        self._kept: list[Any] = []
        for name, array in feeds.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
            self._kept.append(value)
            self._binding.bind_ortvalue_input(name, value)
        self.results = [np.asarray(result) for result in self._session.run(list(case.outputs), feeds)]
        for name, result in zip(case.outputs, self.results, strict=True):
            buffer = np.empty_like(result)
            self._kept.append(buffer)
            self._binding.bind_output(name, "cpu", 0, np.float32, buffer.shape, buffer.ctypes.data)

    def run(self) -> float:
        """Run all calls; return milliseconds."""
        start = time.perf_counter()
        for _ in range(self.calls):
            self._session.run_with_iobinding(self._binding)
        return 1e3 * (time.perf_counter() - start)


def medians(forms: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Run every form in turn after two warm-ups; return the median of each."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    for repeat in range(repeats + 2):
        for name, run in forms.items():
            elapsed = run()
            if repeat >= 2:
                times[name].append(elapsed)
    return {name: statistics.median(values) for name, values in times.items()}


def operator_table(config: Mapping[str, Any], arguments: argparse.Namespace) -> str:
    """Measure every mixer and every pattern alone."""
    lines = []
    cases = [
        *lowering_cases(config, arguments.rows, arguments.cached_rows),
        *pattern_cases(config, arguments.rows),
    ]
    for case in cases:
        forms = {name: BoundForm(case, name, arguments.threads) for name in case.forms}
        found = medians({name: form.run for name, form in forms.items()}, arguments.repeats)
        for name, form in forms.items():
            if name == "plain":
                continue
            same_call = forms["plain"].calls == form.calls
            deviation = f"{_deviation(form, forms['plain']):.0e}" if same_call else "–"
            cells = [case.mixer, name, str(case.rows), f"{found['plain']:.3f}"]
            lines.append([*cells, with_ratio(found[name], found["plain"], 3), deviation])
    return markdown_table(["", "operator", "rows", "plain ms", "fused ms", "deviation"], lines, text_columns=2)


def _deviation(form: BoundForm, plain: BoundForm) -> float:
    pairs = zip(form.results, plain.results, strict=True)
    return max(float(np.abs(found - wanted).max() / np.abs(wanted).max()) for found, wanted in pairs)


def model_table(shape: str, folder: Path, arguments: argparse.Namespace) -> str:
    """Measure whole models: one bundle's weights under the graphs of each lowering."""
    from rowpack import BuildRequest, build
    from rowpack.checkpoint import open_checkpoint
    from rowpack.engine_stage import engine_graphs
    from rowpack.engines import find_backend
    from rowpack.export import export_graph
    from rowpack.graph.model import serialize
    from rowpack.model_preparation import prepare_model
    from rowpack.synthesis import synthesize
    from rowpack_loaders import open_bundle
    from rowpack_loaders.decoder import Decoder
    from rowpack_loaders.model_description import describe_model
    from rowpack_loaders.runtimes import load_runtime

    checkpoint_folder, bundle_path = folder / shape, folder / f"{shape}-{arguments.quantization or 'fp32'}.bundle"
    if not checkpoint_folder.exists():
        synthesize(shape, checkpoint_folder, layout="flat")
    request = BuildRequest(
        checkpoint_folder,
        bundle_path,
        quantization=arguments.quantization,
        decoder_engine_layout="split",
        verify=False,
        allow_missing_tokenizer=True,
    )
    if not bundle_path.exists():
        build(request)
    with open_checkpoint(checkpoint_folder, allow_missing_tokenizer=True) as checkpoint:
        prepared = prepare_model(checkpoint, request)
    exported = export_graph(prepared.model, prepared.plan, "fp32")
    backend, bundle = find_backend("ort"), open_bundle(bundle_path)
    model = describe_model(bundle.manifest)
    weights = bundle.container.mapped_section("weights.safetensors")
    sessions = {}
    for lowering in ("plain", "auto", "fused"):
        form = replace(
            backend.graph_form(model.limits.max_cache_length, "fp32"), fused=backend.fused_operators(lowering, exported)
        )
        graphs = engine_graphs(exported, 64, form, split=True)
        engines = {role: serialize(graph) for role, graph in graphs.by_role.items()}
        sessions[lowering] = Decoder(
            model, load_runtime("ort", model, engines, weights, thread_count=arguments.threads)
        ).session()
    prompt = [(7919 * index + 13) % model.vocab_size for index in range(max(arguments.prompt_tokens))]

    def prefill(session: Any, count: int) -> float:
        session.reset()
        start = time.perf_counter()
        session.prefill(prompt[:count])
        return 1e3 * (time.perf_counter() - start)

    def decode(session: Any) -> float:
        start = time.perf_counter()
        session.advance(1)
        return 1e3 * (time.perf_counter() - start)

    columns: dict[str, dict[str, float]] = {}
    for count in arguments.prompt_tokens:
        runs = {
            name: (lambda session=session, count=count: prefill(session, count)) for name, session in sessions.items()
        }
        columns[f"prefill {count} ms"] = medians(runs, arguments.model_repeats)
    steps = {name: (lambda session=session: decode(session)) for name, session in sessions.items()}
    columns["decode ms/token"] = medians(steps, 4 * arguments.model_repeats)
    lines = [
        [lowering, *(with_ratio(values[lowering], values["plain"]) for values in columns.values())]
        for lowering in sessions
    ]
    return markdown_table(["--lowering", *columns], lines)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Print kernels by element type, the table of operators, and the table of whole models."""
    from rowpack.synthesis.published_shapes import published_config

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3_5-0.8b", help="a published Qwen3.5 shape")
    parser.add_argument("--rows", type=_numbers, default=[1, 8, 64, 256], metavar="1,64,…")
    parser.add_argument("--cached-rows", type=int, default=512, help="cache rows that attention reads")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--model-repeats", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=_numbers, default=[8, 64, 142], metavar="8,64,…")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-models", action="store_true", help="only the operators, which takes a minute")
    parser.add_argument("--quantization", help="of the whole model's projections, such as int4")
    parser.add_argument("--folder", type=Path, help="keep checkpoint and bundle here between runs")
    arguments = parser.parse_args()
    print(describe_machine(arguments.threads, rowpack_version()), end="\n\n")
    print("Kernels for the processor: " + "; ".join(kernels()) + ".", end="\n\n")
    print(operator_table(published_config(arguments.shape)["text_config"], arguments))
    if not arguments.without_models:
        with tempfile.TemporaryDirectory() as temporary:
            print("\n" + model_table(arguments.shape, arguments.folder or Path(temporary), arguments))


if __name__ == "__main__":
    main()
