"""Engines that always read a whole cache: the shapes they declare, and that unfilled rows count for nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
import pytest
from mixers import grid
from model_engines import CACHE_ROWS, ModelEngines, ModelSequence, golden_cases, golden_error
from oracles import Array, causal_mask

from rowpack.graph.emitter import Emitter
from rowpack.graph.model import import_graph, new_graph
from rowpack.onnx_ops import CACHED_ATTENTION
from rowpack.surgery import FREE_CACHE, GraphForm, compiled_form, decode_model, prefill_model
from rowpack.surgery.batched_projections import BatchHalvedProjections
from rowpack.surgery.cache_capacity import FixCacheRows
from rowpack.surgery.unfilled_cache_rows import IgnoreUnfilledCacheRows
from rowpack_loaders.errors import RowpackError

LOGIT_BAR = 1e-4
FP16_LOGIT_BAR = 2e-3
FIXED = compiled_form(CACHE_ROWS)

Engines = Callable[..., ModelEngines]


class FixedCacheSequence(ModelSequence):
    """A sequence whose engines read every cache row in every call; ``garbage`` is what unfilled rows hold."""

    def __init__(self, engines: ModelEngines, garbage: float) -> None:
        super().__init__(engines.description)
        for values in self._caches.values():
            values.fill(garbage)

    def feed(self, engine: onnxruntime.InferenceSession, ids: Sequence[int]) -> Array:
        """Run ``ids`` over the whole cache, masked where it is not filled."""
        rows = len(ids)
        mask = causal_mask(rows, CACHE_ROWS)
        mask[:, self.position : CACHE_ROWS] = -1e4
        feeds = {
            "token_id": np.array(ids, np.int32),
            "position_id": np.arange(self.position, self.position + rows, dtype=np.int32),
            "attention_mask": mask,
        }
        names = [output.name for output in engine.get_outputs()]
        results = dict(zip(names, engine.run(None, {**feeds, **self._caches, **self.values}), strict=True))
        for state in self._states:
            present = results[state.output_name]
            if state.update == "append_rows":
                self._caches[state.input_name][self.position : self.position + rows] = present
            else:
                self.values[state.input_name] = present
        self.position += rows
        logits: Array = results["logits"]
        return logits[0]


@dataclass(frozen=True)
class FixedEngines:
    """Decode and prefill engines of the fixed form, of the shipped checkpoint with attention."""

    engines: ModelEngines
    decode: onnxruntime.InferenceSession
    prefill: onnxruntime.InferenceSession

    def case(self, kind: str, rows: int) -> dict[str, Any]:
        """Return a case of the reference."""
        cases = golden_cases(self.engines.checkpoint)
        return next(case for case in cases if case["kind"] == kind and len(case["prompt_ids"]) == rows)


@pytest.fixture(scope="module")
def fixed(shipped_engines: Engines) -> FixedEngines:
    engines = shipped_engines("qwen3_5")
    return FixedEngines(
        engines,
        engines.session(decode_model(engines.exported_model, FIXED)),
        engines.session(prefill_model(engines.exported_model, 64, FIXED)),
    )


@pytest.mark.parametrize(
    ("precision", "bar"), [("fp32", LOGIT_BAR), pytest.param("fp16", FP16_LOGIT_BAR, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("family", ["qwen3_5", "rwkv"])
def test_what_compilers_are_given_meets_the_bars(
    shipped_engines: Engines, family: str, precision: str, bar: float
) -> None:
    """The very graphs that TensorRT is given, run by ONNX Runtime: the reference's logits and greedy tokens."""
    engines = shipped_engines(family, precision)
    decode = engines.session(decode_model(engines.exported_model, FIXED))
    prefill = engines.session(prefill_model(engines.exported_model, 64, FIXED))
    cases = golden_cases(engines.checkpoint)
    for kind, rows in (("text", 65), ("text", 3), ("two-token cycle", 100)):
        case = next(case for case in cases if case["kind"] == kind and len(case["prompt_ids"]) == rows)
        chunked, looped = (
            FixedCacheSequence(engines, float("nan")) if family == "qwen3_5" else engines.sequence() for _ in range(2)
        )
        logits = chunked.prefill(prefill, case["prompt_ids"])
        assert golden_error(logits, case) <= bar
        assert chunked.greedy(decode, logits, 32) == case["greedy_ids"]
        assert golden_error(looped.prefill(decode, case["prompt_ids"], [1] * rows), case) <= bar


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -1e30])
@pytest.mark.parametrize(("kind", "rows"), [("text", 65), ("repeat", 130)])
def test_the_reference_whatever_unfilled_rows_hold(fixed: FixedEngines, kind: str, rows: int, garbage: float) -> None:
    case = fixed.case(kind, rows)
    sequence = FixedCacheSequence(fixed.engines, garbage)
    logits = sequence.prefill(fixed.prefill, case["prompt_ids"])
    assert golden_error(logits, case) <= LOGIT_BAR
    assert sequence.greedy(fixed.decode, logits, 32) == case["greedy_ids"]


