"""Every published size exports and passes surgery. Graphs hold no weights, so 27B is exported without its 54 GB."""

from __future__ import annotations

from pathlib import Path

import pytest
from published_checkpoints import published_checkpoint

from rowpack import BuildRequest
from rowpack.engine_stage import engine_graphs
from rowpack.engines import find_backend
from rowpack.engines.io_contract import DECODE, PREFILL, check_contract, check_pair
from rowpack.export import export_graph
from rowpack.families import find_family
from rowpack.graph.constants import constant_bytes
from rowpack.graph.model import serialize
from rowpack.layout_stage import build_memory_need, decide
from rowpack.model_preparation import prepare_model
from rowpack.surgery.graph_form import FREE_CACHE
from rowpack.synthesis.published_shapes import PUBLISHED_SHAPES, published_config
from rowpack.synthesis.synthesize import text_tensors_of
from rowpack.weights import plan_weights

LARGEST_GRAPH_BYTES = 10**7


@pytest.mark.slow
@pytest.mark.parametrize("shape", PUBLISHED_SHAPES)
def test_a_published_size_becomes_a_pair_of_engines(shape: str) -> None:
    config = published_config(shape)
    names = [tensor.name for tensor in text_tensors_of(shape)]
    model = find_family(config).describe(config, names, "fp32", 4096)
    plan = plan_weights(model.weights)
    graphs = engine_graphs(export_graph(model, plan, "fp32"), 64, FREE_CACHE, split=True).by_role
    contracts = {role: check_contract(graph, model, role, None) for role, graph in graphs.items()}
    check_pair(contracts[DECODE], contracts[PREFILL])
    for role, graph in graphs.items():
        assert len(serialize(graph)) < LARGEST_GRAPH_BYTES, role
        # Both engines use every weight there is, from the one section.
        assert constant_bytes(graph).external == plan.tensor_bytes, role


@pytest.mark.parametrize(("shape", "quantization"), [("rwkv4-169m", "int4"), ("qwen3_5-0.8b", "int4")])
def test_a_prefill_engine_adds_hardly_a_byte(shape: str, quantization: str, tmp_path: Path) -> None:
    """The smallest models in the smallest type have most graph for their weights: at most 2 % more than single."""
    checkpoint = published_checkpoint(shape)
    wanted = BuildRequest(
        tmp_path, tmp_path / "x.bundle", quantization=quantization, embedding_quantization=quantization
    )
    prepared = prepare_model(checkpoint, wanted)
    exported = export_graph(prepared.model, prepared.plan, prepared.precision)
    graphs = engine_graphs(exported, wanted.prefill_rows, FREE_CACHE, split=True).by_role
    single = prepared.plan.section_bytes + len(serialize(graphs[DECODE]))
    split = single + len(serialize(graphs[PREFILL]))
    assert single < split <= 1.02 * single


@pytest.mark.parametrize(("quantization", "most_bytes"), [(None, 300 * 10**6), ("int4", 450 * 10**6)])
def test_a_build_asks_for_what_it_holds(quantization: str | None, most_bytes: int, tmp_path: Path) -> None:
    """Measured: 107 MB and 257 MB. The embedding alone takes 154 MB in float32; there are two of that size."""
    checkpoint, backend = published_checkpoint("rwkv4-169m"), find_backend("ort")
    wanted = BuildRequest(tmp_path, tmp_path / "x.bundle", quantization=quantization)
    prepared = prepare_model(checkpoint, wanted)
    graphs = engine_graphs(export_graph(prepared.model, prepared.plan, "fp32"), 64, FREE_CACHE, split=True)
    decision = decide(wanted, prepared, backend, graphs)
    need = build_memory_need(wanted, prepared, backend, decision, graphs)
    measured_bytes = {None: 107 * 10**6, "int4": 257 * 10**6}[quantization]
    assert measured_bytes < need.byte_count < most_bytes
    assert need.stages["weights"] < 250 * 10**6
