"""Activations in plain operators, each spelled in one way, so that a fused lowering finds it again."""

from __future__ import annotations

from rowpack.graph.emitter import Emitter, Tensor


def silu(emitter: Emitter, x: Tensor, name: str, dtype: str) -> Tensor:
    """Emit x · sigmoid(x) of x in ``dtype``."""
    return emitter.op("Mul", [x, emitter.op("Sigmoid", [x], f"{name}_sigmoid")], name, dtype=dtype)


def softplus(emitter: Emitter, x: Tensor, name: str) -> Tensor:
    """Emit log(1 + e^x) as max(x, 0) + softplus(−|x|): no runtime's exp can overflow, however large x is."""
    positive = emitter.op("Relu", [x], f"{name}_positive")
    magnitude = emitter.op("Neg", [emitter.op("Abs", [x], f"{name}_abs")], f"{name}_minus_abs")
    tail = emitter.op("Softplus", [magnitude], f"{name}_tail")
    return emitter.op("Add", [positive, tail], name)
