"""Compile the engines of a bundle with OpenVINO's CPU plugin, and open sequences over them.

A graph says for every value which type it has: projections may be bfloat16, and recurrent states, decays, WKV and
norms are float32. OpenVINO's precision hint would lower all of them alike, and on a processor with bfloat16 it is on
unless told otherwise. So the hint here is always float32, with which the plugin keeps every type as the graph has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from rowpack_loaders.buffers import SequenceBuffers
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest import EngineRecord, TensorRecord
from rowpack_loaders.mapped_section import MappedSection
from rowpack_loaders.model_description import DECODE, PREFILL, ModelDescription
from rowpack_loaders.runtimes.computing_threads import computing_threads
from rowpack_loaders.runtimes.denormals import FlushedDenormals
from rowpack_loaders.runtimes.engine_errors import FoundTensor, check_engine_tensors, engine_load_failure
from rowpack_loaders.runtimes.host_sequence import WANTS_LOGITS, open_host_sequence
from rowpack_loaders.runtimes.openvino.graph_reading import read_graph
from rowpack_loaders.runtimes.openvino.library import (
    DEVICE,
    has_bfloat16_products,
    import_openvino,
    plain_version,
)
from rowpack_loaders.runtimes.openvino.logits_branch import branch_off_logits
from rowpack_loaders.runtimes.openvino.sequence import ELEMENT_TYPES, OpenVinoBoundEngine
from rowpack_loaders.weights import view_weights

if TYPE_CHECKING:
    from rowpack_loaders.runtimes import SequenceState

openvino = import_openvino()

COMPILE_PROPERTIES: dict[str, Any] = {
    "INFERENCE_PRECISION_HINT": "f32",
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": 1,
    # Pinned threads of two programs would share the first cores while others idle.
    "ENABLE_CPU_PINNING": False,
}


class OpenVinoRuntime:
    """The engines of one bundle as compiled models over one mapping of the weights.

    ``engines`` maps the roles ``decode`` and (for a split bundle, unless prompts are to run through the decode engine)
    ``prefill`` to ONNX bytes. ``thread_count`` defaults to the physical cores this process may use. Sequences may run
    in several threads; calls of one engine wait for each other.
    """

    backend = "openvino"

    def __init__(
        self,
        model: ModelDescription,
        engines: Mapping[str, bytes],
        weights: MappedSection | None,
        *,
        device: str | None = None,
        thread_count: int | None = None,
    ) -> None:
        if device not in (None, "cpu"):
            raise RowpackError(
                "device_unsupported",
                "The OpenVINO backend runs on the processor",
                found=repr(device),
                expected="cpu",
            )
        self.model = model
        self.backend_version = plain_version(openvino.__version__)
        self.thread_count = computing_threads(thread_count)
        self.has_prefill_engine = PREFILL in engines
        self._core = openvino.Core()
        self._check_processor()
        # OpenVINO holds addresses, not references, so the views live as long as the compiled models.
        self._weights = {} if weights is None else view_weights(weights, where=model.weights_section or "")
        for role in engines:
            self._check_operators(role)
        # A graph that takes any number of rows can serve both roles, as one compiled model. Compiling leaves a core
        # idle half of the time, so both are compiled at once.
        first_role = {id(onnx_bytes): role for role, onnx_bytes in reversed(list(engines.items()))}
        with ThreadPoolExecutor(len(first_role)) as pool:
            compiling = {role: pool.submit(self._compile, role, engines[role]) for role in first_role.values()}
        self._compiled = {role: compiling[first_role[id(onnx_bytes)]].result() for role, onnx_bytes in engines.items()}
        for role, compiled in self._compiled.items():
            # No engine of a manifest has the input that was added.
            inputs = [tensor for tensor in compiled.inputs if WANTS_LOGITS not in tensor.get_names()]
            _check_tensors(model.engines[role], "input", model.engines[role].inputs, inputs)
            _check_tensors(model.engines[role], "output", model.engines[role].outputs, compiled.outputs)

    def open_sequence(self, *, slide: bool = False) -> SequenceState:
        """Return a new sequence with its own buffers, at its start."""
        return open_host_sequence(
            OpenVinoBoundEngine,
            SequenceBuffers(self.model, slide=slide),
            (self.model.engines[DECODE], self._compiled[DECODE]),
            (self.model.engines[PREFILL], self._compiled[PREFILL]) if self.has_prefill_engine else None,
        )

    def _check_operators(self, role: str) -> None:
        """Refuse engines with operators of another runtime's own."""
        needed = self.model.needs[role].requires
        if needed:
            raise RowpackError(
                "runtime_unsuitable",
                f"The {role} engine uses operators of the runtime that it was built for",
                where=self.model.engines[role].section,
                found=", ".join(needed)[:400],
                expected="standard ONNX operators",
                remedy="Leave the runtime out, or build with --backend openvino",
            )

    def _check_processor(self) -> None:
        """Refuse bfloat16 where it would be widened: the weights would take twice the memory, at float32's speed."""
        if self.model.precision == "bf16" and not has_bfloat16_products(self._core):
            raise RowpackError(
                "cpu_feature_missing",
                "The bundle is in bfloat16, and this processor has no bfloat16 products",
                where=self.model.engines[DECODE].section,
                found=str(self._core.get_property(DEVICE, "FULL_DEVICE_NAME")).strip(),
                expected="a processor with avx512_bf16 or amx_bf16",
                remedy="Run it on such a processor, or build with --precision fp32",
            )

    def _compile(self, role: str, onnx_bytes: bytes) -> Any:
        engine = self.model.engines[role]
        properties = {**COMPILE_PROPERTIES, "INFERENCE_NUM_THREADS": self.thread_count}
        try:
            # Compiling computes constants; the mode of this thread is what the worker threads take over, here as in
            # each call. The plugin's own option would leave it changed for good.
            with FlushedDenormals():
                graph = read_graph(self._core, onnx_bytes, self._weights, where=engine.section)
                if role == PREFILL:
                    branch_off_logits(graph, engine.logits)
                return self._core.compile_model(graph, DEVICE, properties)
        except RowpackError:
            raise
        except Exception as error:
            raise engine_load_failure(
                engine,
                f"OpenVINO {self.backend_version}",
                error,
                _reason(error),
                expected="operators that this version has",
                remedy="Build with --backend openvino, which takes plain ONNX operators only",
            ) from error


def _check_tensors(engine: EngineRecord, kind: str, described: tuple[TensorRecord, ...], found: list[Any]) -> None:
    """Refuse an engine whose inputs or outputs are not the manifest's; a tensor may have several names."""
    expected = {tensor.name for tensor in described}
    named = {min(expected & tensor.get_names(), default=tensor.get_any_name()): tensor for tensor in found}
    tensors = {
        name: FoundTensor(
            tensor.get_element_type(),
            tuple(None if size.is_dynamic else size.get_length() for size in tensor.get_partial_shape()),
            f"{tensor.get_element_type()} {tensor.get_partial_shape()}",
        )
        for name, tensor in named.items()
    }
    check_engine_tensors(engine, kind, described, tensors, ELEMENT_TYPES)


def _reason(error: Exception) -> str:
    """Return the telling line of OpenVINO's message: its summary if there is one, else the last; places come first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    summaries = [line.removeprefix("-- ") for line in lines if line.startswith("-- ")]
    return (summaries or lines or [type(error).__name__])[-1]
