"""Measure how cost grows with the work: prompt length, filled cache, cache capacity, layers, WKV's chunk, commands.

    python benchmarks/growth.py --shape qwen3_5-0.8b --peers-python PEERS/bin/python --json growth-qwen.json
    python benchmarks/growth.py --shape rwkv4-169m --peers-python PEERS/bin/python --json growth-rwkv.json
    python benchmarks/growth.py --part start-up --part wkv

Each part prints a Markdown table; ``pictures.py`` draws the JSON. A contender stops where one more prompt would take
longer than ``--most-seconds``. Parts: ``prompts`` (1 to 32,768 tokens, the step after each, memory), ``capacity``
(bundles for sequences of 1,024 to 32,768), ``layers``, ``wkv`` (memory of the [rows + 1, rows, hidden] exponents at
hidden 5,120), ``bytes`` (one engine and two), ``roof`` (where prompts and steps stand under the machine's limits) and
``start-up``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from artifacts import ArtifactStore, Environments
from bundle_bytes import bytes_table, measure_bytes
from contenders.catalogue import QWEN
from growth_models import (
    capacity_table,
    layers_table,
    measure_capacities,
    measure_layers,
    measure_wkv,
    wkv_table,
)
from growth_prompts import growing_contenders, measure_prompts, prompt_tables
from growth_start_up import measure_start_up, start_up_table
from machine_roof import measure_roof
from measured_machine import describe_machine, rowpack_version, short_name
from roof_report import measure_points, roof_table
from speed import add_environment_options

PARTS = ("prompts", "capacity", "layers", "wkv", "bytes", "roof", "start-up")
LENGTHS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 32768)
LONGEST = LENGTHS[-1]


def main() -> int:
    """Measure the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3_5-0.8b", help="a published shape, or a config.json")
    parser.add_argument("--part", action="append", choices=PARTS, help="may be repeated; default: every one")
    parser.add_argument("--most-seconds", type=float, default=60.0, help="the longest that one prompt may take")
    parser.add_argument("--longest", type=int, default=LONGEST, help="the longest prompt, and the longest sequence")
    parser.add_argument("--rounds", type=int, default=5, help="of start-up")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keep checkpoints and builds here between runs")
    parser.add_argument("--work-folder", type=Path, help="where they lie meanwhile, without --folder")
    add_environment_options(parser)
    parser.add_argument("--json", type=Path, help="write every figure here, for the pictures")
    arguments = parser.parse_args()
    machine = describe_machine(arguments.threads, rowpack_version())
    results: dict[str, Any] = {"shape": Path(arguments.shape).stem, "machine": machine, "short_name": short_name()}
    print(machine)
    with tempfile.TemporaryDirectory(prefix="growth-", dir=arguments.work_folder) as scratch:
        for part in arguments.part or PARTS:
            figures, table, remarks = measure_part(part, arguments, Path(scratch))
            results[part] = figures
            print(f"\n### {results['shape']}: {part}\n\n{table}")
            for name, reason in remarks.items():
                print(f"- {name}: {reason}.")
            sys.stdout.flush()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


def measure_part(part: str, arguments: argparse.Namespace, scratch: Path) -> tuple[Any, str, dict[str, str]]:
    """Return one part's figures for JSON, its table, and remarks by name."""
    environments = Environments(arguments.peers_python, arguments.llama_cpp)
    folder: Path = arguments.folder or scratch
    threads: int = arguments.threads
    store = ArtifactStore(arguments.shape, folder, environments, arguments.longest)
    remarks: dict[str, str] = {}
    if part == "prompts":
        contenders = growing_contenders(sys.executable, arguments.peers_python)
        lengths = [tokens for tokens in LENGTHS if tokens <= arguments.longest]
        # A step after the prompt needs rows of the cache too.
        last = [tokens if tokens < arguments.longest else tokens - 64 for tokens in lengths]
        prompts, remarks = measure_prompts(
            contenders, store, last, threads=threads, cache_rows=arguments.longest, most_seconds=arguments.most_seconds
        )
        return [asdict(entry) for entry in prompts], prompt_tables(prompts), remarks
    if part == "capacity":
        if store.family != QWEN:
            return [], "RWKV-4 has no cache: a sequence of any length takes the same memory.", {}
        capacities = measure_capacities(arguments.shape, folder, environments, threads, arguments.longest)
        return [asdict(entry) for entry in capacities], capacity_table(capacities), {}
    if part == "layers":
        layers = measure_layers(arguments.shape, folder, environments, threads)
        return [asdict(entry) for entry in layers], layers_table(layers), {}
    if part == "wkv":
        chunks = measure_wkv(folder, environments, threads)
        return [asdict(entry) for entry in chunks], wkv_table(chunks), {}
    if part == "bytes":
        sizes, remarks = measure_bytes(store, sys.executable, threads)
        return [asdict(entry) for entry in sizes], bytes_table(sizes), remarks
    if part == "roof":
        roof = measure_roof(threads)
        points = measure_points(store, sys.executable, threads)
        return {"roof": asdict(roof), "points": [asdict(point) for point in points]}, roof_table(roof, points), {}
    from rowpack.cli.commands import COMMANDS

    names = [command.name for command in COMMANDS]
    starts, remarks = measure_start_up(names, scratch, arguments.rounds)
    return [asdict(entry) for entry in starts], start_up_table(starts), remarks


if __name__ == "__main__":
    sys.exit(main())
