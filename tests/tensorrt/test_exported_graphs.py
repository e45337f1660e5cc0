"""``export-onnx`` for a TensorRT backend: the graphs that its builder would be given, valid for any other builder."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from compiled_models import CACHE_ROWS

from rowpack import BuildRequest
from rowpack.build_stages import export_onnx


@pytest.mark.parametrize(("precision", "quantization"), [("fp32", None), ("bf16", "fp8"), ("fp16", "nvfp4")])
@pytest.mark.parametrize("family", ["qwen3_5", "rwkv"])
def test_exported_graphs_are_valid(
    tiny_checkpoints: dict[str, Path], tmp_path: Path, family: str, precision: str, quantization: str | None
) -> None:
    request = BuildRequest(
        tiny_checkpoints[family],
        tmp_path,
        backend="trt_rtx",
        precision=precision,
        quantization=quantization,
        max_sequence_length=CACHE_ROWS,
    )
    paths = {path.name: path for path in export_onnx(request, tmp_path / "onnx")}
    for name in ("exported.onnx", "decode.onnx", "prefill.onnx"):
        onnx.checker.check_model(str(paths[name]))
    decode = onnx.load(str(paths["decode.onnx"]), load_external_data=False)
    shapes = {
        value.name: [part.dim_param or part.dim_value for part in value.type.tensor_type.shape.dim]
        for value in decode.graph.input
    }
    if family == "qwen3_5":
        assert shapes["cache_k_0"] == [CACHE_ROWS, 8]
        assert shapes["attention_mask"] == [1, CACHE_ROWS + 1]
    opsets = {entry.domain: entry.version for entry in decode.opset_import}
    assert opsets == ({"": 23, "trt": 1} if quantization == "nvfp4" else {"": 20})
