"""Time prefill, decode, load and memory of rowpack and its peers on this CPU, in the same run.

    python benchmarks/speed.py --shape qwen3_5-0.8b --peers-python PEERS/bin/python --llama-cpp LIBRARIES
    python benchmarks/speed.py --shape rwkv4-169m --peers-python PEERS/bin/python

``benchmarks/README.md`` says how the peers are set up. The checkpoint is random, in the published shape. In each
round every contender of a class of precision runs in turn (every second round in the reverse order), in a fresh
process: import, load, a first prompt (the time to the first token is the sum of the three), then each prompt length
once to warm up and once timed, then single steps. Medians over the rounds, ratios to the first row. A contender that
cannot run here stays in the table's list with the reason.

Decode is compared with the time to read the weights once at the bandwidth measured in the same run
(``read_bandwidth.py``): the best of probes before the first class and after each.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from artifacts import ArtifactStore, Environments
from contender_process import ContenderError, ContenderProcess, prompt_of
from contenders import LoadRequest
from contenders.catalogue import PRECISIONS, QWEN, Contender, reason_against, select
from measured_machine import describe_machine, processor_features, read_cpuinfo
from measured_process import CommandError
from read_bandwidth import Bandwidth, bytes_read_a_token, measure_read_bandwidth, weight_tensors
from speed_report import ClassReport, ContenderFigures, bars_table, class_section

import rowpack_loaders

PROMPT_TOKENS = {QWEN: (16, 64, 142, 512), "rwkv4": (16, 64, 128, 512)}
LOOP_TOKENS = {QWEN: 142, "rwkv4": 128}
"""The prompt of the first token, and of the comparison of chunks with the token loop."""
WARM_STEPS = 2


def main() -> int:
    """Measure one shape and print a section for each class of precision."""
    arguments = parse_arguments()
    environments = environments_of(arguments)
    with tempfile.TemporaryDirectory(prefix="speed-", dir=arguments.work_folder) as scratch:
        folder = arguments.folder or Path(scratch)
        store = ArtifactStore(arguments.shape, folder, environments, arguments.cache_rows)
        machine = describe_machine(arguments.threads, {})
        bandwidth = measure_read_bandwidth(arguments.threads)
        reports: list[ClassReport] = []
        for precision in arguments.precision or PRECISIONS:
            reports.append(measure_class(precision, store, arguments))
            again = measure_read_bandwidth(arguments.threads)
            bandwidth = max(bandwidth, again, key=lambda measured: measured.bytes_per_second)
            print(class_section(reports[-1], bandwidth.bytes_per_second), flush=True)
            versions = {key: value for report in reports for row in report.rows for key, value in row.versions.items()}
            if arguments.json:
                # After each class: a run that is cut short leaves what it measured.
                figures = as_json(arguments, machine, versions, bandwidth, reports)
                arguments.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
            if arguments.folder is None:
                for contender in select([precision], arguments.contender):
                    if contender.artifact.kind != "checkpoint":
                        store.remove(contender.artifact)
    print(f"\n{arguments.shape}: {machine}, " + ", ".join(f"{key} {value}" for key, value in versions.items()))
    print(f"Memory was read at {bandwidth.bytes_per_second / 1e9:.1f} GB/s ({bandwidth.loop}).\n")
    print(bars_table(arguments.shape, LOOP_TOKENS[store.family], reports, bandwidth.bytes_per_second))
    return 0


def parse_arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3_5-0.8b", help="a published shape, or a config.json")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="a class; default: every one")
    parser.add_argument("--contender", action="append", default=[], help="part of a name; default: every one")
    parser.add_argument("--prompt-tokens", type=int, action="append", help="default: 16, 64, 142 (RWKV 128), 512")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--decode-steps", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-rows", type=int, default=4096, help="longest sequence that contenders are set up for")
    parser.add_argument("--folder", type=Path, help="keep checkpoint and builds here between runs")
    parser.add_argument("--work-folder", type=Path, help="where they lie meanwhile, without --folder")
    add_environment_options(parser)
    parser.add_argument("--json", type=Path, help="write every figure here, for the pictures")
    return parser.parse_args()


def add_environment_options(parser: argparse.ArgumentParser) -> None:
    """Declare where the peers are."""
    parser.add_argument("--peers-python", help="the Python of an environment with the peers")
    parser.add_argument("--peers-path", help="folders that the peers import from, in place of PYTHONPATH")
    parser.add_argument("--llama-cpp", type=Path, help="a folder with llama.cpp's prebuilt libraries")


def environments_of(arguments: argparse.Namespace) -> Environments:
    """Return where things run by the command line."""
    return Environments(arguments.peers_python, arguments.llama_cpp, peers_path=arguments.peers_path)


def measure_class(precision: str, store: ArtifactStore, arguments: argparse.Namespace) -> ClassReport:
    """Run every contender of a class in turn, ``rounds`` times."""
    family, features = store.family, processor_features(read_cpuinfo())
    lengths = arguments.prompt_tokens or PROMPT_TOKENS[family]
    absent: dict[str, str] = {}
    sources: dict[str, tuple[Contender, Path]] = {}
    for contender in select([precision], arguments.contender):
        reason = reason_against(contender, family, features)
        try:
            if reason is None:
                print(f"{contender.name}: preparing", file=sys.stderr)
                sources[contender.name] = contender, store.prepare(contender.artifact)
        except CommandError as error:
            reason = str(error)
        if reason is not None:
            absent[contender.name] = reason
    compile_modules()
    os.sync()  # what was just written is not to be written out beside the first of them
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
    for number in range(arguments.rounds):
        # There and back, so that what changes on the machine meanwhile meets all alike.
        for name, (contender, source) in list(sources.items())[:: -1 if number % 2 else 1]:
            if name in absent:
                continue
            print(f"{name}: round {number + 1} of {arguments.rounds}", file=sys.stderr)
            try:
                rounds[name].append(measure_round(contender, source, store, lengths, arguments))
            except (ContenderError, CommandError) as error:
                absent[name] = str(error)
    rows = [
        figures_of(sources[name][0], taken, sources[name][1]) for name, taken in rounds.items() if name not in absent
    ]
    return ClassReport(precision, tuple(lengths), LOOP_TOKENS[family], rows, absent)


def compile_modules() -> None:
    """Write the bytecode of what is measured, as installing it does: peers are installed, rowpack may be a checkout."""
    for folder in (Path(rowpack_loaders.__file__).parent, Path(__file__).parent):
        compileall.compile_dir(folder, quiet=2)


def measure_round(
    contender: Contender, source: Path, store: ArtifactStore, lengths: Sequence[int], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Run one contender once in a fresh process."""
    vocabulary, first_tokens = store.vocabulary_size(), LOOP_TOKENS[store.family]
    library = store.llama_cpp() if contender.artifact.kind == "gguf" else None
    request = LoadRequest(source, contender.choice, arguments.threads, arguments.cache_rows, library)
    # llama.cpp's libraries are called from any Python.
    own = contender.is_ours or contender.artifact.kind == "gguf"
    python = sys.executable if own or arguments.peers_python is None else arguments.peers_python
    path = None if own else arguments.peers_path
    with ContenderProcess(python, contender.module, request, import_path=path) as process:
        first = process.ask(do="prefill", token_ids=prompt_of(first_tokens, vocabulary))
        prefill_s = {}
        for tokens in [first_tokens] if contender.is_token_loop else lengths:
            if not contender.is_token_loop:
                process.prefill_s(prompt_of(tokens, vocabulary))
            prefill_s[tokens] = process.prefill_s(prompt_of(tokens, vocabulary))
        process.step_s(WARM_STEPS)
        decode_s = process.step_s(arguments.decode_steps)
        memory = process.ask(do="memory")
    loading = process.loading
    return {
        **loading,
        **memory,
        "next_token": first["next_token"],
        "first_token_s": loading["import_s"] + loading["load_s"] + first["s"],
        "prefill_s": prefill_s,
        "decode_s": decode_s,
    }


