"""Residual sums with the RMS norm that follows: what matches, what does not, and that the result is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from model_engines import ModelEngines
from oracles import relative_error
from subgraph import cpu_session

from rowpack.families.normalisation import rms_norm
from rowpack.graph.emitter import Emitter, Tensor
from rowpack.graph.model import export_model, import_graph, new_graph
from rowpack.surgery.pattern import PatternReplacement
from rowpack.surgery.residual_norm import RESIDUAL_NORM, skip_simplified_layer_normalization
from rowpack.surgery.surgery_pass import check_plain, run_passes
from rowpack_loaders.errors import RowpackError

WIDTH = 24
WEIGHT = np.random.default_rng(1).standard_normal(WIDTH).astype(np.float32)
FUSE = PatternReplacement(RESIDUAL_NORM, skip_simplified_layer_normalization)
OPERATOR = "com.microsoft.SkipSimplifiedLayerNormalization"


def residual_graph(change: Callable[[Emitter, Tensor], Tensor] | None = None, *, output_sum: bool = True) -> Any:
    """Return a graph of x + y, its norm, and a second reader of the sum; ``change`` lies between sum and norm."""
    emitter = Emitter(new_graph("residual"))
    x, y = (emitter.input(name, "float32", ["rows", WIDTH]) for name in "xy")
    total = emitter.op("Add", [x, y], "residual")
    normed = rms_norm(emitter, total if change is None else change(emitter, total), emitter.constant("w", WEIGHT), 1e-5)
    emitter.output(normed, "normed", "float32", ["rows", WIDTH])
    emitter.output(emitter.op("Neg", [total], "negative"), "other", "float32", ["rows", WIDTH])
    if output_sum:
        emitter.output(total, "sum", "float32", ["rows", WIDTH])
    return emitter.graph


def results(graph: Any) -> list[Any]:
    rng = np.random.default_rng(2)
    feeds = {name: rng.standard_normal((5, WIDTH)).astype(np.float32) for name in "xy"}
    return list(cpu_session(export_model(graph).SerializeToString()).run(None, feeds))


@pytest.mark.parametrize("output_sum", [False, True])
def test_one_node_computes_both(output_sum: bool) -> None:
    graph = residual_graph(output_sum=output_sum)
    expected = results(graph.copy())
    run_passes(graph, [FUSE])
    check_plain(graph, [OPERATOR])
    assert sorted(node.op for node in graph.nodes) == ["Neg", "SkipSimplifiedLayerNormalization"]
    for found, wanted in zip(results(graph), expected, strict=True):
        assert relative_error(found, wanted) <= 1e-6


def test_the_operator_is_plain_only_when_it_was_chosen() -> None:
    graph = residual_graph()
    run_passes(graph, [FUSE])
    with pytest.raises(RowpackError) as caught:
        check_plain(graph)
    assert OPERATOR in str(caught.value)


def scaled(emitter: Emitter, total: Tensor) -> Tensor:
    return emitter.op("Mul", [total, emitter.floats("half", 0.5, scalar=True)], "halved")


def biased(emitter: Emitter, total: Tensor) -> Tensor:
    return emitter.op("Add", [total, emitter.constant("bias", WEIGHT)], "biased")


@pytest.mark.parametrize("change", [scaled, biased])
def test_other_norms_stay(change: Callable[[Emitter, Tensor], Tensor]) -> None:
    graph = residual_graph(change)
    assert RESIDUAL_NORM.find(graph) == []
    before = [node.op for node in graph.nodes]
    run_passes(graph, [FUSE])
    assert sorted(node.op for node in graph.nodes) == sorted(before)


@pytest.mark.parametrize("inside", ["squared", "mean", "shifted", "root", "normalised"])
def test_a_step_of_the_norm_that_others_read_stays(inside: str) -> None:
    graph = residual_graph()
    (step,) = (node for node in graph.nodes if node.name == f"norm.{inside}")
    Emitter(graph).output(Emitter(graph).op("Neg", [step.outputs[0]], "read"), "also", "float32", ["rows", "n"])
    assert RESIDUAL_NORM.find(graph) == []


def test_a_pass_that_leaves_a_norm_is_found() -> None:
    with pytest.raises(RowpackError) as caught:
        FUSE.check_after(residual_graph())
    assert caught.value.code == "surgery_condition"


def test_every_norm_after_a_residual_sum_is_found_in_a_model(shipped_engines: Callable[..., ModelEngines]) -> None:
    """Two norms a layer but the first, which reads the embedding, and the last; queries, keys, heads are no sums."""
    engines = shipped_engines("qwen3_5")
    layers = len(engines.description.hyper_parameters["layer_types"])
    found = RESIDUAL_NORM.find(import_graph(engines.exported_model))
    assert len(found) == 2 * layers
    width = engines.description.hyper_parameters["hidden_size"]
    assert [norm.shapes for norm in found] == len(found) * [(["rows", width], ["rows", width], [width])]
    epsilon = engines.description.hyper_parameters["rms_norm_eps"]
    assert {norm.attributes["epsilon"] for norm in found} == {float(np.float32(epsilon))}
    assert RESIDUAL_NORM.find(import_graph(shipped_engines("rwkv").exported_model)) == []
    assert RESIDUAL_NORM.find(import_graph(shipped_engines("qwen3_5", "fp16").exported_model)) == []


def test_the_chosen_operator_is_well_formed() -> None:
    graph = residual_graph()
    run_passes(graph, [FUSE])
    model = export_model(graph)
    onnx.checker.check_model(model)
    (node,) = (node for node in model.graph.node if node.domain)
    assert [bool(name) for name in node.output] == [True, False, False, True]
