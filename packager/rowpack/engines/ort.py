"""ONNX Runtime on the CPU: the engine is the ONNX graph itself, its weights mapped from the bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowpack.engines.backend import BuiltEngine, EngineBuild, EngineOrder, FileRange, OnProgress
from rowpack.engines.options import EngineOptions
from rowpack.engines.serialized_graph import refuse_compiler_options, serialize_engine
from rowpack.gate import SplitVeto
from rowpack.quantization import INT8, INTEGER_QUANTIZATIONS, quantized_build
from rowpack.surgery.graph_form import FREE_CACHE, FusedChoice, GraphForm
from rowpack_loaders.errors import RowpackError

if TYPE_CHECKING:
    import onnx

    from rowpack.graph.constants import ConstantBytes

PRECISIONS = ("fp32", "fp16")
"""What the CPU provider really runs: it has no bfloat16 products, and widens float16 to float32 at load."""


class OrtBackend:
    """The backend ``ort``."""

    name = "ort"
    on_gpu = False
    weights_in_bundle = True
    compiles_at_load = False
    max_prefill_rows = 512

    def check_precision(self, precision: str, quantization: str | None = None) -> None:
        """Refuse small floats and bfloat16, which ONNX Runtime's CPU provider has no products for."""
        if quantization is not None and quantization not in INTEGER_QUANTIZATIONS:
            raise RowpackError(
                "quantization_unsupported",
                "ONNX Runtime's CPU provider would widen these projections to float32",
                where="--quantization",
                found=quantization,
                expected=" or ".join(INTEGER_QUANTIZATIONS),
                remedy=f"Build with {quantized_build(quantization, precision=precision)}, or with "
                f"{quantized_build(INT8)} for the processor.",
            )
        if precision not in PRECISIONS:
            raise RowpackError(
                "precision_unsupported",
                "ONNX Runtime's CPU provider cannot run this precision",
                where="--precision",
                found=precision,
                expected=", ".join(PRECISIONS),
                remedy="Build with --precision fp32 (fastest on the CPU); rowpack export-onnx writes bf16 graphs.",
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
        refuse_compiler_options(options, "ONNX Runtime compiles nothing ahead of time")
        return OrtBuilder()


class OrtBuilder:
    """Takes the graphs as they are."""

    compute_capabilities: tuple[str, ...] = ()

    def build_engine(self, order: EngineOrder, weights: FileRange | None, on_progress: OnProgress) -> EngineBuild:
        """Serialise the graph; its weights stay outside."""
        from rowpack.graph.constants import constant_bytes
        from rowpack.graph.custom_operators import custom_operators
        from rowpack.surgery.fused_operators import lowering_word
        from rowpack_loaders.runtimes.onnxruntime_import import import_onnxruntime

        requires = custom_operators(order.model)
        constants = constant_bytes(order.model)
        return serialize_engine(
            order,
            backend_version=import_onnxruntime().__version__,
            lowering=lowering_word(requires),
            requires=requires,
            target={"os": ["any"], "arch": ["any"], "cpu_features": [], "sm": [], "minimum_driver": None},
            weight_bytes=constants.held_in_float32,
            private_weight_bytes=constants.packed or None,
            weights_shared=constants.external_in_float32 == constants.external,
        )

    def check_written(self, engine: BuiltEngine, written: FileRange) -> None:
        """Leave it to the smoke run, which loads the engines from the bundle's own sections."""
