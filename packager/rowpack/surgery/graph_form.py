"""What a backend wants of the graphs it is given, where backends differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FusedChoice:
    """Names of the runtime's fused operators (``domain.Operator``) that each graph uses; none is the plain form."""

    decode: tuple[str, ...] = ()
    prefill: tuple[str, ...] = ()


PLAIN = FusedChoice()


@dataclass(frozen=True)
class GraphForm:
    """Choices that change how the decode and the prefill graph look, never what they compute.

    ``cache_capacity_rows`` is the number of rows of every cache input for a backend that compiles one size; with
    ``None`` a call takes the filled rows only. ``weight_on_the_left`` asks for the products of the prefill graph as
    W · xᵀ, which suits a runtime that does not pack its weights; otherwise they stay Gemm over ``[out, in]``.
    ``single_rows_on_the_right`` leaves products of a single row Gemm in any case.
    ``batched_halves`` asks for a projection that is split in half as one batched product, which suits a compiler
    that would interleave the halves in the weights it stores. ``one_row_branch`` asks for a prefill graph that
    takes a single row as the decode graph does, where its mixers would pad it or do much more for it, so that one
    session can run both.
    ``free_rows`` lets the mixers of a prefill graph compute the rows that a call has; otherwise they compute as many
    in every call, which suits a compiler of fixed shapes.
    ``fused`` names operators of the runtime that take the place of mixers' plain subgraphs.
    """

    cache_capacity_rows: int | None = None
    weight_on_the_left: bool = True
    single_rows_on_the_right: bool = True
    batched_halves: bool = False
    one_row_branch: bool = False
    free_rows: bool = True
    fused: FusedChoice = PLAIN


FREE_CACHE = GraphForm()
"""The form for ONNX Runtime: a step costs what has been used of the cache, not its capacity."""


def compiled_form(cache_capacity_rows: int) -> GraphForm:
    """Return the form for a compiler that bakes the weights into its plans (TensorRT).

    Its plans then hold every large weight as it lies in the checkpoint, in both engines alike (docs/tensorrt.md).
    """
    return GraphForm(cache_capacity_rows, weight_on_the_left=False, batched_halves=True, free_rows=False)
