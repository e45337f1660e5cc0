"""OpenVINO on the CPU: the engine is the ONNX graph itself, its weights mapped from the bundle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rowpack.engines.backend import BuiltEngine, EngineBuild, EngineOrder, FileRange, OnProgress
from rowpack.engines.options import EngineOptions
from rowpack.engines.serialized_graph import refuse_compiler_options, serialize_engine
from rowpack.gate import SplitVeto
from rowpack.quantization import quantized_build
from rowpack.surgery.graph_form import FREE_CACHE, GraphForm
from rowpack_loaders.compatibility.processor import BFLOAT16_FEATURE
from rowpack_loaders.errors import RowpackError

if TYPE_CHECKING:
    import onnx

    from rowpack.graph.constants import ConstantBytes
    from rowpack.surgery.graph_form import FusedChoice

PRECISIONS = ("fp32", "fp16", "bf16")


class OpenVinoBackend:
    """The backend ``openvino``."""

    name = "openvino"
    on_gpu = False
    weights_in_bundle = True
    compiles_at_load = True
    max_prefill_rows = 512

    def check_precision(self, precision: str, quantization: str | None = None) -> None:
        """Refuse what is no precision of the CPU plugin, and quantised projections."""
        if precision not in PRECISIONS:
            raise RowpackError(
                "precision_unsupported",
                "OpenVINO engines are not built in this precision",
                where="--precision",
                found=precision,
                expected=", ".join(PRECISIONS),
                remedy="Build with --precision fp32.",
            )
        if quantization is not None:
            raise RowpackError(
                "quantization_unsupported",
                "OpenVINO engines have no quantised projections",
                where="--quantization",
                found=quantization,
                expected="no quantization",
                remedy=f"Leave --quantization out, or build with {quantized_build(quantization, precision=precision)}.",
            )

    def graph_form(self, capacity_rows: int, precision: str) -> GraphForm:
        """Return the form whose caches are as long as they are filled.

        All its products read the weight as their left operand, in place; the plugin would pack a right one, for each
        engine (docs/openvino.md says what that gains and costs).
        """
        return replace(FREE_CACHE, single_rows_on_the_right=False)

    def fused_operators(self, lowering: str, exported: onnx.ModelProto) -> FusedChoice:
        """Return none: the fused operators are ONNX Runtime's."""
        from rowpack.engines.fused_operators.choice import refuse_fused

        return refuse_fused(lowering, self.name)

    def shares_weights(self, precision: str) -> bool:
        """Both engines read the mapped matrices; in half precision each widens its own."""
        return precision != "fp16"

    def weights_in_memory(self, constants: ConstantBytes) -> int:
        """Count float16 as the float32 values that the plugin makes of it; bfloat16 stays as it is."""
        return _held_bytes(constants) + constants.inline

    def builder_memory_bytes(self, weight_bytes: int, node_count: int) -> int:
        """Nothing is compiled ahead of time."""
        return 0

    def split_veto(self, quantization: str | None = None) -> SplitVeto | None:
        """Any graph with free rows runs."""
        return None

    def open_builder(self, options: EngineOptions, quantization: str | None = None) -> OpenVinoBuilder:
        """Refuse options for compilers, and a build on a machine without the library.

        Raises ``engine_option_unsupported`` or ``runtime_not_installed``.
        """
        refuse_compiler_options(options, "OpenVINO engines are compiled when they are loaded")
        return OpenVinoBuilder(installed_version())


class OpenVinoBuilder:
    """Takes the graphs as they are, for the version of OpenVINO that is installed."""

    compute_capabilities: tuple[str, ...] = ()

    def __init__(self, version: str) -> None:
        self._version = version

    def build_engine(self, order: EngineOrder, weights: FileRange | None, on_progress: OnProgress) -> EngineBuild:
        """Serialise the graph; its weights stay outside."""
        from rowpack.graph.constants import constant_bytes

        constants = constant_bytes(order.model)
        return serialize_engine(
            order,
            backend_version=self._version,
            lowering="plain",
            requires=(),
            target=_target(order.model),
            weight_bytes=_held_bytes(constants),
            weights_shared=_held_bytes(constants) == constants.external,
        )

    def check_written(self, engine: BuiltEngine, written: FileRange) -> None:
        """Leave it to the smoke run, which loads the engines from the bundle's own sections."""


def installed_version() -> str:
    """Return the version of the installed OpenVINO; raises ``runtime_not_installed``."""
    try:
        from rowpack_loaders.runtimes.openvino.library import import_openvino, plain_version

        return plain_version(import_openvino().__version__)
    except ImportError as error:
        raise RowpackError(
            "runtime_not_installed",
            "OpenVINO cannot be imported, and the engines are checked with it",
            where="--backend openvino",
            found=str(error),
            expected="an installed library",
            remedy="pip install 'rowpack[openvino]'",
        ) from error


def _held_bytes(constants: ConstantBytes) -> int:
    """Return what the plugin holds of the external constants: float16 widened to float32, bfloat16 as it is."""
    return constants.external if constants.bfloat16 else constants.external_in_float32


def _target(model: onnx.ModelProto) -> dict[str, object]:
    """Return where a graph runs: everywhere, or where there are bfloat16 products if it has bfloat16 weights."""
    from onnx import TensorProto

    half = any(tensor.data_type == TensorProto.BFLOAT16 for tensor in model.graph.initializer)
    return {
        "os": ["any"],
        "arch": ["x86_64"] if half else ["any"],
        "cpu_features": [BFLOAT16_FEATURE] if half else [],
        "sm": [],
        "minimum_driver": None,
    }