def test_unfilled_rows_change_not_one_bit(fixed: FixedEngines) -> None:
    ids = fixed.case("text", 66)["prompt_ids"]
    results = []
    for garbage in (0.0, float("nan"), 1e30):
        sequence = FixedCacheSequence(fixed.engines, garbage)
        chunked = sequence.prefill(fixed.prefill, ids, grid(66, 33))
        results.append((chunked, sequence.feed(fixed.decode, [7])))
    for chunked, stepped in results[1:]:
        assert np.array_equal(chunked, results[0][0])
        assert np.array_equal(stepped, results[0][1])


def test_the_mask_decides_what_is_filled(fixed: FixedEngines) -> None:
    """A sliding cache counts more positions than it has rows, so the position cannot tell."""
    case = fixed.case("text", 31)
    shown, hidden = (FixedCacheSequence(fixed.engines, 0.0) for _ in range(2))
    for sequence in (shown, hidden):
        sequence.prefill(fixed.prefill, case["prompt_ids"])
    for values in hidden._caches.values():
        values[:5] = float("nan")
    assert np.isnan(hidden.feed(fixed.decode, [7])).any()  # the mask says that these rows are filled
    assert np.isfinite(shown.feed(fixed.decode, [7])).all()


def test_declared_shapes(fixed: FixedEngines) -> None:
    def shapes(session: onnxruntime.InferenceSession) -> dict[str, list[int | str]]:
        return {tensor.name: tensor.shape for tensor in (*session.get_inputs(), *session.get_outputs())}

    width = next(state.shape[1] for state in fixed.engines.description.states if state.role == "key")
    decode, prefill = shapes(fixed.decode), shapes(fixed.prefill)
    assert decode["cache_k_0"] == prefill["cache_k_0"] == [CACHE_ROWS, width]
    assert decode["attention_mask"] == [1, CACHE_ROWS + 1]
    assert prefill["attention_mask"] == ["rows", "max_cache_length+rows"]
    assert (decode["present_k_0"], prefill["present_k_0"]) == ([1, width], ["rows", width])


@pytest.mark.parametrize("make", [decode_model, lambda exported, form: prefill_model(exported, 64, form)])
def test_projections_keep_their_weights_as_stored(fixed: FixedEngines, make: Any) -> None:
    """Gemm over [out, in]: a compiler then stores the weight's bytes as they lie in the checkpoint."""
    model = make(fixed.engines.exported_model, FIXED)
    weights = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type == "Gemm"]
    assert len(products) == 6 * 3 + 2 * 3 + 1  # of 6 recurrent and 2 attention layers, and the head
    for node in products:
        assert [attribute.i for attribute in node.attribute if attribute.name == "transB"] == [1]
        assert len(weights[node.input[1]]) == 2
    batched = [node for node in model.graph.node if node.op_type == "Reshape" and node.input[0] in weights]
    halved = {node.input[0].split(".", 2)[2] for node in batched}
    assert halved == {"mlp.gate_up_proj.weight", "deltanet.in_proj_ba.weight"}
    assert len(batched) == 8 + 6


