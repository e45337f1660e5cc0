"""What a backend wants of the graphs it is given, where backends differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GraphForm:
    """Two choices that change how the decode and the prefill graph look, never what they compute.

    ``cache_capacity_rows`` is the number of rows of every cache input for a backend that compiles one size; with
    ``None`` a call takes the filled rows only. ``weight_on_the_left`` asks for the products of the prefill graph
    as W · xᵀ, which suits a runtime that does not pack its weights; otherwise they stay Gemm over ``[out, in]``.
    """

    cache_capacity_rows: int | None = None
    weight_on_the_left: bool = True


FREE_CACHE = GraphForm()
"""The form for ONNX Runtime: a step costs what has been used of the cache, not its capacity."""
