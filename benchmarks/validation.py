"""Measure the validator and the writer against what the system offers for the same bytes, all in one run.

    python benchmarks/validation.py [--gigabytes 2] [--rounds 5] [--work-folder FOLDER]

- Header-only validation of a sparse bundle of 20 GB: milliseconds, and the bytes it read.
- Full validation of a bundle: GB/s against ``sha256sum`` and ``openssl dgst -sha256`` over the same file.
- Writing a bundle, with digests and made durable: GB/s against ``cp`` and ``sync`` of as many bytes.

The bundles hold the demo model; what makes them large is a section of random bytes, or a hole. Contenders take turns;
medians are printed, with the spread, and the file stays in the page cache, so that no disk is measured but for writing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowpack.bundle import BundleWriter
from rowpack_loaders import open_bundle, validate
from rowpack_loaders.bundle import Bundle
from rowpack_loaders.container_forms import MAGIC
from rowpack_loaders.digests import canonical_json, content_digest
from rowpack_loaders.section_names import section_order
from rowpack_loaders.version import __version__

SPARSE_BYTES = 20 * 10**9
FILLER = "filler.bin"
PIECE_BYTES = 4 * 2**20
WEIGHTS = "weights.safetensors"
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Timing:
    """The rounds of one contender over ``byte_count`` bytes."""

    name: str
    byte_count: int
    seconds: list[float]

    @property
    def median_s(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.seconds)

    @property
    def gigabytes_per_second(self) -> float:
        """Throughput of the median round."""
        return self.byte_count / self.median_s / 1e9


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the validator and the writer.")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the bundle that is read and written")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work-folder", type=Path, help="where the files lie meanwhile: on the disk to be measured")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="validation-", dir=arguments.work_folder) as scratch:
        folder = Path(scratch)
        demo = build_demo(folder)
        print(machine())
        print(header_only_table(demo, folder / "sparse.bundle", arguments.rounds))
        source = folder / "random.bin"
        write_random(source, int(arguments.gigabytes * 1e9))
        timings = write_rounds(demo, source, folder, arguments.rounds)
        print(table("Writing, made durable", timings))
        print(table("Validating in full", read_rounds(folder / "large.bundle", arguments.rounds)))


def build_demo(folder: Path) -> Path:
    """Build the demo model once."""
    path = folder / "demo.bundle"
    checkpoint = ROOT / "packager" / "rowpack" / "demo_checkpoint"
    command = [sys.executable, "-m", "rowpack", "build", str(checkpoint), "-o", str(path), "--progress", "none"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


# -- header only -------------------------------------------------------------------------------------------------


def header_only_table(demo: Path, path: Path, rounds: int) -> str:
    """Time header-only validation of a sparse bundle in this process and as a command."""
    stretch(demo, path, SPARSE_BYTES)
    report = validate(path, header_only=True)  # also warms up imports
    if not report.valid:
        raise SystemExit("\n".join(map(str, report.errors)))
    before = bytes_read()
    validate(path, header_only=True)
    read_bytes = bytes_read() - before
    inside = [timed(lambda: validate(path, header_only=True)) for _ in range(rounds * 10)]
    command = [sys.executable, "-m", "rowpack", "validate", "--header-only", "--progress", "none", str(path)]
    outside = [timed(lambda: run(command)) for _ in range(rounds)]
    lines = [
        f"\n## Header-only validation of a sparse bundle of {path.stat().st_size / 1e9:.1f} GB\n",
        "| | ms | bytes read |",
        "| --- | ---: | ---: |",
        f"| `validate(path, header_only=True)` | {statistics.median(inside) * 1e3:.1f} | {read_bytes} |",
        f"| `rowpack validate --header-only`, a new process | {statistics.median(outside) * 1e3:.0f} | |",
    ]
    return "\n".join(lines)


def stretch(demo: Path, path: Path, byte_count: int) -> None:
    """Write the demo bundle with its weights stretched to ``byte_count`` by a hole; header and manifest follow."""
    with open_bundle(demo) as bundle:
        start, manifest = bundle.container.payload_start, json.loads(json.dumps(bundle.manifest))
        table = {
            name: {"offset": place.offset_bytes - start, "length": place.length_bytes}
            for name, place in bundle.sections.items()
        }
        weights_end = table[WEIGHTS]["offset"] + byte_count
        following = -(-weights_end // 4096) * 4096
        table[WEIGHTS]["length"] = manifest["sections"][WEIGHTS]["length"] = byte_count
        moved = [name for name in table if section_order(name) > section_order(WEIGHTS)]
        contents = {name: bundle.read_section(name) for name in table if name not in (WEIGHTS, "manifest.json")}
        header = {"format": 1, "family": bundle.family, "task": bundle.header.task, "backend": bundle.backend}
    for name in moved:
        table[name]["offset"] = following
        following += -(-table[name]["length"] // 4096) * 4096
    manifest["content_digest"] = content_digest(manifest)
    text = canonical_json(manifest)
    table["manifest.json"]["length"] = len(text)
    head = json.dumps({**header, "sections": table}, separators=(",", ":")).encode()
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<Q", start - 16) + head.ljust(start - 16, b" ") + text)
        for name, content in contents.items():
            file.seek(start + table[name]["offset"])
            file.write(content)


def bytes_read() -> int:
    """Return how many bytes this process has read, by the kernel's count (and by 5 for reading that count)."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


