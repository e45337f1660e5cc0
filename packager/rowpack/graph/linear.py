"""Projections: one product with a weight kept in checkpoint layout ``[out, in]``."""

from __future__ import annotations

from collections.abc import Sequence

from rowpack.graph.emitter import Emitter, Tensor


def linear(
    emitter: Emitter,
    x: Tensor,
    weight: Tensor,
    name: str,
    *,
    dtype: str | None = None,
    shape: Sequence[int | str] | None = None,
) -> Tensor:
    """Emit x · Wᵀ for rows x ``[S, in]`` and W ``[out, in]``; surgery may choose another form of the product."""
    return emitter.op("Gemm", [x, weight], name, dtype=dtype, shape=shape, transB=1)
