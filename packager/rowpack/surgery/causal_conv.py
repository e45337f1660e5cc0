"""Lowerings of ``CausalConvState``: one row, and a chunk of rows.

out_t = silu(Σ_j w[:, j] x_{t−3+j}) over the previous columns and the new rows; new state = the last columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowpack.graph.activations import silu
from rowpack.graph.emitter import Emitter, Tensor, static_shape


def causal_conv_row(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit the convolution of one row: shift the window by one column, weigh it, sum.

    The window is turned so that channels are contiguous: ONNX Runtime's kernels take 0.10 ms for four rows of 6,144
    channels and 0.17 ms for as many columns of four (docs/benchmarks.md).
    """
    x, state, weight = inputs
    columns = int(static_shape(state)[1])
    state_rows = emitter.transpose(state, [1, 0], "state_rows")
    kept = emitter.slice_axis(state_rows, 0, 1, None, "kept_rows")
    window = emitter.op("Concat", [kept, x], "window_rows", axis=0)
    present = emitter.transpose(window, [1, 0], "present")
    weighted = emitter.op("Mul", [window, emitter.transpose(weight, [1, 0], "taps")], "weighted")
    taps = [f"tap_{tap}" for tap in range(columns)]
    total = emitter.op("Sum", emitter.split(weighted, [1] * columns, 0, "weighted_rows", taps), "sum")
    return [silu(emitter, total, "silu", "float32"), present]


def causal_conv_chunk(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit the convolution of S rows as a sum of row-shifted products, channels contiguous.

    The slices have bounds counted from the end, so the subgraph holds for any S ≥ 1 without padding.
    """
    x, state, weight = inputs
    columns = int(static_shape(state)[1])
    state_rows = emitter.transpose(state, [1, 0], "state_rows")
    rows = emitter.op("Concat", [state_rows, x], "state_and_rows", axis=0)
    taps = emitter.transpose(weight, [1, 0], "taps")
    tap_weights = emitter.split(taps, [1] * columns, 0, "weight_rows", [f"tap_{tap}" for tap in range(columns)])
    total: Tensor = None
    for tap, tap_weight in enumerate(tap_weights):
        # Row t of this tap is row t + tap + 1 of state_and_rows: the oldest state column is never read, and the last
        # tap reads the new rows themselves.
        behind = columns - 1 - tap
        shifted = emitter.slice_axis(rows, 0, tap + 1, -behind, f"tap_{tap}_rows") if behind else x
        product = emitter.op("Mul", [shifted, tap_weight], f"tap_{tap}")
        total = product if total is None else emitter.op("Add", [total, product], f"sum_to_tap_{tap}")
    last_rows = emitter.slice_axis(rows, 0, -columns, None, "last_rows")
    present = emitter.transpose(last_rows, [1, 0], "present")
    return [silu(emitter, total, "silu", "float32"), present]
