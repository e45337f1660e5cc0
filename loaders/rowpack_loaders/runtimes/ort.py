"""Run bundles on ONNX Runtime's CPU provider.

The engines' initializers are external data in ``weights.safetensors``; both engines get them by name from
one mapping of the bundle (``SessionOptions.add_initializer``), which copies nothing: loading takes
milliseconds and the second engine costs no memory for weights. Prepacking would make a private copy of
every matrix, so it is off, but for graphs with weights in blocks (MatMulNBits), whose products take a hundred times
as long without it; in those graphs nothing else is packed, because all other matrices are left operands. Graph
optimisation is off where no weight has to be widened: the graphs come as they should run, and looking for more took
most of the load without making a launch faster (docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from rowpack_loaders.block_products import check_block_products, has_block_products
from rowpack_loaders.buffers import SequenceBuffers
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest import EngineRecord
from rowpack_loaders.mapped_section import MappedSection
from rowpack_loaders.model_description import DECODE, PREFILL, ModelDescription
from rowpack_loaders.onnx_wire import relocate_external_data
from rowpack_loaders.row_products import has_row_products
from rowpack_loaders.runtimes.computing_threads import computing_threads
from rowpack_loaders.runtimes.denormals import FlushedDenormals, can_flush_denormals
from rowpack_loaders.runtimes.engine_errors import FoundTensor, check_engine_tensors, engine_load_failure
from rowpack_loaders.runtimes.host_sequence import WANTS_LOGITS, open_host_sequence
from rowpack_loaders.runtimes.onnxruntime_import import import_onnxruntime
from rowpack_loaders.runtimes.ort_branch_products import multiplies_in_a_branch
from rowpack_loaders.runtimes.ort_in_place_states import writes_over_its_state
from rowpack_loaders.runtimes.ort_row_products import check_row_products
from rowpack_loaders.runtimes.ort_sequence import LoadedEngine, OrtBoundEngine
from rowpack_loaders.runtimes.ort_state_edges import EngineEdges, StateEdges
from rowpack_loaders.runtimes.required_operators import check_required_operators, operators_of_onnxruntime
from rowpack_loaders.runtimes.thread_wait import ThreadWait, chosen_spin_us
from rowpack_loaders.weights import WeightView, view_weights

if TYPE_CHECKING:
    from rowpack_loaders.runtimes import SequenceState

onnxruntime = import_onnxruntime()

SHARED_WEIGHT_BYTES = 2**18
"""Weights from this size on are handed over by name; smaller ones are read by the runtime from the same file.

