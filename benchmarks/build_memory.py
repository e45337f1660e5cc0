"""Measure how much memory a build takes, on random checkpoints of published shapes.

    python benchmarks/build_memory.py [--shape rwkv4-1b5] [--shape qwen3_5-2b] [--precision fp32] [--no-verify]

Each checkpoint is written, built by ``rowpack build`` in a process of its own whose resident memory is read every
10 ms, and removed with its bundle. The promise is: peak resident memory stays below the largest tensor + 500 MB,
whatever the checkpoint's size. Prints one JSON object, and a table for ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rowpack.checkpoint import open_checkpoint
from rowpack.synthesis import synthesize
from rowpack_loaders.host_memory import process_memory, total_host_memory
from rowpack_loaders.version import __version__

DEFAULT_SHAPES = ("rwkv4-1b5", "qwen3_5-2b")
ALLOWANCE_BYTES = 500 * 10**6
SAMPLE_SECONDS = 0.01
MEASURED_PACKAGES = ("numpy", "ml-dtypes", "onnx", "onnx-graphsurgeon", "onnxruntime")


@dataclass(frozen=True)
class Measurement:
    """What one build took. Tensors count in float32, the width in which they are converted and bundled as fp32."""

    shape: str
    precision: str
    verified: bool
    checkpoint_bytes: int
    bundle_bytes: int
    largest_tensor_bytes: int
    peak_resident_bytes: int
    peak_anonymous_bytes: int
    peak_file_bytes: int
    seconds: float
    stage_seconds: dict[str, float]

    @property
    def limit_bytes(self) -> int:
        """The most that the build may hold."""
        return self.largest_tensor_bytes + ALLOWANCE_BYTES


def main() -> int:
    """Measure every shape asked for; exit status 1 when one build held more than it may."""
    parser = argparse.ArgumentParser(description="Measure how much memory a build takes.")
    parser.add_argument("--shape", action="append", help="a published shape; may be repeated")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "fp16", "bf16"))
    parser.add_argument("--no-verify", action="store_true", help="leave out the smoke run")
    parser.add_argument("--work-folder", type=Path, help="where checkpoint and bundle lie meanwhile")
    arguments = parser.parse_args()
    measurements = []
    for shape in arguments.shape or DEFAULT_SHAPES:
        with tempfile.TemporaryDirectory(prefix="build-memory-", dir=arguments.work_folder) as scratch:
            measurements.append(measure(shape, arguments.precision, not arguments.no_verify, Path(scratch)))
    print(json.dumps({"versions": versions(), "builds": [asdict(entry) for entry in measurements]}, indent=2))
    print(table(measurements))
    return int(any(entry.peak_resident_bytes > entry.limit_bytes for entry in measurements))


def measure(shape: str, precision: str, verified: bool, scratch: Path) -> Measurement:
    """Write a random checkpoint of a shape, build it, and return what the build took."""
    checkpoint_folder, bundle = scratch / shape, scratch / f"{shape}.bundle"
    print(f"{shape}: writing the checkpoint", file=sys.stderr)
    written = synthesize(shape, checkpoint_folder)
    with open_checkpoint(checkpoint_folder) as checkpoint:
        largest_elements = max(info.byte_count // 2 for info in checkpoint.tensors.values())
    command = [sys.executable, "-m", "rowpack", "build", str(checkpoint_folder), "-o", str(bundle), "--json"]
    command += ["--precision", precision, *([] if verified else ["--no-verify"])]
    print(f"{shape}: building", file=sys.stderr)
    started = time.monotonic()
    peak_resident_bytes = peak_anonymous_bytes = peak_file_bytes = 0
    with (scratch / "report.json").open("w+") as report_file:
        with subprocess.Popen(command, stdout=report_file) as process:
            while process.poll() is None:
                memory = process_memory(process_id=process.pid)
                if memory is not None:
                    peak_resident_bytes = max(peak_resident_bytes, memory.peak_resident_bytes)
                    peak_anonymous_bytes = max(peak_anonymous_bytes, memory.anonymous_bytes)
                    peak_file_bytes = max(peak_file_bytes, memory.file_bytes)
                time.sleep(SAMPLE_SECONDS)
        seconds = time.monotonic() - started
        if process.returncode != 0:
            raise SystemExit(f"{shape}: the build failed with status {process.returncode}")
        report_file.seek(0)
        report = json.load(report_file)
    return Measurement(
        shape=shape,
        precision=precision,
        verified=verified,
        checkpoint_bytes=written.tensor_bytes,
        bundle_bytes=bundle.stat().st_size,
        largest_tensor_bytes=4 * largest_elements,
        peak_resident_bytes=peak_resident_bytes,
        peak_anonymous_bytes=peak_anonymous_bytes,
        peak_file_bytes=peak_file_bytes,
        seconds=round(seconds, 1),
        stage_seconds={stage["name"]: round(stage["elapsed_s"], 2) for stage in report["stages"]},
    )


def versions() -> dict[str, str]:
    """Return the versions and the machine that the figures belong to."""
    packages = {name: importlib.metadata.version(name) for name in MEASURED_PACKAGES}
    memory_bytes = total_host_memory() or 0
    machine = f"{platform.machine()}, {memory_bytes / 10**9:.1f} GB"
    return {"rowpack": __version__, "python": platform.python_version(), "machine": machine, **packages}


def table(measurements: list[Measurement]) -> str:
    """Return the figures as a Markdown table, in MB."""
    lines = [
        "| shape | precision | checkpoint MB | bundle MB | largest tensor MB | peak resident MB (allowed) "
        "| peak anonymous MB | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for entry in measurements:
        figures = (
            entry.checkpoint_bytes,
            entry.bundle_bytes,
            entry.largest_tensor_bytes,
            entry.peak_resident_bytes,
            entry.limit_bytes,
            entry.peak_anonymous_bytes,
        )
        checkpoint, bundle, largest, peak, limit, anonymous = (f"{figure / 10**6:,.0f}" for figure in figures)
        precision = entry.precision + ("" if entry.verified else ", not verified")
        lines.append(
            f"| {entry.shape} | {precision} | {checkpoint} | {bundle} | {largest} | {peak} ({limit}) "
            f"| {anonymous} | {entry.seconds:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
