"""Projections in NVFP4: E2M1 values (up to 6) with an E4M3 scale for every 16 of a row, and one constant over all.

The constant is that of [−1, 1]: 1/(6 · 448) brings the largest block scale of such rows to the largest E4M3. Weights
are stored divided by the largest magnitude of their row, which multiplies the product; rows of activations come
divided by theirs. Both constants of the two-level scheme are then the same for every tensor of every model, and a
weight can be quantised as its rows stream by.

Rows are quantised by TensorRT's own operator, which finds the block scales at run time; ONNX has none that does
(opset 23 has the type). float4_in_float32.py gives the same with plain operators, for machines without the type.
"""

from __future__ import annotations

from collections.abc import Mapping

from rowpack.graph.dtypes import onnx_type
from rowpack.graph.emitter import Emitter, Tensor

LARGEST_FLOAT4 = 6.0
LARGEST_FLOAT8 = 448.0

BLOCK_COLUMNS = 16

GLOBAL_SCALE = 1 / (LARGEST_FLOAT4 * LARGEST_FLOAT8)

TENSORRT_DOMAIN = "trt"

DYNAMIC_QUANTIZE = "TRT_FP4DynamicQuantize"


class Float4Form:
    """``block_scales`` maps a weight's name to its E4M3 scales ``[out, in / 16]``, ``factors`` to its row factors."""

    opset = 23

    def __init__(self, block_scales: Mapping[str, Tensor], factors: Mapping[str, Tensor], work: str) -> None:
        self._block_scales = block_scales
        self._factors = factors
        self.work = work

    def rounded(self, scope: Emitter, scaled: Tensor) -> Tensor:
        """Emit the dynamic quantiser and DQ of values and block scales."""
        values, scales = scope.multi_op(
            DYNAMIC_QUANTIZE,
            [scaled, self._global_scale(scope)],
            "quantized",
            [("values", "float4_e2m1fn", None), ("scales", "float8_e4m3fn", None)],
            domain=TENSORRT_DOMAIN,
            axis=-1,
            block_size=BLOCK_COLUMNS,
            scale_type=onnx_type("float8_e4m3fn"),
        )
        return self._dequantized(scope, values, scales, "rounded", -1)

    def weight(self, scope: Emitter, stored: Tensor) -> tuple[Tensor, Tensor | None]:
        """Emit DQ of values and block scales; the factor is the largest magnitude of each row."""
        wide = self._dequantized(scope, stored, self._block_scales[stored.name], "weight", 1)
        return wide, self._factors[stored.name]

    def _dequantized(self, scope: Emitter, values: Tensor, scales: Tensor, name: str, axis: int) -> Tensor:
        wide_scales = scope.op("DequantizeLinear", [scales, self._global_scale(scope)], f"{name}_scales_float32")
        work_scales = scope.cast(wide_scales, self.work, f"{name}_scales")
        return scope.op(
            "DequantizeLinear",
            [values, work_scales],
            name,
            dtype=self.work,
            shape=values.shape,
            axis=axis,
            block_size=BLOCK_COLUMNS,
        )

    def _global_scale(self, scope: Emitter) -> Tensor:
        return scope.scalar("float4_global_scale", GLOBAL_SCALE, "float32")
