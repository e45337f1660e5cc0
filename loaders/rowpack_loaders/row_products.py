"""Know graphs with products in whole numbers throughout: of bytes by signed bytes, with a scale a column of results."""

from __future__ import annotations

OPERATOR = "MatMulIntegerToFloat"

_SPELLED = OPERATOR.encode()


def has_row_products(model: bytes) -> bool:
    """Tell whether ``model`` may have such products; quick."""
    return _SPELLED in model
