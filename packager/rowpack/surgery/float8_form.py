"""Projections in E4M3 (three bits of mantissa, up to 448): one scale a row of the weight, one constant for rows."""

from __future__ import annotations

from collections.abc import Mapping

from rowpack.graph.emitter import Emitter, Tensor

LARGEST_FLOAT8 = 448.0


class Float8Form:
    """``scales`` maps a weight's name to its scales ``[out]`` in the work dtype."""

    opset = 19

    def __init__(self, scales: Mapping[str, Tensor], work: str) -> None:
        self._scales = scales
        self.work = work

    def rounded(self, scope: Emitter, scaled: Tensor) -> Tensor:
        """Emit Q and DQ with a scale that brings one to the largest E4M3."""
        scale = scope.scalar(f"float8_scale_{self.work}", 1 / LARGEST_FLOAT8, self.work)
        zero = scope.scalar("float8_zero", 0.0, "float8_e4m3fn")
        quantized = scope.op("QuantizeLinear", [scaled, scale, zero], "quantized")
        return scope.op("DequantizeLinear", [quantized, scale, zero], "rounded", dtype=self.work)

    def weight(self, scope: Emitter, stored: Tensor) -> tuple[Tensor, Tensor | None]:
        """Emit DQ with a scale a row."""
        scale = self._scales[stored.name]
        wide = scope.op("DequantizeLinear", [stored, scale], "weight", dtype=self.work, shape=stored.shape, axis=0)
        return wide, None
