"""Measure how cost grows with the work: prompt length, filled cache, cache capacity, layers, WKV's chunk, commands.

    python benchmarks/growth.py --shape qwen3_5-0.8b --peers-python PEERS/bin/python --json growth-qwen.json
    python benchmarks/growth.py --shape rwkv4-169m --peers-python PEERS/bin/python --json growth-rwkv.json
    python benchmarks/growth.py --part start-up --part wkv

Each part prints a Markdown table and is written to the JSON at once, beside what the file holds of other parts;
``pictures.py`` draws it. A contender stops where one more prompt would take longer than ``--most-seconds`` (the
chunks: ``--most-seconds-chunked``). Prompts and steps are timed once where they take over a second. Parts:

- ``prompts``: 1 to 32,768 tokens, the step after each, memory;
- ``long-prompts``: the same for the first ``--long-layers`` layers of the shape and a small vocabulary, so that the
  longest prompts end in time;
- ``capacity``: that model in bundles for sequences of 1,024 to 32,768, hardly used and filled;
- ``layers``: 4 to 32 layers with a small vocabulary;
- ``wkv``: memory of the [rows + 1, rows, hidden] exponents at hidden 5,120, in blocks and written out;
- ``bytes``: files and memory of one engine and two, in each width of weights;
- ``roof``: where prompts and steps stand under the machine's limits;
- ``start-up``: every command's help and its smallest run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from artifacts import ArtifactStore
from bundle_bytes import bytes_table, measure_bytes
from contenders.catalogue import QWEN
from growth_models import (
    LAYERS_VOCABULARY,
    capacity_table,
    layer_count,
    layers_table,
    measure_capacities,
    measure_layers,
    thinned,
)
from growth_prompts import PEERS, growing_contenders, measure_prompts, prompt_tables
from growth_start_up import measure_start_up, start_up_table
from growth_wkv import measure_wkv, wkv_table
from machine_roof import measure_roof
from measured_machine import describe_machine, rowpack_version, short_name
from roof_report import measure_points, roof_table
from speed import add_environment_options, environments_of

PARTS = ("prompts", "long-prompts", "capacity", "layers", "wkv", "bytes", "roof", "start-up")
LENGTHS = (1, 4, 16, 64, 256, 1024, 4096, 32768)
LONGEST = LENGTHS[-1]

Measured = tuple[Any, str, dict[str, str]]
"""One part's figures for JSON, its table, and remarks by name."""


def main() -> int:
    """Measure the parts asked for."""
    arguments = parse_arguments()
    machine = describe_machine(arguments.threads, rowpack_version())
    shape = Path(arguments.shape).stem if arguments.shape.endswith(".json") else arguments.shape
    results: dict[str, Any] = {"shape": shape, "machine": machine, "short_name": short_name()}
    print(machine)
    with tempfile.TemporaryDirectory(prefix="growth-", dir=arguments.work_folder) as scratch:
        for part in arguments.part or PARTS:
            print(f"{shape}: {part}", file=sys.stderr)
            start = time.perf_counter()
            figures, table, remarks = measure_part(part, arguments, Path(scratch))
            results[part] = figures
            print(f"\n### {shape}: {part}\n\n{table}")
            for name, reason in remarks.items():
                print(f"- {name}: {reason}.")
            sys.stdout.flush()
            print(f"{shape}: {part} took {time.perf_counter() - start:.0f} s", file=sys.stderr)
            if arguments.json:
                keep(results, arguments.json)
    return 0


