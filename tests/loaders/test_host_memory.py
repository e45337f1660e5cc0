"""Memory readings, from small made-up system folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from rowpack_loaders import host_memory
from rowpack_loaders.host_memory import available_host_memory, process_memory, total_host_memory

KIB = 1024
MEMINFO = "MemTotal:       1000 kB\nMemFree:         500 kB\nMemAvailable:    800 kB\nHugePages_Total:       0\n"
NO_LIMIT_V1 = "9223372036854771712\n"


def write_system(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    root = write_system(tmp_path, {"proc/meminfo": MEMINFO})
    assert total_host_memory(root) == 1000 * KIB
    assert available_host_memory(root) == 800 * KIB


@pytest.mark.parametrize("limited_folder", ["a/b", "a", ""])
def test_version_2_limit_of_the_group_or_any_above_it_counts(tmp_path: Path, limited_folder: str) -> None:
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/a/b\n"}
    for folder in ("a/b", "a", ""):
        group = Path("sys/fs/cgroup") / folder
        limit = f"{600 * KIB}\n" if folder == limited_folder else "max\n"
        files[str(group / "memory.max")] = limit
        files[str(group / "memory.current")] = f"{400 * KIB}\n"
        files[str(group / "memory.stat")] = f"anon 5\ninactive_file {100 * KIB}\n"
    root = write_system(tmp_path, files)
    assert total_host_memory(root) == 600 * KIB
    assert available_host_memory(root) == 300 * KIB


def test_version_1_limit_counts_and_its_no_limit_number_does_not(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory"
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "3:cpuset:/\n4:cpu,memory:/inside\n0::/\n",
        f"{group}/memory.limit_in_bytes": NO_LIMIT_V1,
        f"{group}/inside/memory.limit_in_bytes": NO_LIMIT_V1,
    }
    root = write_system(tmp_path, files)
    assert total_host_memory(root) == 1000 * KIB
    write_system(tmp_path, {f"{group}/inside/memory.limit_in_bytes": f"{200 * KIB}"})
    assert total_host_memory(root) == 200 * KIB
    write_system(tmp_path, {f"{group}/inside/memory.usage_in_bytes": f"{300 * KIB}"})
    assert available_host_memory(root) == 0


def test_nothing_known_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory.os, "sysconf", lambda name: (_ for _ in ()).throw(ValueError(name)))
    assert total_host_memory(tmp_path) is None
    assert available_host_memory(tmp_path) is None
    assert process_memory(tmp_path) is None


def test_process_memory_is_read_in_bytes(tmp_path: Path) -> None:
    status = "Name:\tpython\nVmHWM:\t     30 kB\nVmRSS:\t     25 kB\nRssAnon:\t     10 kB\nRssFile:\t     15 kB\n"
    memory = process_memory(write_system(tmp_path, {"proc/self/status": status}))
    assert memory == host_memory.ProcessMemory(10 * KIB, 15 * KIB, 30 * KIB)


def test_another_process_is_read_by_its_number(tmp_path: Path) -> None:
    status = "VmHWM:\t 3 kB\nRssAnon:\t 1 kB\nRssFile:\t 2 kB\n"
    root = write_system(tmp_path, {"proc/77/status": status})
    assert process_memory(root, process_id=77) == host_memory.ProcessMemory(1 * KIB, 2 * KIB, 3 * KIB)
    assert process_memory(root) is None
