"""Fused lowering of ``CausalConvState``: ONNX Runtime's ``com.microsoft.CausalConvWithState``.

The operator carries one column fewer than its kernel is wide, and our state holds as many as the kernel (the oldest
is there for the layout's sake). A kernel with a tap of zero before the others has the same sums and carries our state
as it lies, so nothing is cut off and put on again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from rowpack.graph.custom_operators import CONTRIBUTED_DOMAIN
from rowpack.graph.emitter import Emitter, Tensor, static_shape


def causal_conv_with_state(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit one node with its SiLU; rows are turned into columns and back, as the operator wants channels first."""
    x, state, weight = inputs
    channels, columns = (int(extent) for extent in static_shape(state))
    taps = emitter.reshape(weight, [channels, 1, columns], "taps")
    unread = emitter.constant(f"zero_taps_{channels}", np.zeros((channels, 1, 1), np.float32))
    kernel = emitter.op("Concat", [unread, taps], "kernel", axis=2)
    no_bias = gs.Variable.empty()
    out, present = emitter.multi_op(
        "CausalConvWithState",
        [
            emitter.reshape(emitter.transpose(x, [1, 0], "columns"), [1, channels, -1], "columns_batch"),
            kernel,
            no_bias,
            emitter.reshape(state, [1, channels, columns], "state_batch"),
        ],
        "causal_conv",
        [("out", None, None), ("present", None, None)],
        domain=CONTRIBUTED_DOMAIN,
        activation="silu",
    )
    out_columns = emitter.reshape(out, [channels, -1], "out_columns")
    return [
        emitter.transpose(out_columns, [1, 0], "out"),
        emitter.reshape(present, [channels, columns], "present"),
    ]