def parse_arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3_5-0.8b", help="a published shape, or a config.json")
    parser.add_argument("--part", action="append", choices=PARTS, help="may be repeated; default: every one")
    parser.add_argument("--most-seconds", type=float, default=20.0, help="the longest that one prompt may take")
    parser.add_argument("--most-seconds-chunked", type=float, default=150.0, help="the same of prompts in chunks")
    parser.add_argument("--longest", type=int, default=LONGEST, help="the longest prompt, and the longest sequence")
    parser.add_argument("--long-layers", type=int, default=4, help="layers of long-prompts and capacity")
    parser.add_argument("--rounds", type=int, default=3, help="of start-up")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keep checkpoints and builds here between runs")
    parser.add_argument("--work-folder", type=Path, help="where they lie meanwhile, without --folder")
    parser.add_argument(
        "--peer",
        action="append",
        choices=list(PEERS),
        help="who else runs prompts; default, with --peers-python: transformers",
    )
    add_environment_options(parser)
    parser.add_argument("--json", type=Path, help="write every figure here, for the pictures")
    return parser.parse_args()


def keep(results: dict[str, Any], path: Path) -> None:
    """Write the parts measured so far, beside those of earlier runs on the same shape."""
    earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if earlier.get("shape") != results["shape"]:
        earlier = {}
    path.write_text(json.dumps({**earlier, **results}, indent=1), encoding="utf-8")


def measure_part(part: str, arguments: argparse.Namespace, scratch: Path) -> Measured:
    """Measure one part."""
    environments = environments_of(arguments)
    folder: Path = arguments.folder or scratch
    shape: str = arguments.shape
    threads: int = arguments.threads
    store = ArtifactStore(shape, folder, environments, arguments.longest)
    if part == "prompts":
        return measure_growing_prompts(store, arguments)
    if part == "long-prompts":
        kept, whole = min(arguments.long_layers, layer_count(shape)), layer_count(shape)
        thin = ArtifactStore(thinned(shape, kept, folder), folder, environments, arguments.longest)
        figures, table, remarks = measure_growing_prompts(thin, arguments)
        layers = f"{kept} of {whole} layers"
        return (
            {"layers": layers, "prompts": figures},
            f"{layers}, vocabulary of {LAYERS_VOCABULARY:,}.\n\n{table}",
            remarks,
        )
    if part == "capacity":
        if store.family != QWEN:
            return [], "RWKV-4 has no cache: a sequence of any length takes the same memory.", {}
        few = thinned(shape, arguments.long_layers, folder)
        capacities = measure_capacities(few, folder, environments, threads, arguments.longest)
        return [asdict(entry) for entry in capacities], capacity_table(capacities), {}
    if part == "layers":
        layers_measured = measure_layers(shape, folder, environments, threads)
        return [asdict(entry) for entry in layers_measured], layers_table(layers_measured), {}
    if part == "wkv":
        chunks = measure_wkv(folder, environments, threads)
        return [asdict(entry) for entry in chunks], wkv_table(chunks), {}
    if part == "bytes":
        sizes, remarks = measure_bytes(store, sys.executable, threads)
        return [asdict(entry) for entry in sizes], bytes_table(sizes), remarks
    if part == "roof":
        roof = measure_roof(threads)
        points, remarks = measure_points(store, sys.executable, threads)
        return {"roof": asdict(roof), "points": [asdict(point) for point in points]}, roof_table(roof, points), remarks
    from rowpack.cli.commands import COMMANDS

    names = [command.name for command in COMMANDS]
    starts, remarks = measure_start_up(names, scratch, arguments.rounds)
    return [asdict(entry) for entry in starts], start_up_table(starts), remarks


def measure_growing_prompts(store: ArtifactStore, arguments: argparse.Namespace) -> Measured:
    """Measure every contender with prompts up to the longest."""
    peers = arguments.peer or (["transformers"] if arguments.peers_python else [])
    contenders = growing_contenders(
        peers, environments_of(arguments), arguments.most_seconds, arguments.most_seconds_chunked
    )
    longest: int = arguments.longest
    # Steps after the prompt need rows of the cache too.
    lengths = [tokens if tokens < longest else tokens - 64 for tokens in LENGTHS if tokens <= longest]
    figures, remarks = measure_prompts(contenders, store, lengths, threads=arguments.threads, cache_rows=longest)
    return [asdict(entry) for entry in figures], prompt_tables(figures), remarks


if __name__ == "__main__":
    sys.exit(main())
