"""Whether a machine can run a bundle: one rule a way in which it cannot, from the first MiB alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rowpack_loaders import RowpackError
from rowpack_loaders.compatibility import CompatibilityReport, Target, check_bundle, first_mebibyte, this_machine
from rowpack_loaders.devices.cuda_device import CudaDevice
from rowpack_loaders.validation.schema_check import schema_problems

MakeBundle = Callable[..., Path]

CARD = Target(
    os="linux",
    arch="x86_64",
    compute_capability="8.9",
    has_gpu=True,
    driver="580.65.06",
    device_memory_bytes=24 * 2**30,
    host_memory_bytes=64 * 2**30,
    runtimes={"trt_rtx": "1.7.1.116", "trt": "11.4.0.12", "ort": "1.32.0"},
    runtimes_complete=True,
)


def codes(report: CompatibilityReport) -> list[str]:
    """Return the codes of the reasons, after checking that each says what was found and needed."""
    assert list(schema_problems(report.as_json(), "check_report", "report")) == []
    for problem in (*report.reasons, *report.notes):
        assert problem.where and problem.found and problem.expected and problem.remedy
    return [problem.code for problem in report.reasons]


def test_the_right_machine_is_compatible_and_nothing_is_open(plan_bundle: MakeBundle, onnx_bundle: MakeBundle) -> None:
    for path in (plan_bundle(), onnx_bundle()):
        report = check_bundle(path, CARD)
        assert codes(report) == []
        assert report.compatible
        assert report.unsaid == ()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"os": "macos"}, "target_os_mismatch"),
        ({"arch": "aarch64"}, "target_arch_mismatch"),
        ({"compute_capability": "9.0"}, "target_compute_capability_mismatch"),
        ({"compute_capability": None, "has_gpu": False}, "target_gpu_missing"),
        ({"runtimes": {"trt_rtx": "1.7.2.1"}}, "target_runtime_version_mismatch"),
        ({"runtimes": {"trt_rtx": "1.7.1.115"}}, "target_runtime_version_mismatch"),
        ({"runtimes": {"ort": "1.32.0"}}, "target_runtime_missing"),
        ({"device_memory_bytes": 1000}, "target_memory_insufficient"),
    ],
)
def test_each_way_to_be_the_wrong_machine_is_one_reason(
    change: dict[str, Any], code: str, plan_bundle: MakeBundle
) -> None:
    assert codes(check_bundle(plan_bundle(), replace(CARD, **change))) == [code]


def test_every_reason_is_told_at_once(plan_bundle: MakeBundle) -> None:
    wrong = replace(CARD, os="macos", arch="aarch64", compute_capability="7.5", runtimes={"trt_rtx": "1.6.0.1"})
    assert codes(check_bundle(plan_bundle(), wrong)) == [
        "target_os_mismatch",
        "target_arch_mismatch",
        "target_compute_capability_mismatch",
        "target_runtime_version_mismatch",
    ]


def test_what_the_target_leaves_open_is_listed_and_not_held_against_it(plan_bundle: MakeBundle) -> None:
    report = check_bundle(plan_bundle(), Target())
    assert codes(report) == []
    assert [entry.option for entry in report.unsaid] == ["os", "arch", "sm", "trt_rtx", "memory"]


def test_a_short_version_is_compared_as_far_as_it_goes(plan_bundle: MakeBundle) -> None:
    assert codes(check_bundle(plan_bundle(), replace(CARD, runtimes={"trt_rtx": "1.7.1"}))) == []


def flags(**values: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change of every engine's builder flags."""

    def change(manifest: dict[str, Any]) -> None:
        for engine in manifest["engines"].values():
            engine["builder_flags"] |= values

    return change


@pytest.mark.parametrize(
    ("version", "capability", "fits"),
    [("11.4.0.12", "8.9", True), ("11.5.0.1", "8.9", False), ("11.4.0.12", "8.6", False)],
)
def test_a_plan_of_full_tensorrt_runs_on_one_gpu_and_version(
    version: str, capability: str, fits: bool, plan_bundle: MakeBundle
) -> None:
    target = replace(CARD, compute_capability=capability, runtimes={"trt": version})
    assert check_bundle(plan_bundle(backend="trt"), target).compatible is fits


