"""Measure what a second engine costs in the file: one plan, two raw plans, or the second as extents over the first.

    python benchmarks/plan_sizes.py [--shape rwkv4-169m] [--shape qwen3_5-0.8b] [--precision fp16]

Builds random checkpoints of published shapes with TensorRT for RTX (no GPU needed), not verified, each in a process of
its own, and reads every plan back from the bundle against its digest. Prints one JSON object, and a table for
``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rowpack.synthesis import synthesize
from rowpack_loaders import open_bundle
from rowpack_loaders.section_content import check_content_digest, open_content

DEFAULT_SHAPES = ("rwkv4-169m", "qwen3_5-0.8b")
WAYS = {
    "single": ("--decoder-engine-layout", "single"),
    "split, raw": ("--decoder-engine-layout", "split", "--plan-encoding", "raw"),
    "split, shared": ("--decoder-engine-layout", "split", "--plan-encoding", "shared"),
}


@dataclass(frozen=True)
class PlanSizes:
    """Sizes of one build in bytes; ``prefill_content_bytes`` is the prefill plan as the library gets it."""

    shape: str
    precision: str
    way: str
    file_bytes: int
    decode_bytes: int
    prefill_stored_bytes: int
    prefill_content_bytes: int
    build_seconds: float
    rebuild_seconds: float


def main() -> int:
    """Measure every shape asked for."""
    parser = argparse.ArgumentParser(description="Measure what a second engine costs in the file.")
    parser.add_argument("--shape", action="append", help="a published shape; may be repeated")
    parser.add_argument("--precision", default="fp16", choices=("fp32", "fp16", "bf16"))
    parser.add_argument("--work-folder", type=Path, help="where checkpoint and bundle lie meanwhile")
    arguments = parser.parse_args()
    sizes = []
    for shape in arguments.shape or DEFAULT_SHAPES:
        with tempfile.TemporaryDirectory(prefix="plan-sizes-", dir=arguments.work_folder) as scratch:
            print(f"{shape}: writing the checkpoint", file=sys.stderr)
            synthesize(shape, Path(scratch) / shape)
            for way in WAYS:
                print(f"{shape}: building {way}", file=sys.stderr)
                sizes.append(measure(shape, arguments.precision, way, Path(scratch)))
    print(json.dumps([asdict(entry) for entry in sizes], indent=2))
    print(table(sizes))
    return 0


def measure(shape: str, precision: str, way: str, scratch: Path) -> PlanSizes:
    """Build one way and read the prefill plan back."""
    path = scratch / "measured.bundle"
    command = [sys.executable, "-m", "rowpack", "build", str(scratch / shape), "-o", str(path), "--json"]
    command += ["--backend", "trt_rtx", "--precision", precision, "--no-verify", "--progress", "none", *WAYS[way]]
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    build_seconds = time.monotonic() - started
    with open_bundle(path) as bundle:
        stored = {name: place.length_bytes for name, place in bundle.sections.items()}
        content_bytes, started = 0, time.monotonic()
        if "prefill.plan" in stored:
            content = open_content(bundle.container, bundle.manifest, "prefill.plan")
            check_content_digest(content, bundle.manifest, "prefill.plan", str(path))
            content_bytes = content.length_bytes
        rebuild_seconds = time.monotonic() - started
    return PlanSizes(
        shape=shape,
        precision=precision,
        way=way,
        file_bytes=path.stat().st_size,
        decode_bytes=stored["engine.plan"],
        prefill_stored_bytes=stored.get("prefill.plan", 0),
        prefill_content_bytes=content_bytes,
        build_seconds=round(build_seconds, 1),
        rebuild_seconds=round(rebuild_seconds, 2),
    )


def table(sizes: list[PlanSizes]) -> str:
    """Return the sizes as a Markdown table, in MB."""
    lines = [
        "| shape | plans | file MB | × single | decode plan MB | prefill plan MB | of it stored MB | read back s |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    single = {entry.shape: entry.file_bytes for entry in sizes if entry.way == "single"}
    for entry in sizes:
        decode, content, stored = (
            f"{figure / 10**6:,.1f}" if figure else ""
            for figure in (entry.decode_bytes, entry.prefill_content_bytes, entry.prefill_stored_bytes)
        )
        ratio = entry.file_bytes / single[entry.shape]
        seconds = f"{entry.rebuild_seconds:.1f}" if content else ""
        lines.append(
            f"| {entry.shape} {entry.precision} | {entry.way} | {entry.file_bytes / 10**6:,.1f} | {ratio:.3f} "
            f"| {decode} | {content} | {stored} | {seconds} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
