"""Fused lowering of silu(x) = x · sigmoid(x): ``com.microsoft.QuickGelu`` with α = 1, which is that function.

Only float32 values match: the kernel of the processor has no other type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowpack.graph.custom_operators import CONTRIBUTED_DOMAIN
from rowpack.graph.emitter import Emitter, Tensor, declared_dtype
from rowpack.surgery.pattern import Match, Pattern, producer
from rowpack.surgery.row_count import ROWS

_PROBED_WIDTH = 96
"""Values of a row in the probe: each is computed by itself, so a model's width says nothing."""


def quick_gelu(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit silu of x, of any shape."""
    return [emitter.op("QuickGelu", list(inputs), "quick_gelu", domain=CONTRIBUTED_DOMAIN, alpha=1.0)]


def _match(product: Any) -> Match | None:
    """Return the match that ends in the product of x and its sigmoid, which says that it is float32."""
    if product.op != "Mul" or product.domain or product.outputs[0].dtype is None:
        return None
    if declared_dtype(product.outputs[0]) != "float32":
        return None
    for x, gate in (product.inputs, product.inputs[::-1]):
        sigmoid = producer(gate, "Sigmoid")
        if sigmoid is not None and sigmoid.inputs[0] is x:
            return Match((product, sigmoid), (x,), (product.outputs[0],), ([ROWS, _PROBED_WIDTH],), {})
    return None


SILU = Pattern("Silu", _match)
