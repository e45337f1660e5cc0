"""The backends ``trt`` and ``trt_rtx``: one adapter over two flavours of the library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rowpack.engines.backend import BuiltEngine, EngineBuild, EngineOrder, FileRange, OnProgress
from rowpack.engines.options import EngineOptions
from rowpack.engines.tensorrt.builder_process import ask_library
from rowpack.engines.tensorrt.flavour import Flavour
from rowpack.engines.tensorrt.library import AskLibrary, Library, check_options, open_library
from rowpack.engines.tensorrt.plan_build import PlanBuild, compiler_bytes
from rowpack.engines.tensorrt.written_plan import check_written_plan
from rowpack.gate import SplitVeto
from rowpack.quantization import FP8, INTEGER_QUANTIZATIONS, quantized_build
from rowpack.surgery.graph_form import FusedChoice, GraphForm, compiled_form
from rowpack_loaders.errors import RowpackError

if TYPE_CHECKING:
    import onnx

    from rowpack.graph.constants import ConstantBytes

PRECISIONS = ("fp32", "fp16", "bf16")


class TensorRtBackend:
    """One flavour as a backend. Plans hold their weights, so a pair holds them twice and the bundle not once more."""

    on_gpu = True
    weights_in_bundle = False
    compiles_at_load = False
    max_prefill_rows = 512

    def __init__(self, flavour: Flavour, ask: AskLibrary = ask_library) -> None:
        self.flavour = flavour
        self.name = flavour.backend
        self._ask = ask

    def check_precision(self, precision: str, quantization: str | None = None) -> None:
        """Refuse what is no precision of the library, and weights in whole numbers; small floats are its own."""
        if quantization is not None and quantization in INTEGER_QUANTIZATIONS:
            raise RowpackError(
                "quantization_unsupported",
                f"{self.flavour.product} engines are not built with weights in whole numbers",
                where="--quantization",
                found=quantization,
                expected="fp8 or nvfp4",
                remedy=f"Build with {quantized_build(quantization)} for the processor, or with "
                f"{quantized_build(FP8, backend=self.name, precision=precision)}.",
            )
        if precision not in PRECISIONS:
            raise RowpackError(
                "precision_unsupported",
                f"{self.flavour.product} engines are not built in this precision",
                where="--precision",
                found=precision,
                expected=", ".join(PRECISIONS),
                remedy="Build with --precision fp16.",
            )

    def graph_form(self, capacity_rows: int, precision: str) -> GraphForm:
        """Return the form with caches of one size."""
        return compiled_form(capacity_rows)

    def fused_operators(self, lowering: str, exported: onnx.ModelProto) -> FusedChoice:
        """There are none: the compiler fuses plain operators by itself."""
        from rowpack.engines.fused_operators.choice import refuse_fused

        return refuse_fused(lowering, self.name)

    def shares_weights(self, precision: str) -> bool:
        """Each plan holds its own."""
        return False

    def weights_in_memory(self, constants: ConstantBytes) -> int:
        """Count every constant as it is stored: that is how plans hold them."""
        return constants.total

    def builder_memory_bytes(self, weight_bytes: int, node_count: int) -> int:
        """Count the compiler and its copy of the weights, without the file they are mapped from."""
        return compiler_bytes(node_count) + weight_bytes

    def split_veto(self, quantization: str | None = None) -> SplitVeto | None:
        """Any graph with free rows compiles, but for E2M1 products in full TensorRT (through 11.4)."""
        if quantization == "nvfp4" and not self.flavour.takes_free_rows_of_fp4:
            return SplitVeto.FIXED_ROW_COUNT_WEIGHTS
        return None

    def open_builder(self, options: EngineOptions, quantization: str | None = None) -> TensorRtBuilder:
        """Return a builder over the installed library."""
        check_options(self.flavour, options)
        library = open_library(self.flavour, options, self._ask, quantization)
        return TensorRtBuilder(self.flavour, library, options)


@dataclass(frozen=True)
class TensorRtBuilder:
    """The installed library, set up for one build."""

    flavour: Flavour
    library: Library
    options: EngineOptions

    @property
    def compute_capabilities(self) -> tuple[str, ...]:
        """The compute capabilities that plans are compiled for."""
        return self.library.capabilities

    def build_engine(self, order: EngineOrder, weights: FileRange | None, on_progress: OnProgress) -> EngineBuild:
        """Begin one plan."""
        assert weights is not None, "plans are built from weights on disk"
        return PlanBuild(self.flavour, self.library, self.options, order, weights, on_progress)

    def check_written(self, engine: BuiltEngine, written: FileRange) -> None:
        """Deserialise the plan where there is a GPU it was compiled for, and check its tensors again."""
        if self.library.runs_here:
            check_written_plan(self.flavour, engine, written)
