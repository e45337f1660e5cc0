"""Builds and conversions where the disk ends, may not be written, or is another one than everything else is on.

Small file systems are mounted for the tests, which takes root; without it they are skipped and say so.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import older_writers
import pytest
from tiny_models import BUILD_OPTIONS, tiny_checkpoint

from rowpack import BuildRequest, build
from rowpack.bundle.migration import migrate
from rowpack.cli import main
from rowpack_loaders import load, validate
from rowpack_loaders.errors import RowpackError

Mount = Callable[[str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mount a tmpfs of a given size; skip where that is not allowed."""
    mounted: list[Path] = []

    def make(size: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"mounting a small tmpfs takes root and a kernel that allows it: {error}")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True, timeout=30)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint("rwkv", tmp_path_factory.mktemp("tiny") / "rwkv")


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """An older bundle with an engine of 3 MiB."""
    path = tmp_path / "older.bundle"
    runtime = json.dumps(older_writers.RWKV_RUNTIME).encode()
    sections = {"engine.plan": bytes(3 * 2**20), "runtime.json": runtime}
    path.write_bytes(older_writers.format_1("rwkv", "trt", sections))
    return path


def build_into(checkpoint: Path, target: Path) -> Path:
    """Build the tiny model, without the smoke run."""
    request = BuildRequest(checkpoint, target, decoder_engine_layout="single", verify=False, **BUILD_OPTIONS)
    return build(request).path


def refusal(work: Callable[[], object], target: Path) -> str:
    """Return the code that ``work`` is refused with; the target and its folder are as before."""
    before = {path: path.read_bytes() for path in target.parent.iterdir() if path.is_file()}
    with pytest.raises(RowpackError) as caught:
        work()
    assert {path: path.read_bytes() for path in target.parent.iterdir() if path.is_file()} == before
    return caught.value.code


# From nothing at all to nearly enough: each stage of a build meets the end of the disk.
@pytest.mark.parametrize("size", ["4k", "12k", "20k", "32k", "48k", "64k"])
@pytest.mark.parametrize("existing", [False, True], ids=["new target", "old target"])
def test_a_disk_that_is_full_anywhere_in_a_build(size: str, existing: bool, checkpoint: Path, mount: Mount) -> None:
    disk = mount(size)
    target = disk / "out.bundle"
    if existing:
        target.write_bytes(b"old")
    assert refusal(lambda: build_into(checkpoint, target), target) == "disk_full"


def test_the_bundle_needs_more_than_those_disks(checkpoint: Path, tmp_path: Path) -> None:
    assert build_into(checkpoint, tmp_path / "out.bundle").stat().st_blocks * 512 > 64 * 2**10


@pytest.mark.parametrize("size", ["16k", "1m", "3m"])
def test_a_disk_that_is_full_anywhere_in_a_conversion(size: str, older: Path, mount: Mount) -> None:
    target = mount(size) / "out.bundle"
    assert refusal(lambda: migrate(older, target), target) == "disk_full"


def test_after_space_was_made_the_same_build_works(checkpoint: Path, mount: Mount) -> None:
    disk = mount("400k")
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(352 * 2**10))
    target = disk / "out.bundle"
    assert refusal(lambda: build_into(checkpoint, target), target) == "disk_full"
    ballast.unlink()
    assert validate(build_into(checkpoint, target)).errors == []
    assert list(disk.iterdir()) == [target]


def test_a_file_system_that_is_read_only(checkpoint: Path, older: Path, mount: Mount) -> None:
    disk = mount("1m")
    target = disk / "out.bundle"
    target.write_bytes(b"old")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=30)
    assert refusal(lambda: build_into(checkpoint, target), target) == "output_not_writable"
    assert refusal(lambda: migrate(older, target), target) == "output_not_writable"


def test_a_folder_without_write_permission(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    (folder / "out.bundle").write_bytes(b"old")
    folder.chmod(0o555)
    arguments = ["build", str(checkpoint), "-o", str(folder / "out.bundle"), "--no-verify", "--json"]
    child = os.fork()
    if child == 0:  # permissions do not bind root, so the build runs as nobody
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 1)
        os._exit(main([*arguments, "--progress", "none"]))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert [path.name for path in folder.iterdir()] == ["out.bundle"]
    assert (folder / "out.bundle").read_bytes() == b"old"


def test_the_output_may_be_on_another_file_system(checkpoint: Path, older: Path, mount: Mount) -> None:
    disk = mount("16m")
    assert disk.stat().st_dev != checkpoint.stat().st_dev
    assert validate(build_into(checkpoint, disk / "built.bundle")).errors == []
    migrate(older, disk / "converted.bundle")
    assert validate(disk / "converted.bundle").errors == []
    assert sorted(path.name for path in disk.iterdir()) == ["built.bundle", "converted.bundle"]


@pytest.mark.parametrize("family", ["qwen3_5", "rwkv"])
def test_a_loaded_model_survives_the_replacement_of_its_bundle(
    family: str, tiny_bundles: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    target = tmp_path / "out.bundle"
    target.write_bytes(tiny_bundles[family, "split"].read_bytes())
    prompt = list(range(3, 30))
    with load(target) as decoder:
        before = decoder.generate(prompt, 6, stop_token_ids=[]).token_ids
        build_into(tiny_checkpoint("rwkv", tmp_path / "checkpoint"), target)
        assert decoder.generate(prompt, 6, stop_token_ids=[]).token_ids == before
    with load(target) as decoder:
        assert decoder.model.family == "rwkv"