def figures_of(contender: Contender, rounds: list[dict[str, Any]], source: Path) -> ContenderFigures:
    """Return the medians of one contender's rounds."""

    def middle(key: str) -> float:
        return statistics.median(float(taken[key]) for taken in rounds)

    return ContenderFigures(
        name=contender.name,
        is_ours=contender.is_ours,
        is_token_loop=contender.is_token_loop,
        prefill_ms={
            tokens: 1e3 * statistics.median(taken["prefill_s"][tokens] for taken in rounds)
            for tokens in rounds[0]["prefill_s"]
        },
        decode_ms=1e3 * middle("decode_s"),
        import_s=middle("import_s"),
        load_s=middle("load_s"),
        first_token_s=middle("first_token_s"),
        anonymous_bytes=int(middle("anonymous_bytes")),
        mapped_bytes=int(middle("mapped_bytes")),
        peak_bytes=int(middle("peak_bytes")),
        next_token=rounds[0]["next_token"],
        weight_bytes_a_token=bytes_read_a_token(weight_tensors(source)) if contender.is_ours else None,
        versions=rounds[0]["versions"],
    )


def as_json(
    arguments: argparse.Namespace,
    machine: str,
    versions: dict[str, str],
    bandwidth: Bandwidth,
    reports: list[ClassReport],
) -> dict[str, Any]:
    """Return every figure."""
    return {
        "shape": arguments.shape,
        "machine": machine,
        "versions": versions,
        "rounds": arguments.rounds,
        "read_bandwidth": asdict(bandwidth),
        "classes": [asdict(report) for report in reports],
    }


if __name__ == "__main__":
    sys.exit(main())
