"""Compare two builds of rowpack by paired, alternating runs; exit status 1 when the later is slower or larger.

    python benchmarks/compare_versions.py HEAD~20 HEAD [--shape rwkv4-169m] [--rounds 7]
    python benchmarks/compare_versions.py /venvs/released/bin/python HEAD

A build is a git revision of this repository, a folder with a source tree, or the Python of an environment that has
rowpack installed (revisions and trees run in the Python that runs this). Each builds its own bundle of one random
checkpoint, loads it, runs a prompt and single steps, validates it and starts its commands. A round measures the earlier
build, the later one and the earlier one again; ``version_verdict.py`` says what counts as a change.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from artifacts import ArtifactStore, Environments
from contender_process import ContenderProcess, prompt_of
from contenders import LoadRequest
from contenders.catalogue import Artifact
from markdown_table import markdown_table
from measured_machine import describe_machine, rowpack_version
from measured_process import run_measured
from version_verdict import LEAST_ROUNDS, MetricRounds, Verdict, exit_status, judge

ROOT = Path(__file__).resolve().parents[1]
UNITS = {
    "build": "s",
    "build peak memory": "MB",
    "validate": "s",
    "rowpack --help": "s",
    "inspect": "s",
    "load": "s",
    "prefill": "ms",
    "decode": "ms/token",
    "loaded memory": "MB",
}


@dataclass(frozen=True)
class Build:
    """One build of rowpack: the Python that runs it and, for a source tree, the folders to import from."""

    label: str
    python: str
    import_paths: tuple[Path, ...] = ()

    def environment(self) -> dict[str, str]:
        """Return the variables its processes need; the tree of whoever runs this must not be found instead."""
        return {"PYTHONPATH": os.pathsep.join(map(str, self.import_paths))}


def main() -> int:
    """Measure both builds and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("earlier", help="git revision, folder of a source tree, or path of a Python")
    parser.add_argument("later")
    parser.add_argument("--shape", default="rwkv4-169m", help="a published shape, or a config.json")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tolerance", type=float, default=0.05, help="change that is never reported (0.05 is 5 %%)")
    parser.add_argument("--prompt-tokens", type=int, default=142)
    parser.add_argument("--decode-steps", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work-folder", type=Path, help="where the files lie meanwhile")
    parser.add_argument("--json", type=Path, help="write every figure here")
    arguments = parser.parse_args()
    if arguments.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds: {LEAST_ROUNDS} are the least that show the noise")
    machine = describe_machine(arguments.threads, rowpack_version())
    with tempfile.TemporaryDirectory(prefix="versions-", dir=arguments.work_folder) as scratch:
        folder = Path(scratch)
        earlier = open_build(arguments.earlier, folder / "earlier")
        later = open_build(arguments.later, folder / "later")
        store = ArtifactStore(arguments.shape, folder, Environments(None, None), 4096)
        metrics = measure(earlier, later, store, arguments)
    verdicts = [judge(metric, arguments.tolerance) for metric in metrics]
    print(f"{arguments.shape}, {later.label} against {earlier.label}, {arguments.rounds} rounds: {machine}\n")
    print(table(verdicts))
    if arguments.json:
        figures = {"rounds": [asdict(metric) for metric in metrics], "verdicts": [asdict(v) for v in verdicts]}
        arguments.json.write_text(json.dumps(figures, indent=1))
    return exit_status(verdicts)


def open_build(name: str, folder: Path) -> Build:
    """Return the build that a name means; a revision is laid out in a folder first."""
    path = Path(name)
    if path.is_file():
        return Build(name, str(path.absolute()))
    tree = path.resolve()
    if not path.is_dir():
        tree = folder
        archive = subprocess.run(["git", "-C", ROOT, "archive", name], stdout=subprocess.PIPE, check=True).stdout
        folder.mkdir()
        tar_file = folder / "tree.tar"
        tar_file.write_bytes(archive)
        with tarfile.open(tar_file) as tar:
            tar.extractall(folder, filter="data")
    return Build(name, sys.executable, (tree / "packager", tree / "loaders", *other_import_paths()))


def other_import_paths() -> list[Path]:
    """Return the folders of ``PYTHONPATH`` that hold other packages than rowpack, which its trees need."""
    folders = [Path(word).absolute() for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word]
    return [
        folder for folder in folders if not any((folder / name).exists() for name in ("rowpack", "rowpack_loaders"))
    ]


def measure(earlier: Build, later: Build, store: ArtifactStore, arguments: argparse.Namespace) -> list[MetricRounds]:
    """Run the rounds; a first one, not counted, warms the page cache and writes compiled modules."""
    checkpoint, vocabulary = store.prepare(Artifact("checkpoint")), store.vocabulary_size()
    taken: dict[str, list[dict[str, float]]] = {"earlier": [], "later": [], "earlier again": []}
    for number in range(arguments.rounds + 1):
        for turn, build in (("earlier", earlier), ("later", later), ("earlier again", earlier)):
            print(f"round {number} of {arguments.rounds}: {turn}", file=sys.stderr)
            figures = measure_once(build, checkpoint, vocabulary, store.folder, arguments)
            if number:
                taken[turn].append(figures)
    return [
        MetricRounds(name, unit, *([figures[name] for figures in taken[turn]] for turn in taken))
        for name, unit in UNITS.items()
    ]


def measure_once(
    build: Build, checkpoint: Path, vocabulary: int, folder: Path, arguments: argparse.Namespace
) -> dict[str, float]:
    """Measure one build once, by the names of ``UNITS``."""
    environment, bundle = build.environment(), folder / "measured.bundle"
    rowpack: list[str | Path] = [build.python, "-m", "rowpack"]
    bundle.unlink(missing_ok=True)
    command = [*rowpack, "build", checkpoint, "-o", bundle, "--decoder-engine-layout", "split", "--no-verify"]
    built = run_measured([*command, "--progress", "none"], environment=environment)
    validated = run_measured([*rowpack, "validate", bundle, "--progress", "none"], environment=environment)
    helped = run_measured([*rowpack, "--help"], environment=environment)
    inspected = run_measured([*rowpack, "inspect", bundle], environment=environment)
    request = LoadRequest(bundle, "chunked", arguments.threads, 4096)
    prompt = prompt_of(arguments.prompt_tokens, vocabulary)
    path = environment["PYTHONPATH"]
    with ContenderProcess(build.python, "rowpack_bundle", request, import_path=path) as process:
        process.prefill_s(prompt)
        prefill_s, decode_s = process.prefill_s(prompt), process.step_s(arguments.decode_steps)
        memory, load_s = process.ask(do="memory"), process.loading["load_s"]
    return {
        "build": built.seconds,
        "build peak memory": built.peak_resident_bytes / 1e6,
        "validate": validated.seconds,
        "rowpack --help": helped.seconds,
        "inspect": inspected.seconds,
        "load": load_s,
        "prefill": 1e3 * prefill_s,
        "decode": 1e3 * decode_s,
        "loaded memory": (memory["anonymous_bytes"] + memory["mapped_bytes"]) / 1e6,
    }


def table(verdicts: list[Verdict]) -> str:
    """Return the verdicts as a Markdown table."""
    rows = [
        [
            f"{verdict.name}, {verdict.unit}",
            f"{verdict.earlier_median:.3g}",
            f"{verdict.later_median:.3g}",
            f"{verdict.ratio:.3f} ({verdict.least_ratio:.3f} to {verdict.most_ratio:.3f})",
            f"{verdict.noise:.3f}",
            f"{verdict.threshold:.3f}",
            verdict.outcome,
        ]
        for verdict in verdicts
    ]
    columns = ["", "earlier", "later", "later / earlier", "largest A/A factor", "counts from", "verdict"]
    return markdown_table(columns, rows)


if __name__ == "__main__":
    sys.exit(main())
