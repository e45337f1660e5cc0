"""Time building a bundle against the peers' builders and against copying the checkpoint, all in one run.

    python benchmarks/builds.py --shape qwen3_5-0.8b --peers-python PEERS/bin/python --llama-cpp LIBRARIES

``cp`` copies the checkpoint's files once and makes them durable (``sync``), as a bundle is when its build ends. Every
builder runs in a process of its own whose memory is sampled every 10 ms; rowpack without its smoke run, which no peer
has. All take turns; medians over the rounds, ratios to ``cp``. Outputs are removed at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from artifacts import ArtifactStore, BuildFigures, remove_path
from contenders.catalogue import CONTENDERS, Artifact
from markdown_table import markdown_table, megabytes
from measured_machine import describe_machine, rowpack_version
from measured_process import CommandError, run_measured, size_of
from speed import add_environment_options, environments_of

COPY = "cp and sync"


@dataclass(frozen=True)
class BuildRow:
    """The medians of one builder."""

    name: str
    figures: BuildFigures


def main() -> int:
    """Build everything in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3_5-0.8b", help="a published shape, or a config.json")
    parser.add_argument("--contender", action="append", default=[], help="part of a name; default: every one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work-folder", type=Path, help="where the files lie meanwhile")
    add_environment_options(parser)
    parser.add_argument("--json", type=Path, help="write every figure here")
    arguments = parser.parse_args()
    environments = environments_of(arguments)
    machine = describe_machine(None, rowpack_version())
    with tempfile.TemporaryDirectory(prefix="builds-", dir=arguments.work_folder) as scratch:
        store = ArtifactStore(arguments.shape, Path(scratch), environments, 4096)
        rows, absent = measure(store, arguments.contender, arguments.rounds)
    print(f"Builds of {arguments.shape}: {machine}\n")
    print(table(rows))
    for name, reason in absent.items():
        print(f"- Not measured: {name}: {reason}.")
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1))
    return 0


def builders(family: str, names: list[str]) -> dict[str, Artifact]:
    """Return what is built, by the name of the first contender that loads it."""
    found: dict[str, Artifact] = {}
    for contender in CONTENDERS:
        wanted = not names or any(name in contender.name for name in names)
        built = contender.artifact.kind != "checkpoint" and contender.artifact not in found.values()
        if wanted and built and family in contender.families:
            found[contender.name] = contender.artifact
    return found


def measure(store: ArtifactStore, names: list[str], rounds: int) -> tuple[list[BuildRow], dict[str, str]]:
    """Copy and build in turn; return medians, and the builders that failed with their reasons."""
    checkpoint = store.prepare(Artifact("checkpoint"))
    store.prepare(Artifact("nested"))
    figures: dict[str, list[BuildFigures]] = {COPY: []}
    absent: dict[str, str] = {}
    for _ in range(rounds):
        figures[COPY].append(copy_once(checkpoint, store.folder / "copy"))
        for name, artifact in builders(store.family, names).items():
            if name in absent:
                continue
            print(f"{name}: building", file=sys.stderr)
            try:
                figures.setdefault(name, []).append(store.make(artifact, store.folder / "built"))
            except CommandError as error:
                absent[name] = str(error)
            remove_path(store.folder / "built")
    return [BuildRow(name, middle_of(taken)) for name, taken in figures.items() if name not in absent], absent


def copy_once(checkpoint: Path, target: Path) -> BuildFigures:
    """Copy the checkpoint and make the copy durable."""
    took = run_measured(["sh", "-c", 'cp -r "$0" "$1" && find "$1" -type f -exec sync {} +', checkpoint, target])
    written = size_of(target)
    remove_path(target)
    return BuildFigures(took.seconds, took.peak_resident_bytes, took.peak_anonymous_bytes, written)


def middle_of(rounds: list[BuildFigures]) -> BuildFigures:
    """Return the medians of a builder's rounds."""
    return BuildFigures(
        statistics.median(taken.seconds for taken in rounds),
        int(statistics.median(taken.peak_resident_bytes for taken in rounds)),
        int(statistics.median(taken.peak_anonymous_bytes for taken in rounds)),
        int(statistics.median(taken.output_bytes for taken in rounds)),
    )


def table(rows: list[BuildRow]) -> str:
    """Return the medians as a Markdown table; the first row is the copy."""
    copied = rows[0].figures
    cells = [
        [
            row.name,
            f"{row.figures.seconds:.1f}",
            f"{row.figures.seconds / copied.seconds:.2f}",
            megabytes(row.figures.peak_resident_bytes),
            megabytes(row.figures.peak_anonymous_bytes),
            megabytes(row.figures.output_bytes),
            f"{row.figures.output_bytes / copied.output_bytes:.2f}",
        ]
        for row in rows
    ]
    columns = ["builder", "s", "× cp", "peak resident MB", "peak anonymous MB", "written MB", "× checkpoint"]
    return markdown_table(columns, cells)


if __name__ == "__main__":
    sys.exit(main())
