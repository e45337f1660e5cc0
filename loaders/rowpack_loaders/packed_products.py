"""Tell which graphs have products that ONNX Runtime is fast in only after it packed their weights."""

from __future__ import annotations

from rowpack_loaders.block_products import DOMAIN, OPERATOR, has_block_products

ROW_PRODUCT = "QGemm"
"""The product of bytes by signed bytes, with a scale for each row of the weight."""

PACKED_PRODUCTS = tuple(f"{DOMAIN}.{operator}" for operator in (OPERATOR, ROW_PRODUCT))
"""The products as engines require them."""

_SPELLED = ROW_PRODUCT.encode()


def has_row_products(model: bytes) -> bool:
    """Tell whether ``model`` may have products in whole numbers throughout; quick."""
    return _SPELLED in model


def has_packed_products(model: bytes) -> bool:
    """Tell whether ``model`` may have products whose weights are to be packed; quick."""
    return has_block_products(model) or has_row_products(model)