@pytest.mark.parametrize(
    ("capability", "fits"), [("8.0", True), ("8.6", True), ("9.0", True), ("12.0", True), ("7.5", False)]
)
def test_ampere_plus_runs_on_every_gpu_from_8_0(capability: str, fits: bool, plan_bundle: MakeBundle) -> None:
    path = plan_bundle(flags(hardware_compatibility="ampere_plus"), backend="trt")
    assert check_bundle(path, replace(CARD, compute_capability=capability)).compatible is fits


@pytest.mark.parametrize(
    ("version", "fits"), [("11.4.0.12", True), ("11.9.0.0", True), ("11.3.9.9", False), ("12.0.0.0", False)]
)
def test_a_version_compatible_plan_runs_on_later_ones_of_its_major(
    version: str, fits: bool, plan_bundle: MakeBundle
) -> None:
    path = plan_bundle(flags(version_compatible=True), backend="trt")
    assert check_bundle(path, replace(CARD, runtimes={"trt": version})).compatible is fits


@pytest.mark.parametrize(("driver", "fits"), [("580.65.06", True), ("580.100", True), ("579.99", False)])
def test_a_driver_is_compared_as_a_version(driver: str, fits: bool, plan_bundle: MakeBundle) -> None:
    def need_a_driver(manifest: dict[str, Any]) -> None:
        for engine in manifest["engines"].values():
            engine["target"]["minimum_driver"] = "580.65"

    path = plan_bundle(need_a_driver)
    assert codes(check_bundle(path, replace(CARD, driver=driver))) == ([] if fits else ["target_driver_too_old"])
    assert [entry.option for entry in check_bundle(path, replace(CARD, driver=None)).unsaid] == ["driver"]


