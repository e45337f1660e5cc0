"""ONNX Runtime on the CPU: the engine is the ONNX graph itself, its weights mapped from the bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rowpack.engines.backend import BuiltEngine, EngineBuild, EngineOrder, FileRange, OnProgress
from rowpack.engines.io_contract import DECODE, PREFILL
from rowpack.engines.options import EngineOptions, option_flag
from rowpack.gate import SplitVeto
from rowpack.quantization import INTEGER_BITS
from rowpack.surgery.graph_form import FREE_CACHE, FusedChoice, GraphForm
from rowpack_loaders.errors import RowpackError

if TYPE_CHECKING:
    import onnx

    from rowpack.graph.constants import ConstantBytes

SECTIONS = {DECODE: "engine.onnx", PREFILL: "prefill.onnx"}

PRECISIONS = ("fp32", "fp16")
"""What the CPU provider really runs: it has no bfloat16 products, and widens float16 to float32 at load."""


class OrtBackend:
    """The backend ``ort``."""

    name = "ort"
    on_gpu = False
    weights_in_bundle = True
    max_prefill_rows = 512

    def check_precision(self, precision: str, quantization: str | None = None) -> None:
        """Refuse bfloat16 and small floats, which ONNX Runtime's CPU provider has no products for."""
        if precision not in PRECISIONS:
            raise RowpackError(
                "precision_unsupported",
                "ONNX Runtime's CPU provider cannot run this precision",
                where="--precision",
                found=precision,
                expected=", ".join(PRECISIONS),
                remedy="Build with --precision fp32 (fastest on the CPU); rowpack export-onnx writes bf16 graphs.",
            )
        if quantization is not None and quantization not in INTEGER_BITS:
            raise RowpackError(
                "quantization_unsupported",
                "ONNX Runtime's CPU provider would widen these projections to float32",
                where="--quantization",
                found=quantization,
                expected=" or ".join(INTEGER_BITS),
                remedy="Use --backend trt_rtx or trt, or another quantization.",
            )

    def graph_form(self, capacity_rows: int, precision: str) -> GraphForm:
        """Return the form whose caches are as long as they are filled."""
        return FREE_CACHE

    def fused_operators(self, lowering: str, exported: onnx.ModelProto) -> FusedChoice:
        """Return what the installed ONNX Runtime runs right, and for ``auto`` faster."""
        from rowpack.engines.fused_operators.choice import FASTER_ON_THE_CPU, choose_fused_operators

        return choose_fused_operators(lowering, exported, FASTER_ON_THE_CPU)

    def shares_weights(self, precision: str) -> bool:
        """Both sessions map float32 weights from the bundle; halves are widened, by each session for itself.

        So are weights in blocks packed, which :meth:`weights_in_memory` counts.
        """
        return precision == "fp32"

    def weights_in_memory(self, constants: ConstantBytes) -> int:
        """Count halves as the float32 values that the CPU provider makes of them, and blocks as it packs them."""
        return constants.held_in_float32 + constants.inline

    def builder_memory_bytes(self, weight_bytes: int, node_count: int) -> int:
        """Nothing is compiled."""
        return 0

    def split_veto(self, quantization: str | None = None) -> SplitVeto | None:
        """Any graph with free rows runs."""
        return None

    def open_builder(self, options: EngineOptions, quantization: str | None = None) -> OrtBuilder:
        """Refuse options for compilers: nothing is compiled ahead of time."""
        if options.given:
            raise RowpackError(
                "engine_option_unsupported",
                "ONNX Runtime compiles nothing ahead of time",
                where=", ".join(option_flag(name) for name in options.given),
                found="options for a compiler",
                expected="none",
                remedy="Leave them out, or choose a backend that compiles: --backend trt_rtx.",
            )
        return OrtBuilder()


class OrtBuilder:
    """Takes the graphs as they are."""

    compute_capabilities: tuple[str, ...] = ()

    def build_engine(self, order: EngineOrder, weights: FileRange | None, on_progress: OnProgress) -> EngineBuild:
        """Serialise the graph; its weights stay outside."""
        from rowpack.graph.constants import constant_bytes
        from rowpack.graph.custom_operators import custom_operators
        from rowpack.graph.model import IR_VERSION, OPSET, serialize
        from rowpack.surgery.fused_operators import lowering_word
        from rowpack_loaders.runtimes.onnxruntime_import import import_onnxruntime

        requires = custom_operators(order.model)
        onnx_bytes = serialize(order.model)
        constants = constant_bytes(order.model)
        return SerializedGraph(
            BuiltEngine(
                role=order.role,
                section=SECTIONS[order.role],
                backend_version=import_onnxruntime().__version__,
                lowering=lowering_word(requires),
                requires=requires,
                target={"os": ["any"], "arch": ["any"], "cpu_features": [], "sm": [], "minimum_driver": None},
                rows=order.rows,
                opset=OPSET,
                ir_version=IR_VERSION,
                onnx=onnx_bytes,
                onnx_sha256=hashlib.sha256(onnx_bytes).hexdigest(),
                weight_bytes=constants.held_in_float32,
                private_weight_bytes=constants.packed or None,
                weights_shared=constants.external_in_float32 == constants.external,
                context_bytes=None,
                contract=order.contract,
                serves_decode=order.serves_decode,
            )
        )

    def check_written(self, engine: BuiltEngine, written: FileRange) -> None:
        """Leave it to the smoke run, which loads the engines from the bundle's own sections."""


class SerializedGraph:
    """An engine that is its graph."""

    media_type = "application/onnx"

    def __init__(self, engine: BuiltEngine) -> None:
        self._engine = engine

    @property
    def section(self) -> str:
        """Name of its section."""
        return self._engine.section

    def pieces(self) -> Iterator[bytes]:
        """Yield the graph."""
        yield self._engine.onnx

    def result(self) -> BuiltEngine:
        """Return what was built."""
        return self._engine