Only matrices are that large. The runtime may reshape a small initializer while it optimises (a bias whose addition is
moved past a transpose, say), and a value given under the old name would then have the wrong shape; matrices are
operands of products, which it leaves as they are.
"""

_VIEWED_AS_INTEGERS = {"BF16": 16, "F8_E4M3": 17}  # onnx.TensorProto.BFLOAT16, FLOAT8E4M3FN
# Dtypes of weights that are widened for every product; optimisation does it once, at load.
_WIDENED = frozenset({"F16", "BF16", "F8_E4M3"})
_GIVE_BACK_SECONDS = 0.05
_FATAL_ONLY = 4  # what goes wrong is raised as an exception; a library does not write to stderr

_ELEMENT_TYPES = {
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
    "bfloat16": "tensor(bfloat16)",
    "int32": "tensor(int32)",
}


class OrtRuntime:
    """The engines of one bundle as ONNX Runtime sessions over one mapped copy of the weights.

    ``engines`` maps the roles ``decode`` and (for a split bundle, unless prompts are to run through the
    decode engine) ``prefill`` to ONNX bytes. A prefill engine that serves decode is loaded for both roles, and a
    decode engine beside it is not. ``thread_count`` defaults to the physical cores this process may use.
    Sequences may run in several threads at once.
    """

    backend = "ort"

    def __init__(
        self,
        model: ModelDescription,
        engines: Mapping[str, bytes],
        weights: MappedSection | None,
        *,
        device: str | None = None,
        thread_count: int | None = None,
        thread_wait: ThreadWait = "auto",
    ) -> None:
        if device not in (None, "cpu"):
            raise RowpackError(
                "device_unsupported",
                "The ONNX Runtime backend runs on the processor",
                found=repr(device),
                expected="cpu",
            )
        self.model = model
        self.backend_version: str = onnxruntime.__version__
        self.thread_count = computing_threads(thread_count)
        self.spin_us = chosen_spin_us(thread_wait, self.thread_count)
        self.has_prefill_engine = PREFILL in engines
        if self.has_prefill_engine and model.prefill_serves_decode:
            engines = {PREFILL: engines[PREFILL], DECODE: engines[PREFILL]}
        # ONNX Runtime holds addresses, not references, so the views live as long as the sessions.
        self._section = weights
        self._weights = {} if weights is None else view_weights(weights, where=model.weights_section or "")
        # The halves of a float32 model are tables that rows are looked up in.
        self._has_weights_to_widen = model.precision != "fp32" and any(
            view.dtype in _WIDENED for view in self._weights.values()
        )
        self._values = {
            name: _ort_value(view) for name, view in self._weights.items() if view.array.nbytes >= SHARED_WEIGHT_BYTES
        }
        self._turned: frozenset[str] = frozenset()
        # A graph that takes any number of rows can serve both roles, as one session with one set of weights.
        first_role = {id(onnx_bytes): role for role, onnx_bytes in reversed(list(engines.items()))}
        self._check_operators(role for role in engines if role in first_role.values())
        packs = any(has_block_products(onnx_bytes) for onnx_bytes in engines.values())
        with ThreadPoolExecutor(len(first_role)) as pool:
            edges, loading = self._start_loading(
                pool, {role: engines[role] for role in first_role.values()}, packs=packs
            )
            # Meanwhile, as the sessions are made without Python:
            self._in_place = self._written_over(
                frozenset.intersection(*(found.read_and_written for found in edges.values()))
            )
            if weights is not None and packs:
                # What is packed is read once, so no more of it than of a moment need be in memory twice.
                while wait(loading.values(), timeout=_GIVE_BACK_SECONDS).not_done:
                    weights.give_back_pages()
                weights.give_back_pages()
        self._engines = {role: loading[first_role[id(onnx_bytes)]].result() for role, onnx_bytes in engines.items()}
        for role, loaded in self._engines.items():
            engine, session = model.engines[role], loaded.session
            inputs, outputs = _found_tensors(session.get_inputs()), _found_tensors(session.get_outputs())
            if loaded.edges.asks_for_logits:
                del inputs[WANTS_LOGITS]  # no engine of a manifest has it
            check_engine_tensors(engine, "input", loaded.edges.bound(engine.inputs), inputs, _ELEMENT_TYPES)
            check_engine_tensors(engine, "output", loaded.edges.bound(engine.outputs), outputs, _ELEMENT_TYPES)

    def open_sequence(self, *, slide: bool = False) -> SequenceState:
        """Return a new sequence with its own buffers, at its start."""
        return open_host_sequence(
            OrtBoundEngine,
            SequenceBuffers(self.model, slide=slide, in_place=self._in_place, turned=self._turned),
            (self.model.engines[DECODE], self._engines[DECODE]),
            (self.model.engines[PREFILL], self._engines[PREFILL]) if self.has_prefill_engine else None,
        )

    def _start_loading(
        self, pool: ThreadPoolExecutor, engines: Mapping[str, bytes], *, packs: bool
    ) -> tuple[dict[str, EngineEdges], dict[str, Future[LoadedEngine]]]:
        """Start to load each engine as soon as it is known how its states are bound; return the edges and what comes.

        Sequences run through all engines that are loaded, so a buffer must suit all of them. Where an engine does not
        take turned what one before it does, which those of one build do, the one before is loaded again.
        """
        edges: dict[str, EngineEdges] = {}
        loading: dict[str, Future[LoadedEngine]] = {}
        for role, onnx_bytes in engines.items():
            edges[role] = self._edges(self.model.engines[role], onnx_bytes)
            if self._section is not None and not packs and not loading:
                # What is packed is read once; all else but tables is read whole in every step, by each engine alike.
                self._section.ask_for_large_pages([name for name in self._values if edges[role].looks_up(name)])
            turned = frozenset.intersection(*(found.turnable for found in edges.values()))
            if turned != self._turned:
                self._turned = turned
                loading.clear()
            for waiting in edges.keys() - loading.keys():
                engine = self.model.engines[waiting]
                is_parted = waiting == PREFILL and (not packs or multiplies_in_a_branch())
                logits = (engine.logits, self.model.vocab_size) if is_parted else None
                taken_off = edges[waiting].taken_off(turned, logits=logits)
                loading[waiting] = pool.submit(self._load, engine, taken_off)
        return edges, loading

    def _check_operators(self, roles: Iterable[str]) -> None:
        needs = [self.model.needs[role] for role in roles if self.model.needs[role].requires]
        if needs:
            product = f"ONNX Runtime {self.backend_version}"
            check_required_operators(needs, operators_of_onnxruntime(onnxruntime), product)

    def _edges(self, engine: EngineRecord, onnx_bytes: bytes) -> EngineEdges:
        if has_block_products(onnx_bytes):
            check_block_products(onnx_bytes, where=engine.section)
        if has_row_products(onnx_bytes):
            check_row_products(engine.section)
        if self._section is not None:
            # Optimisers read small initializers from the file that external data names, so it must be the bundle;
            # the big ones are taken from values.
            onnx_bytes = relocate_external_data(
                onnx_bytes, self._section.path.name, self._section.offset_bytes, where=engine.section
            )
        return EngineEdges(onnx_bytes, self.model.states, where=engine.section)

    def _load(self, engine: EngineRecord, edges: StateEdges) -> LoadedEngine:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        options.intra_op_num_threads = self.thread_count
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(self.spin_us))
        # A pattern would be kept for every cache length that is run: 25 kB a step on a small hybrid model.
        options.enable_mem_pattern = False
        # By the graph's own order (rowpack's has few results alive at once); the runtime's own choice leaves the next
        # states of every layer to the end.
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        if not has_block_products(edges.model):
            options.add_session_config_entry("session.disable_prepacking", "1")
        if not self._has_weights_to_widen:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        # Quantised weights, which only graphs of other backends have, are widened once at load, not in every call.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        if can_flush_denormals():
            # For the worker threads; the calling thread, which the runtime would change for good, is switched
            # around each call instead.
            options.add_session_config_entry("session.set_denormal_as_zero", "1")
        for name, value in self._values.items():
            options.add_initializer(name, value)
        if self._section is not None:
            folder = str(self._section.path.parent)
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
            self._section.check_in_place()
        session = self._create_session(engine, edges.model, options)
        if self._section is not None:
            self._section.check_in_place()
        return LoadedEngine(session, edges)

    def _written_over(self, states: frozenset[str]) -> frozenset[str]:
        """Return those of ``states`` that the installed operator may write over what it reads."""
        shapes = {state.input: state.shape for state in self.model.states if state.input in states}
        return frozenset(name for name, shape in shapes.items() if writes_over_its_state(*shape))

    def _create_session(self, engine: EngineRecord, onnx_bytes: bytes, options: Any) -> Any:
        try:
            with FlushedDenormals():
                return onnxruntime.InferenceSession(onnx_bytes, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise engine_load_failure(
                engine,
                f"ONNX Runtime {self.backend_version}",
                error,
                _first_line(error),
                expected="an engine for this version",
                remedy="Run rowpack validate on the bundle, or build it again with this version",
            ) from error


def _ort_value(view: WeightView) -> Any:
    if view.dtype in _VIEWED_AS_INTEGERS:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(view.array, _VIEWED_AS_INTEGERS[view.dtype])
    return onnxruntime.OrtValue.ortvalue_from_numpy(view.array)


def _found_tensors(found: list[Any]) -> dict[str, FoundTensor]:
    """Return a session's inputs or outputs by name; sizes with a name of their own are free."""
    return {
        tensor.name: FoundTensor(
            tensor.type,
            tuple(size if isinstance(size, int) else None for size in tensor.shape),
            f"{tensor.type} {tensor.shape}",
        )
        for tensor in found
    }


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
