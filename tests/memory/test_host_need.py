"""What a build needs of its own machine: estimated before, measured after, refused when it cannot fit."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from published_checkpoints import published_checkpoint

from rowpack import BuildRequest, build, weights
from rowpack import build_stages as stages
from rowpack.checkpoint import open_checkpoint
from rowpack.engines import find_backend
from rowpack.families.declaration import ModelDescription, WeightSource, WeightSpec
from rowpack.graph.live_activations import live_activation_bytes
from rowpack.host_need import (
    ARENA_FACTOR,
    COMPILING_NODE_BYTES,
    NODE_BYTES,
    PIECES_HELD,
    PROCESS_BYTES,
    SESSIONS_BYTES,
    HostMemoryNeed,
    check_host_memory,
    engines_keep_halves,
    packing_bytes,
    session_count,
)
from rowpack.integer_quantization import dequantized
from rowpack.memory_sampler import MemorySampler
from rowpack.model_preparation import prepare_model
from rowpack.quantization import quantize
from rowpack.weights import PIECE_BYTES, largest_piece_bytes, plan_weights, stream_weights
from rowpack_loaders import RowpackError

GB = 10**9


def need(**changes: Any) -> HostMemoryNeed:
    """Return the need of a build of a 9B model for plans, with ``changes``."""
    facts: dict[str, Any] = {
        "node_count": 1000,
        "piece_bytes": 16 * 10**6,
        "builder_bytes": 18 * GB,
        "private_weight_bytes": 36 * GB,
        "packing_bytes": 0,
        "session_count": 2,
        "live_activation_bytes": 0,
        "verify": True,
    }
    return HostMemoryNeed(**{**facts, **changes})


PROCESS = PROCESS_BYTES + 1000 * NODE_BYTES


def test_the_hungriest_stage_counts() -> None:
    assert (need().stage, need().byte_count) == ("verify", PROCESS + SESSIONS_BYTES + 2 * 36 * GB)
    assert (need(verify=False).stage, need(verify=False).byte_count) == ("engines", PROCESS + 18 * GB)
    small = need(verify=False, builder_bytes=0)
    assert (small.stage, small.byte_count) == ("weights", PROCESS + PIECES_HELD * 16 * 10**6)
    # Weights that are mapped and not widened cost nothing that could not be taken back.
    mapped = need(private_weight_bytes=0, builder_bytes=0)
    assert (mapped.stage, mapped.byte_count) == ("verify", PROCESS + SESSIONS_BYTES)
    packed = need(session_count=1, private_weight_bytes=GB, packing_bytes=GB // 4, builder_bytes=0)
    assert packed.byte_count == PROCESS + SESSIONS_BYTES + GB + GB // 4
    # A runtime that compiles graphs holds more of each node.
    compiled = need(private_weight_bytes=0, builder_bytes=0, compiles_at_load=True)
    assert compiled.byte_count == mapped.byte_count + 1000 * COMPILING_NODE_BYTES


def test_what_loading_takes_in_addition() -> None:
    """Measured with RWKV-4 169m: OpenVINO held its widened weights once more than its two sessions do."""
    facts = {"largest_packed_bytes": 7, "private_weight_bytes": GB, "weights_in_bundle": True}
    assert packing_bytes(**facts, compiles_at_load=False, widens_halves=True) == 7
    plans = {**facts, "weights_in_bundle": False}
    assert packing_bytes(**plans, compiles_at_load=False, widens_halves=True) == GB // 2
    assert packing_bytes(**plans, compiles_at_load=False, widens_halves=False) == 7
    assert packing_bytes(**facts, compiles_at_load=True, widens_halves=True) == GB
    assert packing_bytes(**facts, compiles_at_load=True, widens_halves=False) == 0
    compiling = {name: find_backend(name).compiles_at_load for name in ("ort", "openvino", "trt", "trt_rtx")}
    assert compiling == {"ort": False, "openvino": True, "trt": False, "trt_rtx": False}


def test_sessions_that_hold_weights_for_themselves() -> None:
    counts = {
        (split, one, kept): session_count(split=split, one_serves_both=one, engines_keep_halves=kept)
        for split in (True, False)
        for one in (True, False)
        for kept in (True, False)
    }
    assert [facts for facts, count in counts.items() if count == 2] == [(True, False, False)]


def test_engines_in_bfloat16_keep_halves_where_the_processor_multiplies_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured with Qwen3.5-0.8B on OpenVINO: 3.2 GB, of which the exported graph's widened weights are 3.0."""
    for features, kept in ((frozenset({"avx512_bf16"}), True), (frozenset({"avx2"}), False), (None, False)):
        monkeypatch.setattr("rowpack.host_need.processor_features", lambda features=features: features)
        assert engines_keep_halves("bf16", shares_weights=True, compiles_at_load=True) is kept
        assert not engines_keep_halves("fp16", shares_weights=True, compiles_at_load=True)
        assert not engines_keep_halves("bf16", shares_weights=False, compiles_at_load=True)
        assert not engines_keep_halves("bf16", shares_weights=True, compiles_at_load=False)


