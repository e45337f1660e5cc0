"""What is refused before a build begins: a missing, broken or old library, and options it cannot take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compiled_models import PretendedLibrary

from rowpack.engines import find_backend
from rowpack.engines.options import EngineOptions
from rowpack.engines.ort import OrtBackend
from rowpack.engines.tensorrt.builder_process import ask_library
from rowpack.engines.tensorrt.flavour import (
    TENSORRT,
    TENSORRT_RTX,
    Flavour,
    capability_of,
    default_capabilities,
    member_of,
)
from rowpack.engines.tensorrt.library import check_options, open_library
from rowpack.gate import SplitVeto
from rowpack_loaders.errors import RowpackError

RTX_FACTS = {"version": "1.7.1.116", "capabilities": ["SM75", "SM80", "SM86", "SM89", "SM120"], "device": None}
TRT_FACTS = {"version": "11.4.0", "capabilities": [], "device": "9.0"}


def here(flavour: Flavour) -> Flavour:
    """Return the flavour with a module that is installed everywhere."""
    return replace(flavour, modules=("json",))


def opened(flavour: Flavour, facts: dict[str, Any], **options: Any) -> Any:
    return open_library(here(flavour), EngineOptions(**options), lambda modules: facts)


def code_of(flavour: Flavour, facts: dict[str, Any], **options: Any) -> RowpackError:
    with pytest.raises(RowpackError) as caught:
        opened(flavour, facts, **options)
    return caught.value


def test_both_flavours_are_backends() -> None:
    for name in ("trt", "trt_rtx"):
        backend = find_backend(name)
        assert (backend.name, backend.on_gpu, backend.weights_in_bundle) == (name, True, False)
        assert not backend.shares_weights("fp32")
        assert backend.graph_form(512, "fp16").cache_capacity_rows == 512


def test_every_precision_but_unknown_ones() -> None:
    for precision in ("fp32", "fp16", "bf16"):
        find_backend("trt_rtx").check_precision(precision)
    with pytest.raises(RowpackError, match="precision_unsupported"):
        find_backend("trt_rtx").check_precision("int3")


@pytest.mark.parametrize(("flavour", "extra"), [(TENSORRT, "trt"), (TENSORRT_RTX, "trt-rtx")])
def test_a_missing_library_names_its_extra(flavour: Flavour, extra: str) -> None:
    absent = replace(flavour, modules=("no_such_module_a", "no_such_module_b"))
    with pytest.raises(RowpackError) as caught:
        open_library(absent, EngineOptions())
    assert caught.value.code == "backend_not_installed"
    assert f"rowpack[{extra}]" in str(caught.value.problem.remedy)
    assert "no_such_module_a" in str(caught.value.problem.found)


def test_a_library_that_does_not_load(pretend: Callable[..., PretendedLibrary]) -> None:
    """The bindings are there and the shared object is not: the message is the system's own."""
    pretend("trt", import_error="libnvinfer.so.11: cannot open shared object file")
    facts = ask_library(TENSORRT.modules)
    assert facts["error"] == "ImportError: libnvinfer.so.11: cannot open shared object file"
    error = code_of(TENSORRT, facts)
    assert error.code == "backend_not_loadable"
    assert "libnvinfer.so.11" in str(error.problem.found)


def test_the_library_is_asked_in_another_process(pretend: Callable[..., PretendedLibrary]) -> None:
    pretend("trt_rtx", version="1.9.2")
    facts = ask_library(TENSORRT_RTX.modules)
    assert (facts["version"], facts["capabilities"]) == ("1.9.2", ["SM75", "SM89", "SM120"])


def test_a_module_that_is_named_second_is_found(pretend: Callable[..., PretendedLibrary]) -> None:
    pretend("trt_rtx")
    assert ask_library(("no_such_module", "tensorrt_rtx"))["version"] == "1.7.1.116"
    missing = ask_library(("no_such_module", "no_other_module"))
    assert missing["error"] == "ModuleNotFoundError: No module named 'no_such_module'"


@pytest.mark.parametrize(("flavour", "version"), [(TENSORRT, "10.13.3"), (TENSORRT_RTX, "1.5.0.114"), (TENSORRT, "9")])
def test_an_old_version(flavour: Flavour, version: str) -> None:
    error = code_of(flavour, {**RTX_FACTS, "version": version})
    assert error.code == "backend_version_unsupported"
    assert (error.problem.found, error.problem.expected) == (
        version,
        f"{'.'.join(map(str, flavour.minimum_version))} or newer",
    )


def test_full_tensorrt_needs_a_gpu_and_says_what_does_not() -> None:
    error = code_of(TENSORRT, {**TRT_FACTS, "device": None})
    assert error.code == "gpu_missing"
    assert "trt_rtx" in str(error.problem.remedy)


def test_full_tensorrt_is_for_the_gpu_it_is_built_on() -> None:
    library = opened(TENSORRT, TRT_FACTS)
    assert (library.capabilities, library.runs_here) == (("9.0",), True)


def test_tensorrt_for_rtx_takes_every_capability_from_ampere_on() -> None:
    library = opened(TENSORRT_RTX, RTX_FACTS)
    assert library.capabilities == ("8.0", "8.6", "8.9", "12.0")
    assert not library.runs_here


