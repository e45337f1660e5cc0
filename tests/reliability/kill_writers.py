"""Kill builds and migrations with SIGKILL at random moments, and look what is left.

    PYTHONPATH=packager:loaders:tests/tiny python tests/reliability/kill_writers.py --kills 120

Each round forks a process that builds or converts, and kills it after a random part of the time a whole run takes, or
a few milliseconds after it began to publish. Then the target must be what it was before or the whole new bundle; once
in a while a run is left alone, and must leave no temporary file of those before it. Prints one JSON object; exit code 1
when something was wrong. A process that is killed is not a machine that loses power: that the file is synchronised
before it is renamed, and the folder after, is tested elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import older_writers
from tiny_models import BUILD_OPTIONS, tiny_checkpoint

from rowpack import BuildRequest, build
from rowpack.bundle.migration import migrate
from rowpack.progress import Progress, Stage
from rowpack_loaders import validate

OLDER_ENGINE_BYTES = 16 * 2**20
LONGEST_PUBLISH_S = 0.04
CALM_EVERY = 20
"""One run in so many is left alone, to clean up behind the killed ones."""

Work = Callable[[Path, Progress], object]


class PublishSignal(Progress):
    """Tell through a pipe when the stage ``publish`` begins."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self._pipe = pipe

    def stage_started(self, stage: Stage) -> None:
        if stage.name == "publish":
            os.write(self._pipe, b"p")


@dataclass
class Workload:
    """One kind of writer: what it does, how long it takes, and the digest of what it makes."""

    name: str
    work: Work
    seconds: float = 0.0
    sha256: str = ""


@dataclass
class Tally:
    """What was tried and what was found."""

    kills: Counter[str] = field(default_factory=Counter)
    finished_first: int = 0
    left_old: int = 0
    left_new: int = 0
    left_nothing: int = 0
    strays_after_kill: int = 0
    calm_runs: int = 0
    faults: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Return the object the script prints."""
        return {
            "kills": sum(self.kills.values()),
            "kills_by_kind": dict(sorted(self.kills.items())),
            "finished_before_the_kill": self.finished_first,
            "target_after_kill": {"old": self.left_old, "new": self.left_new, "none": self.left_nothing},
            "temporary_files_after_kill": self.strays_after_kill,
            "runs_left_alone": self.calm_runs,
            "faults": self.faults,
        }


def workloads(folder: Path) -> list[Workload]:
    """Return a build and a migration; both write the same bytes each time."""
    checkpoint = tiny_checkpoint("rwkv", folder / "checkpoint")
    runtime = json.dumps(older_writers.RWKV_RUNTIME).encode()
    older = folder / "older.bundle"
    pattern = hashlib.sha256(b"engine").digest() * (OLDER_ENGINE_BYTES // 32)
    older.write_bytes(older_writers.format_1("rwkv", "trt", {"engine.plan": pattern, "runtime.json": runtime}))

    def run_build(target: Path, progress: Progress) -> object:
        return build(BuildRequest(checkpoint, target, decoder_engine_layout="single", **BUILD_OPTIONS), progress)

    def run_migration(target: Path, progress: Progress) -> object:
        return migrate(older, target, progress=progress)

    return [Workload("build", run_build), Workload("migrate", run_migration)]


def fork(work: Work, target: Path) -> tuple[int, int]:
    """Run ``work`` in a child process; return its id and a pipe that becomes readable when it publishes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    try:
        os.close(reader)
        work(target, PublishSignal(writer))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def digest(path: Path) -> str | None:
    """Return the SHA-256 of a file, or None when there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def strays(target: Path) -> list[Path]:
    """Return what lies beside the target and begins with a dot."""
    return [path for path in target.parent.iterdir() if path.name.startswith(f".{target.name}")]


def measure(workload: Workload, target: Path) -> None:
    """Run once undisturbed, and keep how long it takes and what it makes."""
    for _ in range(2):  # the first run also fills the page cache
        started = time.monotonic()
        child, pipe = fork(workload.work, target)
        _, status = os.waitpid(child, 0)
        os.close(pipe)
        workload.seconds = time.monotonic() - started
        if status:
            raise RuntimeError(f"{workload.name} fails undisturbed")
    workload.sha256 = digest(target) or ""
    errors = validate(target).errors
    if errors:
        raise RuntimeError(f"{workload.name} makes an invalid bundle: {errors[0]}")


def kill_once(workload: Workload, target: Path, chance: random.Random) -> tuple[str, bool]:
    """Start the work and kill it; return the kind of moment, and whether it was killed before it had ended."""
    child, pipe = fork(workload.work, target)
    at_publishing = chance.random() < 0.5
    if at_publishing:
        select.select([pipe], [], [], 60)
        delay = chance.uniform(0, LONGEST_PUBLISH_S)
    else:
        delay = chance.uniform(0, workload.seconds)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(pipe)
    kind = f"{workload.name}, {'publishing' if at_publishing else 'any moment'}"
    return kind, os.WIFSIGNALED(status)


def run(kills: int, seed: int, folder: Path) -> Tally:
    """Kill writers until ``kills`` of them died of it."""
    chance = random.Random(seed)
    tally = Tally()
    kinds = workloads(folder)
    for workload in kinds:
        (folder / workload.name).mkdir()
        measure(workload, folder / workload.name / "out.bundle")
    while sum(tally.kills.values()) < kills:
        workload = chance.choice(kinds)
        target = folder / workload.name / "out.bundle"
        target.unlink(missing_ok=True)
        if chance.random() < 0.5:
            target.write_bytes(b"what was there before")
        before = digest(target)
        kind, killed = kill_once(workload, target, chance)
        tally.kills[kind] += killed
        tally.finished_first += not killed
        after = digest(target)
        tally.strays_after_kill += len(strays(target))
        if after == workload.sha256:
            tally.left_new += 1
        elif after == before:
            tally.left_old += before is not None
            tally.left_nothing += before is None
        else:
            tally.faults.append(f"{kind}: the target is neither what it was nor the new bundle")
        if len(strays(target)) > 1:
            tally.faults.append(f"{kind}: more than one temporary file")
        if sum(tally.kills.values()) % CALM_EVERY == 0:
            settle(workload, target, tally)
    for workload in kinds:
        settle(workload, folder / workload.name / "out.bundle", tally)
    return tally


def settle(workload: Workload, target: Path, tally: Tally) -> None:
    """Let one run end: the target is new, and nothing else is left."""
    child, pipe = fork(workload.work, target)
    _, status = os.waitpid(child, 0)
    os.close(pipe)
    tally.calm_runs += 1
    if status or digest(target) != workload.sha256:
        tally.faults.append(f"{workload.name}: a run after kills fails or makes another file")
    if strays(target):
        tally.faults.append(f"{workload.name}: {strays(target)[0].name} is left after a whole run")


def main() -> int:
    """Parse the arguments, kill, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=120)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, default=None, help="where to write; default: a temporary folder")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**32)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        tally = run(arguments.kills, seed, Path(folder))
    print(json.dumps({**tally.as_json(), "seed": seed, "seconds": round(time.monotonic() - started, 1)}))
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