@pytest.mark.parametrize(
    ("precision", "quantization", "capability", "fits"),
    [
        ("bf16", None, "8.6", True),
        ("bf16", None, "7.5", False),
        ("fp16", "fp8", "8.9", True),
        ("fp16", "fp8", "8.6", False),
        ("fp16", "nvfp4", "12.0", True),
        ("fp16", "nvfp4", "8.9", False),
    ],
)
def test_a_gpu_has_products_in_the_precision(
    precision: str, quantization: str | None, capability: str, fits: bool, plan_bundle: MakeBundle
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["model"] |= {"precision": precision, "quantization": quantization}
        for engine in manifest["engines"].values():
            engine["target"]["sm"] = ["7.5", "8.6", "8.9", "12.0"]

    report = check_bundle(plan_bundle(change), replace(CARD, compute_capability=capability))
    assert codes(report) == ([] if fits else ["target_precision_unsupported"])
    # Another precision leaves the projections in the type that the GPU lacks.
    remedy = "Build with --precision fp16" if quantization is None else "Build without --quantization"
    assert [problem.remedy for problem in report.reasons] == ([] if fits else [remedy])


def test_the_processor_does_not_run_bfloat16(onnx_bundle: MakeBundle) -> None:
    path = onnx_bundle(lambda manifest: manifest["model"].update(precision="bf16"))
    assert codes(check_bundle(path, CARD)) == ["target_precision_unsupported"]


@pytest.mark.parametrize(("version", "fits"), [("1.23.0", True), ("1.32.0", True), ("1.22.9", False)])
def test_onnx_runtime_is_new_enough(version: str, fits: bool, onnx_bundle: MakeBundle) -> None:
    assert check_bundle(onnx_bundle(), replace(CARD, runtimes={"ort": version})).compatible is fits


def test_a_newer_opset_takes_the_version_that_built_it(onnx_bundle: MakeBundle) -> None:
    def newer(manifest: dict[str, Any]) -> None:
        for engine in manifest["engines"].values():
            engine["opset"] = 24

    path = onnx_bundle(newer)
    assert not check_bundle(path, replace(CARD, runtimes={"ort": "1.31.0"})).compatible
    assert check_bundle(path, replace(CARD, runtimes={"ort": "1.32.1"})).compatible


def test_an_unknown_requirement_is_a_reason(onnx_bundle: MakeBundle) -> None:
    path = onnx_bundle(lambda manifest: manifest["engines"]["decode"].update(requires=["domain:new.fused"]))
    assert codes(check_bundle(path, CARD)) == ["target_requirement_unknown"]


def test_memory_counts_weights_states_and_caches(plan_bundle: MakeBundle, onnx_bundle: MakeBundle) -> None:
    # conv state [6, 4] in two buffers; two caches [32, 2]; all float32.
    states, caches = 2 * 96, 2 * 32 * 2 * 4
    memory = check_bundle(plan_bundle(), CARD).memory
    assert memory.decode_bytes == 1000 + 100 + states + caches
    assert memory.pair_bytes == memory.decode_bytes + 1000 + 100
    shared = check_bundle(onnx_bundle(), CARD).memory
    assert shared.decode_bytes == shared.pair_bytes == shared.decode_weights + states + caches
    assert shared.unknown == ("/engines/decode/resident_bytes/context", "/engines/prefill/resident_bytes/context")


def test_the_boundary_of_memory(plan_bundle: MakeBundle) -> None:
    path = plan_bundle()
    need = check_bundle(path, CARD).memory
    for available, reasons, notes in (
        (need.pair_bytes, [], []),
        (need.pair_bytes - 1, [], ["target_prefill_engine_does_not_fit"]),
        (need.decode_bytes, [], ["target_prefill_engine_does_not_fit"]),
        (need.decode_bytes - 1, ["target_memory_insufficient"], []),
    ):
        report = check_bundle(path, replace(CARD, device_memory_bytes=available))
        assert codes(report) == reasons
        assert [problem.code for problem in report.notes] == notes


def test_each_kind_of_engine_looks_at_its_own_memory(plan_bundle: MakeBundle, onnx_bundle: MakeBundle) -> None:
    small = replace(CARD, device_memory_bytes=1)
    assert codes(check_bundle(plan_bundle(), small)) == ["target_memory_insufficient"]
    assert codes(check_bundle(onnx_bundle(), small)) == []
    assert codes(check_bundle(onnx_bundle(), replace(CARD, host_memory_bytes=1))) == ["target_memory_insufficient"]


def test_the_first_mebibyte_of_a_file_is_enough(plan_bundle: MakeBundle, tmp_path: Path) -> None:
    path = plan_bundle()
    whole = check_bundle(path, CARD)
    part = tmp_path / "part"
    part.write_bytes(path.read_bytes()[: 24 * 1024])
    told = check_bundle(part, CARD).as_json()
    assert told | {"path": ""} == whole.as_json() | {"path": ""}


def test_no_more_than_a_mebibyte_is_read(plan_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plan_bundle()
    with path.open("ab") as file:
        file.truncate(40 * 2**30)
    read: list[int] = []
    original = os.pread

    def counted(descriptor: int, length: int, offset: int) -> bytes:
        data = original(descriptor, length, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(first_mebibyte.os, "pread", counted)
    check_bundle(path, CARD)
    assert sum(read) == 2**20


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda data: data[:10], "container_too_short"),
        (lambda data: data[:5000], "container_too_short"),
        (lambda data: data[:100], "container_too_short"),
        (lambda data: b"x" * 100, "container_magic_unknown"),
        (lambda data: data[:8] + b"\xff" * 8 + data[16:], "manifest_beyond_first_mebibyte"),
        (lambda data: data.replace(b'"precision":"fp32"', b'"precision":"fp16"'), "content_digest_mismatch"),
        (
            lambda data: data.replace(b'"schema_version":"1.0"', b'"schema_version":"2.0"'),
            "manifest_schema_unsupported",
        ),
        (lambda data: data.replace(b'"manifest.json":', b'"manifest.jsox":'), "bundle_manifest_missing"),
    ],
)
def test_a_file_that_cannot_be_judged_is_refused(
    spoil: Callable[[bytes], bytes], code: str, onnx_bundle: MakeBundle
) -> None:
    path = onnx_bundle()
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(RowpackError) as caught:
        check_bundle(path, CARD)
    assert caught.value.code == code


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "no", "container_not_found"), (tmp_path, "container_not_a_regular_file")):
        with pytest.raises(RowpackError) as caught:
            check_bundle(path, CARD)
        assert caught.value.code == code


def test_this_machine_is_described_by_its_driver_and_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine.platform, "system", lambda: "Linux")
    monkeypatch.setattr(this_machine.platform, "machine", lambda: "AMD64")
    monkeypatch.setattr(this_machine, "total_host_memory", lambda: 10**10)
    card = CudaDevice("L4", 24 * 10**9, "8.9", unified=False, driver="580.65", asked="cuda_driver")
    target = this_machine.target_here(lambda: card)
    assert (target.os, target.arch, target.compute_capability, target.has_gpu) == ("linux", "x86_64", "8.9", True)
    assert (target.device_memory_bytes, target.host_memory_bytes, target.driver) == (24 * 10**9, 10**10, "580.65")
    assert set(target.runtimes) >= {"ort"}
    assert target.runtimes_complete
    assert this_machine.target_here(lambda: None).has_gpu is False