def test_chosen_capabilities_are_sorted_and_counted_once() -> None:
    library = opened(TENSORRT_RTX, {**RTX_FACTS, "device": "8.6"}, compute_capabilities=("12.0", "8.6", "12.0"))
    assert library.capabilities == ("8.6", "12.0")
    assert library.runs_here
    assert not opened(TENSORRT_RTX, {**RTX_FACTS, "device": "8.6"}, compute_capabilities=("12.0",)).runs_here


def test_turing_must_be_asked_for() -> None:
    assert opened(TENSORRT_RTX, RTX_FACTS, compute_capabilities=("7.5",)).capabilities == ("7.5",)


@pytest.mark.parametrize("capability", ["9.0", "10.0", "6.1"])
def test_a_capability_unknown_to_the_library(capability: str) -> None:
    error = code_of(TENSORRT_RTX, RTX_FACTS, compute_capabilities=("8.9", capability))
    assert error.code == "compute_capability_unknown"
    assert error.problem.found == capability
    assert "8.9" in str(error.problem.expected)


def test_capability_names() -> None:
    assert [capability_of(name) for name in ("SM75", "SM120")] == ["7.5", "12.0"]
    assert [member_of(capability) for capability in ("8.9", "12.1")] == ["SM89", "SM121"]
    assert default_capabilities(["SM121", "SM75", "SM80"]) == ["8.0", "12.1"]


@pytest.mark.parametrize(
    ("flavour", "options", "flag"),
    [
        (TENSORRT, {"compute_capabilities": ("8.9",)}, "--compute-capability"),
        (TENSORRT_RTX, {"hardware_compatibility": "ampere_plus"}, "--hardware-compatibility"),
        (TENSORRT, {"hardware_compatibility": "volta_plus"}, "--hardware-compatibility"),
        (TENSORRT_RTX, {"version_compatible": True}, "--version-compatible"),
        (TENSORRT_RTX, {"timing_cache": Path("times.bin")}, "--timing-cache"),
    ],
)
def test_options_of_the_other_flavour(flavour: Flavour, options: dict[str, Any], flag: str) -> None:
    with pytest.raises(RowpackError) as caught:
        check_options(flavour, EngineOptions(**options))
    assert (caught.value.code, caught.value.problem.where) == ("engine_option_unsupported", flag)


def test_a_cross_target_request_says_what_can_do_it() -> None:
    with pytest.raises(RowpackError) as caught:
        check_options(TENSORRT, EngineOptions(compute_capabilities=("12.0",)))
    assert "trt_rtx" in str(caught.value.problem.remedy)
    assert "ampere_plus" in str(caught.value.problem.remedy)


def test_each_flavour_takes_its_own_options() -> None:
    check_options(TENSORRT, EngineOptions((), "ampere_plus", True, 2**20, Path("times.bin")))
    check_options(TENSORRT_RTX, EngineOptions(("8.9",), None, False, 2**20))


def test_eight_bit_products_need_newer_gpus() -> None:
    def chosen(flavour: Flavour, facts: dict[str, Any], **options: Any) -> Any:
        return open_library(here(flavour), EngineOptions(**options), lambda modules: facts, "fp8")

    assert chosen(TENSORRT_RTX, RTX_FACTS).capabilities == ("8.9", "12.0")
    assert chosen(TENSORRT, TRT_FACTS).capabilities == ("9.0",)
    for flavour, facts, options, found in (
        (TENSORRT_RTX, RTX_FACTS, {"compute_capabilities": ("8.0", "8.6", "8.9")}, "8.0, 8.6"),
        (TENSORRT, {**TRT_FACTS, "device": "8.6"}, {}, "8.6"),
    ):
        with pytest.raises(RowpackError) as caught:
            chosen(flavour, facts, **options)
        assert (caught.value.code, caught.value.problem.found) == ("quantization_unsupported", found)
        assert caught.value.problem.expected == "8.9 or newer"


def test_four_bit_products_need_the_newest() -> None:
    def chosen(flavour: Flavour, facts: dict[str, Any]) -> Any:
        return open_library(here(flavour), EngineOptions(), lambda modules: facts, "nvfp4")

    assert chosen(TENSORRT_RTX, RTX_FACTS).capabilities == ("12.0",)
    assert chosen(TENSORRT, {**TRT_FACTS, "device": "10.0"}).capabilities == ("10.0",)
    with pytest.raises(RowpackError, match="quantization_unsupported"):
        chosen(TENSORRT, TRT_FACTS)


def test_the_veto_is_full_tensorrts_alone() -> None:
    assert find_backend("trt").split_veto("nvfp4") is SplitVeto.FIXED_ROW_COUNT_WEIGHTS
    assert find_backend("trt").split_veto("fp8") is None
    assert find_backend("trt_rtx").split_veto("nvfp4") is None


def test_onnx_runtime_has_no_eight_bit_products() -> None:
    with pytest.raises(RowpackError, match="quantization_unsupported"):
        OrtBackend().check_precision("fp16", "fp8")


@pytest.mark.parametrize("options", [{"workspace_bytes": 1}, {"compute_capabilities": ("8.9",)}])
def test_onnx_runtime_takes_none(options: dict[str, Any]) -> None:
    with pytest.raises(RowpackError) as caught:
        OrtBackend().open_builder(EngineOptions(**options))
    assert caught.value.code == "engine_option_unsupported"
    assert str(caught.value.problem.where) in ("--workspace", "--compute-capability")
