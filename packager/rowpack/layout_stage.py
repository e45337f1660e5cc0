"""The gate's part of a build: count what the engines would hold, and decide whether there are one or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rowpack.capacity import find_capacity
from rowpack.engine_stage import EngineGraphs
from rowpack.engines.backend import Backend, BuiltEngine
from rowpack.engines.io_contract import DECODE, PREFILL
from rowpack.gate import UNKNOWN_CAPACITY, LayoutDecision, WeightNeed, decide_layout
from rowpack.host_need import HostMemoryNeed, engines_keep_halves, packing_bytes, session_count
from rowpack.model_preparation import BuildRequest, PreparedModel
from rowpack.quantization import HALF_PRECISIONS
from rowpack.weights import largest_piece_bytes
from rowpack_loaders.compatibility.memory_need import MemoryNeed
from rowpack_loaders.errors import Problem, RowpackError

_LARGEST = 2**53


def decide(request: BuildRequest, prepared: PreparedModel, backend: Backend, graphs: EngineGraphs) -> LayoutDecision:
    """Return the layout for these graphs (decode, and prefill where there may be one) and every number behind it."""
    return decide_layout(
        request.decoder_engine_layout,
        weights=_weight_need(prepared, backend, graphs),
        state_bytes=prepared.model.state_bytes,
        key_value_bytes_per_token=prepared.model.key_value_bytes_per_token,
        capacity=find_capacity(request.target_memory_bytes, request.target_gpu, on_gpu=backend.on_gpu),
        veto=backend.split_veto(request.quantization),
    )


def decide_as_built(decision: LayoutDecision, engines: Sequence[BuiltEngine]) -> LayoutDecision:
    """Return the decision for a pair whose weights the compiler itself counted while it baked them in.

    Its own count takes the place of what was counted from the graphs before, and may turn ``auto`` into single.
    """
    counted = all(engine.weights_shared is None and engine.context_bytes is not None for engine in engines)
    if decision.layout == "single" or not counted:
        return decision
    held = {engine.role: engine.weight_bytes for engine in engines}
    return decide_layout(
        decision.requested,
        weights=replace(decision.weights, engine_bytes=held, needed_bytes=sum(held.values())),
        state_bytes=decision.state_bytes,
        key_value_bytes_per_token=decision.key_value_bytes_per_token,
        capacity=decision.capacity,
    )


def longest_decision(prepared: PreparedModel) -> LayoutDecision:
    """Return a decision whose record is as long as one can be, to reserve space for."""
    return decide_layout(
        "split",
        weights=WeightNeed(_LARGEST, 2, {"decode": _LARGEST, "prefill": _LARGEST}, _LARGEST),
        state_bytes=prepared.model.state_bytes,
        key_value_bytes_per_token=prepared.model.key_value_bytes_per_token,
        capacity=UNKNOWN_CAPACITY,
    )


def check_target_gpu(request: BuildRequest, backend: Backend, compute_capabilities: tuple[str, ...]) -> None:
    """Refuse a target GPU that the engines will not run on.

    Raises ``target_gpu_unsupported``; ``compute_capabilities`` are those that the builder compiles for.
    """
    gpu = request.published_gpu
    if gpu is None or (backend.on_gpu and gpu.compute_capability in compute_capabilities):
        return
    if not backend.on_gpu:
        raise RowpackError(
            "target_gpu_unsupported",
            "engines of this backend run on the processor, whatever GPU there is",
            where="--target-gpu",
            found=gpu.name,
            expected=f"no GPU for --backend {backend.name}",
            remedy="Give the memory with --target-memory, or choose a backend for GPUs: --backend trt_rtx.",
        )
    if request.engine_options.hardware_compatibility == "ampere_plus" and float(gpu.compute_capability) >= 8.0:
        return
    raise RowpackError(
        "target_gpu_unsupported",
        "the engines would not be compiled for the GPU that the bundle is for",
        where="--target-gpu",
        found=f"{gpu.name}, compute capability {gpu.compute_capability}",
        expected=f"a compute capability of {', '.join(compute_capabilities)}",
        remedy="Add it to --compute-capability, or build with --backend trt on such a GPU.",
    )


def build_memory_need(
    request: BuildRequest,
    prepared: PreparedModel,
    backend: Backend,
    decision: LayoutDecision,
    graphs: EngineGraphs,
) -> HostMemoryNeed:
    """Return what the build of these graphs will take of this machine's memory."""
    from rowpack.graph.constants import constant_bytes, largest_packed_bytes
    from rowpack.graph.live_activations import live_activation_bytes
    from rowpack.surgery.row_count import CACHE_ROWS, ROWS

    private = max(constant_bytes(graph).packed for graph in graphs.by_role.values())
    if prepared.precision in HALF_PRECISIONS:
        private = 2 * prepared.plan.tensor_bytes
    if backend.weights_in_bundle and not backend.shares_weights(prepared.precision):
        # The runtime of the engines makes a copy for itself.
        private = max(private, decision.weights.engine_bytes[DECODE])
    keep_halves = engines_keep_halves(
        prepared.precision,
        shares_weights=backend.shares_weights(prepared.precision),
        compiles_at_load=backend.compiles_at_load,
    )
    # The longest smoke prompt: a chunk after a chunk.
    sizes = {ROWS: request.prefill_rows, CACHE_ROWS: min(request.prefill_rows, prepared.max_cache_length)}
    return HostMemoryNeed(
        node_count=sum(len(graph.graph.node) for graph in (graphs.exported, *graphs.by_role.values())),
        piece_bytes=largest_piece_bytes(prepared.plan),
        builder_bytes=backend.builder_memory_bytes(
            prepared.plan.tensor_bytes, max(len(graph.graph.node) for graph in graphs.by_role.values())
        ),
        private_weight_bytes=private,
        packing_bytes=packing_bytes(
            largest_packed_bytes=max(largest_packed_bytes(graph) for graph in graphs.by_role.values()),
            private_weight_bytes=private,
            compiles_at_load=backend.compiles_at_load,
            widens_halves=prepared.precision in HALF_PRECISIONS and not keep_halves,
            weights_in_bundle=backend.weights_in_bundle,
        ),
        session_count=session_count(
            split=decision.layout == "split",
            one_serves_both=graphs.prefill_serves_decode,
            engines_keep_halves=keep_halves,
        ),
        live_activation_bytes=max(live_activation_bytes(graph, sizes) for graph in graphs.by_role.values()),
        verify=request.verify,
        compiles_at_load=backend.compiles_at_load,
    )


