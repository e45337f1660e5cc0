"""Reading --target."""

from __future__ import annotations

import pytest

from rowpack.cli.target_argument import parse_target
from rowpack_loaders import RowpackError
from rowpack_loaders.compatibility import Target


def test_the_documented_target() -> None:
    assert parse_target("sm=8.9,trt_rtx=1.7.1.116,os=linux,arch=x86_64,memory=24GiB") == Target(
        os="linux",
        arch="x86_64",
        compute_capability="8.9",
        has_gpu=True,
        device_memory_bytes=24 * 2**30,
        host_memory_bytes=24 * 2**30,
        runtimes={"trt_rtx": "1.7.1.116"},
    )


def test_other_spellings() -> None:
    target = parse_target(" sm = SM_120 , os=win32, arch=AMD64, driver=580.65.06, ort=1.32")
    assert (target.compute_capability, target.os, target.arch) == ("12.0", "windows", "x86_64")
    assert (target.driver, target.runtimes) == ("580.65.06", {"ort": "1.32"})
    assert parse_target("sm=none").has_gpu is False
    assert parse_target("arch=arm64").has_gpu is None


def test_a_published_gpu_gives_capability_and_memory() -> None:
    target = parse_target("gpu=L40S")
    assert (target.compute_capability, target.device_memory_bytes) == ("8.9", 48 * 10**9)
    assert target.host_memory_bytes is None
    assert parse_target("gpu=L40S,memory=10GB").device_memory_bytes == 10**10


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "target_unusable"),
        ("sm", "target_unusable"),
        ("sm=", "target_unusable"),
        ("sm=8.9,,os=linux", "target_unusable"),
        ("colour=blue", "target_unusable"),
        ("sm=8.9,sm=8.6", "target_unusable"),
        ("sm=eight", "target_unusable"),
        ("sm=8", "target_unusable"),
        ("trt_rtx=1.7", "target_unusable"),
        ("trt=new", "target_unusable"),
        ("ort=1", "target_unusable"),
        ("memory=much", "bad_size"),
        ("gpu=abacus", "gpu_unknown"),
    ],
)
def test_what_is_no_target_is_refused(text: str, code: str) -> None:
    with pytest.raises(RowpackError) as caught:
        parse_target(text)
    assert caught.value.code == code
