"""Norms shared by the families, in float32 whatever the work dtype."""

from __future__ import annotations

from rowpack.graph.emitter import Emitter, Tensor


def rms_norm(emitter: Emitter, x: Tensor, weight: Tensor, epsilon: float, name: str = "norm") -> Tensor:
    """Emit x / √(mean(x², last axis) + ε) · weight in float32 (Zhang and Sennrich, arXiv:1910.07467).

    The nodes are in the order that runtimes recognise and fuse into one kernel (Pow, ReduceMean, Add, Sqrt, Div, Mul).
    """
    scope = emitter.scope(name)
    squared = scope.op("Pow", [x, scope.floats("two", 2.0, scalar=True)], "squared")
    mean = scope.op("ReduceMean", [squared, scope.ints(-1)], "mean", keepdims=1)
    shifted = scope.op("Add", [mean, scope.floats("rms_epsilon", epsilon, scalar=True)], "shifted")
    root = scope.op("Sqrt", [shifted], "root")
    normalised = scope.op("Div", [x, root], "normalised")
    return scope.op("Mul", [normalised, weight], "scaled")


def unit_norm(emitter: Emitter, x: Tensor, epsilon: float, name: str = "unit_norm") -> Tensor:
    """Emit x / √(Σ x² + ε) over the last axis in float32, as the reference's ``l2norm``."""
    scope = emitter.scope(name)
    total = scope.op("ReduceSum", [scope.op("Mul", [x, x], "squared"), scope.ints(-1)], "sum", keepdims=1)
    shifted = scope.op("Add", [total, scope.floats("l2_epsilon", epsilon, scalar=True)], "shifted")
    return scope.op("Div", [x, scope.op("Sqrt", [shifted], "root")], "unit")
