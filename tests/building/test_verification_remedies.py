"""What a build advises whose engines differ from the exported model."""

from __future__ import annotations

import pytest

from rowpack.quantization import check_quantization
from rowpack.verification.smoke import remedy_of_differences
from rowpack_loaders import RowpackError


@pytest.mark.parametrize(
    ("precision", "quantization", "advises_float32"),
    [
        ("bf16", None, True),
        ("bf16", "fp8", False),
        ("bf16", "nvfp4", False),
        ("fp16", None, False),
        ("fp32", None, False),
    ],
)
def test_what_is_advised_can_be_built(precision: str, quantization: str | None, advises_float32: bool) -> None:
    words = remedy_of_differences(precision, quantization)
    assert ("--precision fp32" in words) is advises_float32
    assert "report it" in words
    if quantization is not None:
        with pytest.raises(RowpackError):
            check_quantization(quantization, "fp32", None, None)
