"""A bundle in bfloat16 for the processor asks for instructions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rowpack.cli.target_argument import parse_target
from rowpack_loaders.compatibility import Target, check_bundle
from rowpack_loaders.compatibility.processor import processor_features

MakeBundle = Callable[..., Path]


def for_openvino(manifest: dict[str, Any]) -> None:
    manifest["model"]["precision"] = "bf16"
    for engine in manifest["engines"].values():
        engine |= {"backend": "openvino", "backend_version": "2026.4.1"}
        engine["target"] |= {"arch": ["x86_64"], "cpu_features": ["avx512_bf16"]}


@pytest.mark.parametrize(
    ("features", "codes"),
    [
        ({"avx2", "avx512_bf16"}, []),
        ({"avx2", "avx512f"}, ["target_cpu_feature_missing"]),
        (set(), ["target_cpu_feature_missing"]),
    ],
)
def test_the_instructions_are_there_or_the_machine_is_the_wrong_one(
    features: set[str], codes: list[str], onnx_bundle: MakeBundle
) -> None:
    target = Target(arch="x86_64", cpu_features=frozenset(features), runtimes={"openvino": "2026.4.1"})
    report = check_bundle(onnx_bundle(for_openvino), target)
    assert [reason.code for reason in report.reasons] == codes


def test_what_nobody_said_of_the_processor_is_open(onnx_bundle: MakeBundle) -> None:
    report = check_bundle(onnx_bundle(for_openvino), parse_target("arch=x86_64,openvino=2026.4.1,memory=1GiB"))
    assert report.compatible
    assert [(entry.option, entry.needed) for entry in report.unsaid] == [("cpu", "avx512_bf16")]
    named = check_bundle(onnx_bundle(for_openvino), parse_target("cpu=avx2+AVX512_BF16,openvino=2026.4,memory=1GiB"))
    assert named.compatible
    assert [entry.option for entry in named.unsaid] == ["arch"]


@pytest.mark.parametrize(("version", "fits"), [("2026.4.0", True), ("2027.0", True), ("2026.3.9", False)])
def test_openvino_is_new_enough(version: str, fits: bool, onnx_bundle: MakeBundle) -> None:
    target = Target(runtimes={"openvino": version})
    codes = [reason.code for reason in check_bundle(onnx_bundle(for_openvino), target).reasons]
    assert codes == ([] if fits else ["target_runtime_version_mismatch"])


def test_the_first_processor_of_linux_table_is_read(tmp_path: Path) -> None:
    table = tmp_path / "cpuinfo"
    table.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert processor_features(table) == {"fpu", "avx2", "avx512_bf16"}
    table.write_text("processor : 0\nFeatures : fp asimd bf16\n")
    assert processor_features(table) == {"fp", "asimd", "bf16"}
    table.write_text("vendor: nobody\n")
    assert processor_features(table) is None
    assert processor_features(tmp_path / "missing") is None
