"""Without the library of the backend ``openvino``: what is refused, and how."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from rowpack import BuildRequest, build
from rowpack.engines import find_backend
from rowpack_loaders import RowpackError, load

LOADED = ("graph_reading", "library", "runtime", "sequence")


@pytest.fixture
def without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make OpenVINO impossible to import, whether it is installed or not."""
    monkeypatch.setitem(sys.modules, "openvino", None)
    package = "rowpack_loaders.runtimes.openvino"
    for name in (package, *(f"{package}.{module}" for module in LOADED)):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("without_openvino")
def test_a_load_names_the_extra(rwkv_checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.bundle"
    build(BuildRequest(rwkv_checkpoint, path, verify=False, decoder_engine_layout="single"))
    with pytest.raises(RowpackError) as refused:
        load(path, runtime="openvino")
    assert refused.value.code == "runtime_not_installed"
    assert refused.value.problem.remedy == "pip install 'rowpack[openvino]'"


@pytest.mark.usefixtures("without_openvino")
def test_a_build_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(RowpackError, match=r"rowpack\[openvino\]") as refused:
        build(BuildRequest(tmp_path / "no checkpoint", tmp_path / "x.bundle", backend="openvino"))
    assert refused.value.code == "runtime_not_installed"


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_every_float_precision_is_one_of_openvino_s(precision: str) -> None:
    find_backend("openvino").check_precision(precision)


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8", "nvfp4"])
def test_quantised_projections_are_refused(quantization: str) -> None:
    with pytest.raises(RowpackError) as refused:
        find_backend("openvino").check_precision("fp32", quantization)
    assert refused.value.code == "quantization_unsupported"


def test_fused_operators_are_refused() -> None:
    import onnx

    backend = find_backend("openvino")
    with pytest.raises(RowpackError) as refused:
        backend.fused_operators("fused", onnx.ModelProto())
    assert refused.value.code == "lowering_unsupported"
    assert backend.fused_operators("auto", onnx.ModelProto()) == backend.fused_operators("plain", onnx.ModelProto())


def test_options_for_compilers_are_refused() -> None:
    from rowpack.engines.options import EngineOptions

    with pytest.raises(RowpackError, match="--workspace") as refused:
        find_backend("openvino").open_builder(EngineOptions(workspace_bytes=2**20))
    assert refused.value.code == "engine_option_unsupported"


def test_the_runtime_is_imported_when_a_bundle_asks_for_it() -> None:
    importlib.import_module("rowpack_loaders.runtimes")
    assert find_backend("openvino").name == "openvino"
