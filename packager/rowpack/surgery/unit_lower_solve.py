"""Solve (I + A) U = R for a strictly lower triangular A with plain operators, exactly enough in float32.

Diagonal blocks are inverted by recursive halving, which is exact block elimination at each size:

    [[P, 0], [C, Q]]⁻¹ = [[P⁻¹, 0], [−Q⁻¹ C P⁻¹, Q⁻¹]]

starting at 1 × 1 blocks (whose inverse is 1), so with T the block-diagonal inverse at size b and C the part of A
that couples neighbouring blocks, T − T C T is the inverse at size 2b. Then the blocks are eliminated one after the
other on the right side. No power of A is ever formed: repeated squaring loses every digit when keys are parallel.

Blocks grow with the rows, so that there are four to eliminate whatever the rows are: twice the rows cost one more
halving, four nodes, where blocks of one size would double the nodes. Where the number of rows is free, there is one
block: halving works for any size, since what a block lacks in its second half is nothing that couples with the first.
"""

from __future__ import annotations

import numpy as np

from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.chunk_rows import CountedRows

MIN_BLOCK_ROWS = 16
"""Rows of a diagonal block up to 64 rows; larger blocks cost more arithmetic, smaller ones more nodes."""

MAX_BLOCKS = 4
"""Blocks that are eliminated one after the other where there are more rows."""


def solve_unit_lower(emitter: Emitter, a: Tensor, right: Tensor, rows: CountedRows, heads: int, group: int) -> Tensor:
    """Emit U ``[heads, group, rows, value_dim]`` from A ``[heads, group, rows, rows]`` and R shaped like U.

    Only the strictly lower triangle of A is read.
    """
    most, is_free = rows.rows.most, rows.rows.is_free
    block = most if is_free else min(most, max(MIN_BLOCK_ROWS, most // MAX_BLOCKS))
    count = most // block
    inverse = _invert_blocks(emitter, rows, _diagonal_blocks(emitter, a, count, block, heads, group), block)
    if count == 1:
        return emitter.op("MatMul", [inverse, right], "solved")
    stacked = emitter.reshape(inverse, [heads, group, most, block], "inverses_stacked")
    names = [f"block_{index}" for index in range(count)]
    inverses = emitter.split(stacked, [block] * count, 2, "inverse", names)
    rights = emitter.split(right, [block] * count, 2, "right", names)
    solved: list[Tensor] = []
    for index in range(count):
        remainder = rights[index]
        if index:
            above = solved[0] if index == 1 else emitter.op("Concat", solved, f"solved_above_{index}", axis=2)
            coupling = emitter.op(
                "Slice",
                [
                    a,
                    emitter.ints(index * block, 0),
                    emitter.ints((index + 1) * block, index * block),
                    emitter.ints(2, 3),
                ],
                f"coupling_{index}",
            )
            influence = emitter.op("MatMul", [coupling, above], f"influence_{index}")
            remainder = emitter.op("Sub", [remainder, influence], f"remainder_{index}")
        solved.append(emitter.op("MatMul", [inverses[index], remainder], f"solved_{index}"))
    return emitter.op("Concat", solved, "solved", axis=2)


def _diagonal_blocks(emitter: Emitter, a: Tensor, count: int, block: int, heads: int, group: int) -> Tensor:
    """Emit the diagonal blocks of A as ``[heads, group, count, block, block]`` (``[heads, group, …]`` for one)."""
    if count == 1:
        return a
    blocks = emitter.reshape(a, [heads, group, count, block, count, block], "blocks")
    chosen = np.eye(count, dtype=np.float32).reshape(count, 1, count, 1)
    kept = emitter.op("Mul", [blocks, emitter.constant(f"block_diagonal_{count}", chosen)], "diagonal_kept")
    return emitter.op("ReduceSum", [kept, emitter.ints(4)], "diagonal_blocks", keepdims=0)


def _invert_blocks(emitter: Emitter, rows: CountedRows, a: Tensor, block: int) -> Tensor:
    """Emit (I + strictly lower part of A)⁻¹ for each ``[block, block]`` matrix, or of free rows ``[rows, rows]``."""

    def coupling(size: int) -> Tensor:
        """Emit the entries of A in the lower half's rows and upper half's columns of each 2·size block."""
        index = np.arange(block)
        pair, lower = index // (2 * size), (index // size) % 2 == 1
        chosen = ((pair[:, None] == pair[None, :]) & lower[:, None] & ~lower[None, :]).astype(np.float32)
        mask = rows.table(emitter, f"coupling_mask_{block}_{size}", chosen, [0, 0])
        return emitter.op("Mul", [a, mask], f"coupling_of_{size}")

    identity = rows.table(emitter, f"identity_{block}", np.eye(block, dtype=np.float32), [0, 0])
    inverse = emitter.op("Sub", [identity, coupling(1)], "inverse_of_2")
    size = 2
    while size < block:
        left = emitter.op("MatMul", [inverse, coupling(size)], f"left_of_{size}")
        correction = emitter.op("MatMul", [left, inverse], f"correction_of_{size}")
        size *= 2
        inverse = emitter.op("Sub", [inverse, correction], f"inverse_of_{size}")
    return inverse
