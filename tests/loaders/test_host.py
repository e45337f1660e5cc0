"""What a process may use, read from made-up systems."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rowpack_loaders import host


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point every place that is read into an empty folder, and allow processors 0 to 3."""
    for name in (
        "_CGROUP_CPU_QUOTA",
        "_PROCESSOR_TABLE",
    ):
        monkeypatch.setattr(host, name, tmp_path / name)
    monkeypatch.setattr(host, "_PROCESSORS", tmp_path / "cpu")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    return tmp_path


def place(system: Path, processor: int, package: int, core: int) -> None:
    topology = system / "cpu" / f"cpu{processor}" / "topology"
    topology.mkdir(parents=True)
    (topology / "physical_package_id").write_text(f"{package}\n")
    (topology / "core_id").write_text(f"{core}\n")


def test_without_a_topology_every_processor_is_a_core(system: Path) -> None:
    assert host.usable_core_count() == 4


def test_two_threads_of_a_core_count_once(system: Path) -> None:
    for processor, (package, core) in enumerate([(0, 0), (0, 0), (0, 1), (1, 1)]):
        place(system, processor, package, core)
    assert host.usable_core_count() == 3


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 4), ("150000 100000", 2), ("50000 100000", 1), ("900000 100000", 4), ("", 4), ("x y", 4)],
)
def test_a_quota_narrows_the_count(system: Path, quota: str, cores: int) -> None:
    (system / "_CGROUP_CPU_QUOTA").write_text(quota)
    assert host.usable_core_count() == cores


def test_the_processor_has_a_name(system: Path) -> None:
    (system / "_PROCESSOR_TABLE").write_text("vendor_id : X\nmodel name\t: Some CPU @ 3 GHz\n")
    assert host.processor_name() == "Some CPU @ 3 GHz"
    (system / "_PROCESSOR_TABLE").unlink()
    assert host.processor_name()
