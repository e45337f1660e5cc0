"""Measure what compiling with TensorRT for RTX takes: time, memory, and the size of plans. No GPU is needed.

    python benchmarks/tensorrt_builds.py [--checkpoint FOLDER] [--shape qwen3_5-0.8b] [--precision fp16] [--verify]

Checkpoints of published shapes are random and removed afterwards; what a build takes does not depend on the values.
Prints one JSON object, and a table for ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rowpack.synthesis import synthesize
from rowpack_loaders import open_bundle
from rowpack_loaders.host_memory import total_host_memory

SMALL_CHECKPOINTS = (
    Path(__file__).parents[1] / "packager" / "rowpack" / "demo_checkpoint",
    Path(__file__).parents[1] / "tests" / "data" / "rwkv4-kjv-3.7m",
)


@dataclass(frozen=True)
class PlanFigures:
    """One plan: bytes as the library counts and writes them, and what compiling took."""

    checkpoint: str
    precision: str
    quantization: str | None
    role: str
    plan_bytes: int
    weight_bytes: int
    activation_bytes: int | None
    seconds: float
    peak_resident_bytes: int
    estimated_peak_bytes: int


def main() -> int:
    """Measure every checkpoint and shape asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", action="append", type=Path, help="a folder; may be repeated")
    parser.add_argument("--shape", action="append", help="a published shape; may be repeated")
    parser.add_argument("--precision", default="fp16", choices=("fp32", "fp16", "bf16"))
    parser.add_argument("--quantization", choices=("fp8", "nvfp4"))
    parser.add_argument("--verify", action="store_true", help="run the graphs too, as a build does")
    parser.add_argument("--work-folder", type=Path, help="where checkpoints and bundles lie meanwhile")
    arguments = parser.parse_args()
    figures: list[PlanFigures] = []
    builds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tensorrt-builds-", dir=arguments.work_folder) as scratch:
        folders = arguments.checkpoint or ([] if arguments.shape else list(SMALL_CHECKPOINTS))
        for folder in (*folders, *(arguments.shape or ())):
            with checkpoint_folder(folder, Path(scratch)) as checkpoint:
                bundle = Path(scratch) / "measured.bundle"
                report, processor_s = build(checkpoint, bundle, arguments)
                plans = list(read_figures(checkpoint.name, report, bundle, arguments))
                figures += plans
                builds.append(
                    {
                        "checkpoint": checkpoint.name,
                        "file_bytes": report["file_bytes"],
                        "seconds": {stage["name"]: round(stage["elapsed_s"], 2) for stage in report["stages"]},
                        "processor_s": round(processor_s, 1),
                        "host_memory": report["host_memory"],
                        "worst_relative_error": report["worst_relative_error"],
                    }
                )
                bundle.unlink()
    memory_bytes = total_host_memory() or 0
    machine = f"{platform.machine()}, {memory_bytes / 10**9:.1f} GB"
    print(json.dumps({"machine": machine, "builds": builds, "plans": [asdict(plan) for plan in figures]}, indent=2))
    print(table(figures))
    print(build_table(builds))
    return 0


@contextmanager
def checkpoint_folder(name: Path | str, scratch: Path) -> Iterator[Path]:
    """Yield a checkpoint: the folder itself, or a random one of the published shape ``name``."""
    if isinstance(name, Path):
        yield name
        return
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        print(f"{name}: writing a random checkpoint", file=sys.stderr)
        yield synthesize(name, Path(folder) / name).folder


def build(checkpoint: Path, bundle: Path, arguments: argparse.Namespace) -> tuple[dict[str, Any], float]:
    """Build a split bundle in a process of its own; return its report, and the processor's seconds with compilers."""
    command = [sys.executable, "-m", "rowpack", "build", str(checkpoint), "-o", str(bundle), "--json"]
    command += ["--backend", "trt_rtx", "--precision", arguments.precision, "--decoder-engine-layout", "split"]
    command += ["--allow-missing-tokenizer"]
    command += [] if arguments.verify else ["--no-verify"]
    command += ["--quantization", arguments.quantization] if arguments.quantization else []
    before_s = children_processor_s()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report, children_processor_s() - before_s


def children_processor_s() -> float:
    """Return what the processor worked for ended children and theirs, which hardly depends on other work."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_figures(
    name: str, report: dict[str, Any], bundle: Path, arguments: argparse.Namespace
) -> Iterator[PlanFigures]:
    """Yield the figures of each plan."""
    with open_bundle(bundle) as opened:
        engines: Any = opened.manifest["engines"]
    for role, took in report["engine_builds"].items():
        resident = engines[role]["resident_bytes"]
        yield PlanFigures(
            name,
            arguments.precision,
            arguments.quantization,
            role,
            took["engine_bytes"],
            resident["weights"],
            resident["context"],
            took["seconds"],
            took["peak_resident_bytes"],
            took["estimated_peak_bytes"],
        )


def table(figures: list[PlanFigures]) -> str:
    """Return the figures as a Markdown table, in MB."""
    lines = [
        "| checkpoint | precision | engine | plan MB | weights MB | activations MB | seconds | peak MB (estimated) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for plan in figures:
        sizes = (
            plan.plan_bytes,
            plan.weight_bytes,
            plan.activation_bytes or 0,
            plan.peak_resident_bytes,
            plan.estimated_peak_bytes,
        )
        written, weights, activations, peak, estimated = (f"{size / 10**6:,.1f}" for size in sizes)
        precision = plan.precision + (f", {plan.quantization}" if plan.quantization else "")
        lines.append(
            f"| {plan.checkpoint} | {precision} | {plan.role} | {written} | {weights} | {activations} "
            f"| {plan.seconds:.1f} | {peak} ({estimated}) |"
        )
    return "\n".join(lines)


def build_table(builds: list[dict[str, Any]]) -> str:
    """Return what whole builds took as a Markdown table, in MB."""
    lines = [
        "| checkpoint | bundle MB | seconds | of processor | anonymous MB (estimated) |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for entry in builds:
        host = entry["host_memory"]
        lines.append(
            f"| {entry['checkpoint']} | {entry['file_bytes'] / 10**6:,.1f} | {sum(entry['seconds'].values()):.1f} "
            f"| {entry['processor_s']:.1f} | {(host['peak_anonymous_bytes'] or 0) / 10**6:,.0f} "
            f"({host['estimated_bytes'] / 10**6:,.0f}) |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
