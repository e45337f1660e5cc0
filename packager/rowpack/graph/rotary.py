"""Rotary positions in plain operators (Su et al., arXiv:2104.09864), half against half."""

from __future__ import annotations

from rowpack.graph.emitter import Emitter, Tensor


def rotate_heads(emitter: Emitter, heads: Tensor, cosine: Tensor, sine: Tensor, half: int, dim: int) -> Tensor:
    """Rotate the first 2 · ``half`` values of each head ``[S, heads, dim]``; those behind them are kept.

    ``cosine`` and ``sine`` are ``[S, 1, half]``.
    """
    sizes, names = [half, half], ["low", "high"]
    if dim > 2 * half:
        sizes, names = [*sizes, dim - 2 * half], [*names, "kept"]
    low, high, *kept = emitter.split(heads, sizes, 2, "parts", names)
    first = [
        emitter.op("Mul", [low, cosine], "low_cosine"),
        emitter.op("Mul", [high, sine], "high_sine"),
    ]
    second = [
        emitter.op("Mul", [high, cosine], "high_cosine"),
        emitter.op("Mul", [low, sine], "low_sine"),
    ]
    halves = [emitter.op("Sub", first, "first"), emitter.op("Add", second, "second")]
    return emitter.op("Concat", [*halves, *kept], "joined", axis=2)