def test_activations_count_where_chunks_are_run() -> None:
    chunks = need(private_weight_bytes=0, builder_bytes=0, piece_bytes=0, live_activation_bytes=100 * 10**6)
    assert (chunks.stage, chunks.byte_count) == (
        "verify",
        PROCESS + SESSIONS_BYTES + ARENA_FACTOR * 100 * 10**6,
    )
    assert need(verify=False, live_activation_bytes=GB).stages == need(verify=False).stages


@pytest.mark.parametrize("family", ["qwen3_5", "rwkv"])
def test_activations_grow_with_the_rows(family: str, tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """The estimate of a build tells it, before: what does not grow with the rows is little beside it."""
    estimates = {}
    for rows in (8, 512):
        wanted = request(tiny_checkpoints[family], tmp_path / "x.bundle", prefill_rows=rows)
        wanted = replace(wanted, max_sequence_length=256, decoder_engine_layout="split")
        estimates[rows] = build(wanted).host_memory.need.activation_bytes
    assert estimates[512] > 20 * estimates[8] > 0


def test_live_activations_are_those_needed_at_once() -> None:
    """Of a chain each result ends with its reader; one that is read later stays."""
    rows = ["rows", 10]
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Add", ["a", "c"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, rows) for name in ("x", "y")]
    model = helper.make_model(helper.make_graph(nodes, "chain", values[:1], values[1:]))
    assert live_activation_bytes(model, {"rows": 7}) == 3 * 7 * 10 * 4


def test_a_build_that_cannot_fit_is_refused_unless_told_to_try() -> None:
    wanted = need(verify=False)
    check_host_memory(wanted, wanted.byte_count, override=False)
    check_host_memory(wanted, None, override=False)
    check_host_memory(wanted, 1, override=True)
    with pytest.raises(RowpackError) as caught:
        check_host_memory(wanted, wanted.byte_count - 1, override=False)
    assert caught.value.code == "host_memory_insufficient"
    assert "--ignore-host-memory" in str(caught.value.problem.remedy)


@pytest.mark.parametrize("shape", ["qwen3_5-0.8b", "qwen3_5-27b", "rwkv4-14b"])
@pytest.mark.parametrize("quantization", [None, "int4"])
def test_a_tensor_counts_by_its_pieces(shape: str, quantization: str | None, tmp_path: Path) -> None:
    """The embedding of 27B takes 5 GB in float32, and its build no more than that of a tenth of it."""
    checkpoint = published_checkpoint(shape)
    wanted = BuildRequest(tmp_path, tmp_path / "x.bundle", quantization=quantization)
    plan = prepare_model(checkpoint, wanted).plan
    assert max(tensor.byte_count for tensor in plan.tensors) > 2 * PIECE_BYTES
    assert PIECE_BYTES // 2 < largest_piece_bytes(plan) <= PIECE_BYTES


class Ones:
    """A checkpoint whose tensors are ones of one dtype."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Return rows of 2048 columns."""
        return np.ones((stop - start, 2048), self._dtype)


@pytest.mark.parametrize("stored", ["float32", "float16", "int8", "int4", "dequantized"])
@pytest.mark.parametrize("read", [np.float64, np.float32, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
def test_as_many_pieces_are_held_as_are_counted(stored: str, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces are smaller here, so that it takes no time; their number is what counts."""
    monkeypatch.setattr(weights, "PIECE_BYTES", 2**20)
    shape = (1024, 2048)
    work = stored if stored.startswith("float") else "float32"
    spec = WeightSpec("projection", work, shape, (WeightSource("projection", shape),), quantizable=True)
    model = ModelDescription("family", "Architecture", {}, 1, None, (spec,), ())
    if work != stored:
        model = quantize(model, "int4" if stored == "dequantized" else stored)
    if stored == "dequantized":
        model = dequantized(model)
    plan = plan_weights(model.weights)
    reader = Ones(read)
    for _ in stream_weights(plan, reader):
        pass  # tables of all 16-bit values are made once
    tracemalloc.start()
    try:
        for _ in stream_weights(plan, reader):
            pass
        held_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert largest_piece_bytes(plan) == 2**20
    assert held_bytes < PIECES_HELD * 2**20


def test_pieces_of_small_tensors_are_small(rwkv_checkpoint: Path, tmp_path: Path) -> None:
    with open_checkpoint(rwkv_checkpoint) as checkpoint:
        plan = prepare_model(checkpoint, request(rwkv_checkpoint, tmp_path / "x.bundle")).plan
        largest = max(info.byte_count for info in checkpoint.tensors.values())
    assert largest_piece_bytes(plan) == 2 * largest


def request(rwkv_checkpoint: Path, path: Path, **changes: Any) -> BuildRequest:
    """Return a request for the small RWKV model, not verified."""
    return BuildRequest(checkpoint=rwkv_checkpoint, output=path, **{"verify": False, **changes})


def test_a_build_asks_before_it_starts(rwkv_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "available_host_memory", lambda: 10**6)
    with pytest.raises(RowpackError) as caught:
        build(request(rwkv_checkpoint, tmp_path / "x.bundle"))
    assert caught.value.code == "host_memory_insufficient"
    assert list(tmp_path.iterdir()) == []
    report = build(request(rwkv_checkpoint, tmp_path / "x.bundle", ignore_host_memory=True))
    assert report.host_memory.available_bytes == 10**6


def test_the_report_tells_estimate_and_measurement(rwkv_checkpoint: Path, tmp_path: Path) -> None:
    report = build(request(rwkv_checkpoint, tmp_path / "x.bundle", decoder_engine_layout="split")).as_json()
    host: Any = report["host_memory"]
    assert host["estimated_bytes"] == max(host["estimated_stage_bytes"].values()) >= PROCESS_BYTES
    assert host["peak_anonymous_bytes"] > 0
    assert host["available_bytes"] > 0
    memory: Any = report["memory"]
    decision: Any = report["layout_decision"]
    assert memory["decode_weights"] == decision["weight_bytes"]
    assert memory["prefill_weights"] == 0
    assert decision["engine_weight_bytes"].keys() == {"decode", "prefill"}
    assert decision["needed_bytes"] >= decision["weight_bytes"]


def test_halves_count_as_what_the_processor_makes_of_them(rwkv_checkpoint: Path, tmp_path: Path) -> None:
    narrow = request(rwkv_checkpoint, tmp_path / "x.bundle", precision="fp16", decoder_engine_layout="split")
    report = build(narrow)
    decision = report.layout_decision
    assert decision["copies"] == 2
    assert 3.9 * decision["weight_bytes"] < decision["needed_bytes"] < 4.2 * decision["weight_bytes"]
    assert report.memory.prefill_weights == report.memory.decode_weights > 1.9 * decision["weight_bytes"]


def test_a_bundle_that_fits_by_its_weights_alone_is_told(rwkv_checkpoint: Path, tmp_path: Path) -> None:
    from rowpack_loaders import open_bundle

    path = tmp_path / "x.bundle"
    build(request(rwkv_checkpoint, path))
    with open_bundle(path) as bundle:
        weights: Any = bundle.manifest["layout_decision"]
    tight = request(rwkv_checkpoint, path, target_memory_bytes=weights["weight_bytes"] // 2)
    assert [warning.code for warning in build(tight).warnings] == ["device_memory_tight"]


def test_a_target_gpu_the_engines_do_not_run_on_is_refused(rwkv_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(RowpackError) as caught:
        build(request(rwkv_checkpoint, tmp_path / "x.bundle", target_gpu="L4"))
    assert caught.value.code == "target_gpu_unsupported"


def test_the_sampler_sees_this_process_and_its_children() -> None:
    with MemorySampler() as sampler:
        subprocess.run([sys.executable, "-c", "x = bytearray(80_000_000); import time; time.sleep(0.4)"], check=True)
    alone = MemorySampler()
    with alone:
        pass
    assert sampler.peak_anonymous_bytes is not None
    assert alone.peak_anonymous_bytes is not None
    assert sampler.peak_anonymous_bytes > alone.peak_anonymous_bytes + 60_000_000