def check_promised_layout(runtime_json_layout: str) -> None:
    """Refuse to take a prefill plan back that ``runtime.json`` has told of; raises ``runtime_json_split_unbuilt``."""
    if runtime_json_layout == "split":
        raise RowpackError(
            "runtime_json_split_unbuilt",
            "the pair turned out not to fit the device, and loaders that predate the manifest were told of it",
            where="--runtime-json",
            found="split, for a bundle that must be single",
            expected="single",
            remedy="Leave --runtime-json out, or build for a device with more memory.",
        )


def memory_warning(decision: LayoutDecision, need: MemoryNeed) -> Problem | None:
    """Return a warning when the weights fit the budget, and everything a loader takes does not fit the device."""
    capacity = decision.capacity.byte_count
    needed = need.pair_bytes if decision.layout == "split" else need.decode_bytes
    if capacity is None or needed <= capacity:
        return None
    return Problem(
        "device_memory_tight",
        "with context memory, states and full caches the bundle takes more than the device has",
        where=PREFILL if decision.layout == "split" else "decode",
        found=f"{needed} bytes",
        expected=f"at most {capacity} bytes",
        remedy="Build with a shorter --max-sequence-length, or for a device with more memory.",
    )


def _weight_need(prepared: PreparedModel, backend: Backend, graphs: EngineGraphs) -> WeightNeed:
    from rowpack.graph.constants import constant_bytes

    constants = {role: constant_bytes(graph) for role, graph in graphs.by_role.items()}
    held = {role: backend.weights_in_memory(counted) for role, counted in constants.items()}
    shared = backend.shares_weights(prepared.precision)
    # One copy of what lies in the weight section, and what each engine packs or its graph holds for itself.
    once = max(counted.external - counted.packed_from for counted in constants.values()) + sum(
        counted.inline + counted.packed for counted in constants.values()
    )
    copies = 1 if shared and not any(counted.packed for counted in constants.values()) else 2
    stored = (
        prepared.plan.tensor_bytes
        if backend.weights_in_bundle
        else max(counted.total for counted in constants.values())
    )
    if graphs.prefill_serves_decode:
        # A session of one engine at a time: the prefill engine's, or the decode engine's where that was asked for.
        return WeightNeed(stored, 1, held, max(held.values()))
    return WeightNeed(stored, copies, held, once if shared else sum(held.values()))
