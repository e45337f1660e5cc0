"""Mark the tests that multiply bytes as every processor with VNNI or AMX does."""

from __future__ import annotations

import pytest

from rowpack_loaders.runtimes.ort_row_products import multiplies_exactly

needs_exact_products = pytest.mark.skipif(
    not multiplies_exactly(),
    reason="products of bytes are not exact here: the processor has neither VNNI nor AMX, or ONNX Runtime is too old",
)