def test_only_the_free_form_puts_weights_on_the_left(fixed: FixedEngines) -> None:
    model = prefill_model(fixed.engines.exported_model, 64, FREE_CACHE)
    # The head and what comes before it in the last layer, over one row.
    assert [node.name.rpartition(".")[2] for node in model.graph.node if node.op_type == "Gemm"] == [
        "o_proj",
        "gate_up_proj",
        "down_proj",
        "lm_head",
    ]


def test_computed_sizes_of_a_split_are_refused(fixed: FixedEngines) -> None:
    graph = import_graph(fixed.engines.decode_model)
    split = next(node for node in graph.nodes if node.op == "Split" and node.name.endswith("mlp.gate_up"))
    emitter = Emitter(graph)
    split.inputs[1] = emitter.op("Identity", [split.inputs[1]], "sizes", dtype="int64", shape=[2])
    with pytest.raises(RowpackError, match="sizes of a split are computed"):
        BatchHalvedProjections().check_before(graph)
    with pytest.raises(RowpackError, match="a projection was missed"):
        BatchHalvedProjections().check_after(import_graph(fixed.engines.decode_model))


def test_a_model_without_caches_is_left_alone(shipped_engines: Engines) -> None:
    exported = shipped_engines("rwkv").exported_model
    free, fixed = (decode_model(exported, form) for form in (GraphForm(None, False), FIXED))
    assert free.SerializeToString(deterministic=True) == fixed.SerializeToString(deterministic=True)


def test_fixing_twice_is_refused(fixed: FixedEngines) -> None:
    graph = import_graph(prefill_model(fixed.engines.exported_model, 64, FIXED))
    with pytest.raises(RowpackError, match="fix the cache rows") as caught:
        FixCacheRows(CACHE_ROWS).check_before(graph)
    assert caught.value.code == "surgery_condition"


def test_a_cache_left_free_is_refused(fixed: FixedEngines) -> None:
    graph = import_graph(fixed.engines.prefill_model)
    with pytest.raises(RowpackError, match="free number of cache rows"):
        FixCacheRows(CACHE_ROWS).check_after(graph)


def attention_call(cache_from_elsewhere: bool) -> Any:
    """Return a graph with one call; its key cache may be something other than an input."""
    emitter = Emitter(new_graph("call"))
    kv: list[int | str] = ["cache_rows", 8]
    row = [emitter.input(name, "float32", [1, 8]) for name in ("q", "k", "v")]
    caches = [emitter.input(name, "float32", kv) for name in ("cache_k", "cache_v")]
    mask = emitter.input("mask", "float32", [1, "cache_rows+1"])
    if cache_from_elsewhere:
        caches[0] = emitter.op("Identity", [caches[0]], "copy", dtype="float32", shape=kv)
    out = emitter.op(
        CACHED_ATTENTION, [*row, *caches, mask], "call", dtype="float32", shape=[1, 8], domain="rowpack", head_dim=8
    )
    emitter.output(out, "out", "float32", [1, 8])
    return emitter.graph


def test_caches_must_enter_as_inputs() -> None:
    with pytest.raises(RowpackError, match="not an input of the model"):
        IgnoreUnfilledCacheRows(16).check_before(attention_call(cache_from_elsewhere=True))
    graph = attention_call(cache_from_elsewhere=False)
    surgery_pass = IgnoreUnfilledCacheRows(16)
    surgery_pass.check_before(graph)
    with pytest.raises(RowpackError, match="reads unfilled rows"):
        surgery_pass.check_after(graph)
    surgery_pass.apply(graph)
    surgery_pass.check_after(graph)
