"""Look rows up in a table whose rows are blocks of whole numbers, and widen these rows only.

w = (q − z) · s, block by block, with plain operators over the bytes that a product of the same table reads
(:mod:`rowpack.surgery.block_projections`): two numbers of four bits lie in a byte, the lower half first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from rowpack.graph.emitter import Emitter, Tensor


def look_up_blocks(emitter: Emitter, lookup: Any, table: Sequence[gs.Constant], bits: int, columns: int) -> None:
    """Let the Gather ``lookup`` give float32 rows of ``columns`` of the table; its output keeps its name.

    ``table`` is codes, bytes ``[rows, blocks, bytes of a block]``, scales, float32 ``[rows, blocks]``, and zero points,
    bytes ``[rows, bytes of a row's]``; codes and zero points are numbers of ``bits`` bits.
    """
    codes, scales, zero_points = table
    ids = lookup.inputs[1]
    blocks = int(scales.shape[1])
    scope = emitter.at_root(lookup.name)

    def of_the_rows(part: gs.Constant, name: str) -> Tensor:
        return scope.op("Gather", [part, ids], f"{name}_of_rows", axis=0)

    def numbers(part: gs.Constant, of_a_block: int, name: str) -> Tensor:
        found = of_the_rows(part, name)
        whole = found if bits == 8 else _unpack_halves(scope, found, name)
        return scope.cast(scope.reshape(whole, [-1, blocks, of_a_block], name), "float32", f"{name}_float")

    steps = scope.op(
        "Sub", [numbers(codes, columns // blocks, "codes"), numbers(zero_points, 1, "zero_points")], "steps"
    )
    scale = scope.reshape(of_the_rows(scales, "scales"), [-1, blocks, 1], "scale_of_block")
    widened = scope.op("Mul", [steps, scale], "widened")
    lookup.op, lookup.attrs = "Reshape", {}
    lookup.inputs = [widened, scope.ints(-1, columns)]


def _unpack_halves(emitter: Emitter, packed: Tensor, name: str) -> Tensor:
    """Emit ``[…]`` bytes → ``[…, 2]``: the lower four bits of each, then the upper."""
    low = emitter.op("BitwiseAnd", [packed, emitter.constant("lower_half", np.array([15], np.uint8))], f"{name}_low")
    shift = emitter.constant("half_a_byte", np.array([4], np.uint8))
    high = emitter.op("BitShift", [packed, shift], f"{name}_high", direction="RIGHT")
    last = emitter.ints(-1)
    halves = [
        emitter.op("Unsqueeze", [half, last], f"{name}_{word}_last") for half, word in ((low, "low"), (high, "high"))
    ]
    return emitter.op("Concat", halves, f"{name}_halves", axis=-1)