# -- writing and reading in full ---------------------------------------------------------------------------------


def write_random(path: Path, byte_count: int) -> None:
    """Write random bytes, which no file system compresses."""
    piece = os.urandom(PIECE_BYTES)
    with path.open("wb") as file:
        for start in range(0, byte_count, PIECE_BYTES):
            file.write(piece[: min(PIECE_BYTES, byte_count - start)])


def write_rounds(demo: Path, source: Path, folder: Path, rounds: int) -> list[Timing]:
    """Write the large bundle and copy the same bytes, in turn; the last bundle stays."""
    target, copy = folder / "large.bundle", folder / "copy.bin"
    contenders: dict[str, Callable[[], object]] = {
        "`cp` and `sync`": lambda: (run(["cp", str(source), str(copy)]), run(["sync", str(copy)])),
        "`BundleWriter`: digests, fsync, rename": lambda: write_large(demo, source, target),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, write in contenders.items():
            target.unlink(missing_ok=True)
            copy.unlink(missing_ok=True)
            os.sync()
            seconds[name].append(timed(write))
    copy.unlink(missing_ok=True)
    if not target.exists():
        write_large(demo, source, target)
    return [Timing(name, source.stat().st_size, times) for name, times in seconds.items()]


def write_large(demo: Path, source: Path, target: Path) -> None:
    """Write the demo bundle again with the source's bytes as one more section."""
    with open_bundle(demo) as bundle, BundleWriter(target, family=bundle.family, backend=bundle.backend) as writer:
        declared: Any = bundle.manifest["sections"]
        manifest = {key: value for key, value in bundle.manifest.items() if key not in ("sections", "content_digest")}
        for name in sorted([*declared, FILLER], key=section_order):
            if name == FILLER:
                writer.add_section(name, pieces(source), media_type="application/octet-stream", required=False)
            else:
                add_again(writer, bundle, name, declared[name])
        writer.finish(manifest, {})


def add_again(writer: BundleWriter, bundle: Bundle, name: str, entry: dict[str, Any]) -> None:
    """Write one section of the demo bundle as it was declared there."""
    options = {key: entry[key] for key in ("media_type", "encoding", "required")}
    writer.add_section(name, bundle.section_view(name), **options)


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file."""
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def read_rounds(path: Path, rounds: int) -> list[Timing]:
    """Validate the large bundle and digest it with the system's programs, in turn."""
    contenders: dict[str, Callable[[], object]] = {
        "`sha256sum`": lambda: run(["sha256sum", str(path)]),
        "`rowpack_loaders.validate`": lambda: check(path),
    }
    if shutil.which("openssl"):
        contenders["`openssl dgst -sha256`"] = lambda: run(["openssl", "dgst", "-sha256", str(path)])
    for contender in contenders.values():
        contender()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            seconds[name].append(timed(contender))
    return [Timing(name, path.stat().st_size, times) for name, times in seconds.items()]


def check(path: Path) -> None:
    """Validate in full and demand that the bundle is valid."""
    report = validate(path)
    if not report.valid:
        raise SystemExit("\n".join(map(str, report.errors)))


# -- printing ----------------------------------------------------------------------------------------------------


def run(command: list[str]) -> None:
    """Run a command and discard what it prints."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that ``work`` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def table(title: str, timings: list[Timing]) -> str:
    """Return a Markdown table; ratios are to the first contender."""
    first = timings[0]
    lines = [f"\n## {title}: {first.byte_count / 1e9:.2f} GB\n", "| | s (least to most) | GB/s | × first |"]
    lines.append("| --- | ---: | ---: | ---: |")
    for timing in timings:
        spread = f"{timing.median_s:.2f} ({min(timing.seconds):.2f} to {max(timing.seconds):.2f})"
        ratio = timing.gigabytes_per_second / first.gigabytes_per_second
        lines.append(f"| {timing.name} | {spread} | {timing.gigabytes_per_second:.2f} | {ratio:.2f} |")
    return "\n".join(lines)


def machine() -> str:
    """Return what the figures were measured on."""
    processor = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    digest = subprocess.run(["sha256sum", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[
        0
    ]
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"rowpack {__version__}, Python {platform.python_version()}, {processor}, {os.cpu_count()} cores, "
        f"{digest}, load average {load}"
    )


if __name__ == "__main__":
    main()
