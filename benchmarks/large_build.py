"""Compare building a bundle with copying its checkpoint, on random checkpoints of published shapes.

    python benchmarks/large_build.py --shape qwen3_5-9b --precision fp16 [--rounds 1] [--work-folder DIR] [--keep]

In turn and in one run: ``cp -r`` of the checkpoint followed by ``sync``, and ``rowpack build --no-verify`` (which
narrows or widens every weight, takes SHA-256 of what it reads and of what it writes, and synchronises the file). The
checkpoint is thrown out of the page cache before each, so that both read it from the disk. Verifying is left out: it
reads all weights hundreds of times, and a bundle that does not fit in memory is then read from the disk as often.

Peak memory is compared with a process that has imported what a build imports and does nothing. With ``--run`` the
bundle is loaded afterwards, and runs one prompt of 64 tokens, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from markdown_table import markdown_table, megabytes, with_ratio
from measured_machine import describe_machine, rowpack_version
from measured_process import ProcessFigures, run_measured, size_of

from rowpack.synthesis import synthesize

IDLE = "import numpy, onnx, onnx_graphsurgeon, onnxruntime, rowpack.build_stages, rowpack.cli, rowpack.surgery"
FIRST_TOKEN = """
import json, sys, time
from rowpack_loaders import load
began = time.perf_counter()
session = load(sys.argv[1]).session()
loaded = time.perf_counter()
session.prefill(list(range(5, 69)))
print(json.dumps([loaded - began, time.perf_counter() - loaded]))
"""


@dataclass(frozen=True)
class Comparison:
    """What copying and building one checkpoint took."""

    shape: str
    precision: str
    checkpoint_bytes: int
    bundle_bytes: int
    copy_seconds: list[float]
    build_seconds: list[float]
    idle_bytes: int
    peak_resident_bytes: int
    peak_anonymous_bytes: int
    first_token_seconds: list[float] | None

    def cells(self) -> list[str]:
        """Return the row of the table."""
        copied, built = statistics.median(self.copy_seconds), statistics.median(self.build_seconds)
        load, token = ("", "") if self.first_token_seconds is None else (f"{s:.2f}" for s in self.first_token_seconds)
        return [
            self.shape,
            self.precision,
            megabytes(self.checkpoint_bytes),
            megabytes(self.bundle_bytes),
            f"{copied:.1f}",
            with_ratio(built, copied),
            megabytes(self.peak_resident_bytes),
            megabytes(self.peak_resident_bytes - self.idle_bytes),
            megabytes(self.peak_anonymous_bytes),
            load,
            token,
        ]


COLUMNS = [
    "shape",
    "precision",
    "checkpoint MB",
    "bundle MB",
    "cp, sync s",
    "build s (× cp)",
    "peak resident MB",
    "above an idle process MB",
    "peak anonymous MB",
    "load s",
    "64 tokens s",
]


def main() -> int:
    """Measure every shape asked for and print a table."""
    parser = argparse.ArgumentParser(description="Compare building a bundle with copying its checkpoint.")
    parser.add_argument("--shape", action="append", required=True, help="a published shape; may be repeated")
    parser.add_argument("--precision", default="fp16", choices=("fp32", "fp16"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--run", action="store_true", help="load the bundle and run a prompt afterwards")
    parser.add_argument("--work-folder", type=Path, help="where checkpoint, copy and bundle lie meanwhile")
    parser.add_argument("--keep", action="store_true", help="keep the checkpoint for the next run")
    arguments = parser.parse_args()
    print(describe_machine(os.cpu_count() or 1, rowpack_version()))
    work_folder = arguments.work_folder or Path(tempfile.mkdtemp(prefix="large-build-"))
    rows = []
    for shape in arguments.shape:
        checkpoint = work_folder / shape
        try:
            if not checkpoint.exists():
                print(f"{shape}: writing the checkpoint", file=sys.stderr)
                synthesize(shape, checkpoint)
            compared = compare(shape, arguments.precision, checkpoint, arguments.rounds, run=arguments.run)
        finally:
            if not arguments.keep:
                shutil.rmtree(checkpoint, ignore_errors=True)
        print(json.dumps(compared.__dict__), file=sys.stderr)
        rows.append(compared.cells())
    print(markdown_table(COLUMNS, rows, text_columns=2))
    return 0


def compare(shape: str, precision: str, checkpoint: Path, rounds: int, *, run: bool) -> Comparison:
    """Copy and build ``checkpoint`` in turn; copy and bundle are removed as soon as they are measured."""
    copy, bundle = checkpoint.with_name(f"{shape}.copy"), checkpoint.with_name(f"{shape}.bundle")
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "rowpack",
        "build",
        checkpoint,
        "-o",
        bundle,
        "--precision",
        precision,
    ]
    command += ["--no-verify", "--progress", "none", "--json"]
    idle = run_measured([sys.executable, "-c", IDLE])
    copies: list[ProcessFigures] = []
    builds: list[ProcessFigures] = []
    bundle_bytes, first_token = 0, None
    try:
        for _ in range(rounds):
            forget_pages(checkpoint)
            print(f"{shape}: copying", file=sys.stderr)
            copies.append(run_measured(["sh", "-c", 'cp -r "$0" "$1" && sync -f "$1"', checkpoint, copy]))
            shutil.rmtree(copy)
            forget_pages(checkpoint)
            print(f"{shape}: building", file=sys.stderr)
            builds.append(run_measured(command))
            bundle_bytes = size_of(bundle)
        if run:
            print(f"{shape}: running", file=sys.stderr)
            first_token = json.loads(run_measured([sys.executable, "-c", FIRST_TOKEN, bundle]).output)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
        bundle.unlink(missing_ok=True)
    return Comparison(
        shape=shape,
        precision=precision,
        checkpoint_bytes=size_of(checkpoint),
        bundle_bytes=bundle_bytes,
        copy_seconds=[figures.seconds for figures in copies],
        build_seconds=[figures.seconds for figures in builds],
        idle_bytes=idle.peak_resident_bytes,
        peak_resident_bytes=max(figures.peak_resident_bytes for figures in builds),
        peak_anonymous_bytes=max(figures.peak_anonymous_bytes for figures in builds),
        first_token_seconds=first_token,
    )


def forget_pages(folder: Path) -> None:
    """Throw a folder's files out of the page cache, once they are on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    sys.exit(main())
