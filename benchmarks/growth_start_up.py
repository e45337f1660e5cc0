"""Measure how long every command takes to start: its help, and the smallest run that does its work."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from artifacts import remove_path
from markdown_table import markdown_table
from measured_process import CommandError, run_measured
from rounds import Summary, summarize

ROOT = Path(__file__).resolve().parents[1]
DEMO_CHECKPOINT = ROOT / "packager" / "rowpack" / "demo_checkpoint"
BARE = "python -c pass"


@dataclass(frozen=True)
class StartUp:
    """One command: seconds of ``--help`` and of its smallest run, and what that was; None where it has none."""

    command: str
    help_s: Summary
    run_s: Summary | None
    run: str


def smallest_runs(folder: Path) -> dict[str, list[str | Path]]:
    """Return the arguments of the smallest real run of each command, on a demo bundle in ``folder``.

    Signatures need a key made by another program and ``migrate`` a bundle from before the manifest: they have none.
    """
    bundle, task, shape = folder / "demo.bundle", folder / "task.jsonl", folder / "shape.json"
    quiet: list[str | Path] = ["--progress", "none"]
    return {
        "build": [DEMO_CHECKPOINT, "-o", folder / "again.bundle", "--no-verify", *quiet],
        "inspect": [bundle],
        "diff": [bundle, bundle],
        "validate": ["--header-only", bundle, *quiet],
        "check": ["--here", bundle],
        "digest": [bundle, *quiet],
        "run": ["--prompt-ids", "1", "--max-new-tokens", "1", bundle],
        "selftest": [bundle],
        "bench": ["--prompt-tokens", "1", "--new-tokens", "1", "--repeats", "1", bundle, *quiet],
        "eval": [bundle, task, *quiet],
        "export-onnx": [DEMO_CHECKPOINT, "-o", folder / "graphs", *quiet],
        "synth": [shape, "-o", folder / "random", *quiet],
    }


def prepare(folder: Path) -> None:
    """Build the demo bundle, and write a task of one item and the config of a model of one layer."""
    command: list[str | Path] = [sys.executable, "-m", "rowpack", "build", DEMO_CHECKPOINT, "--progress", "none"]
    run_measured([*command, "-o", folder / "demo.bundle"])
    (folder / "task.jsonl").write_text('{"context": "In the", "target": " beginning"}\n', encoding="utf-8")
    shape = {
        "architectures": ["RwkvForCausalLM"],
        "model_type": "rwkv",
        "attention_hidden_size": 64,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_size": 64,
        "intermediate_size": 64,
        "layer_norm_epsilon": 1e-05,
        "num_hidden_layers": 1,
        "rescale_every": 6,
        "vocab_size": 64,
    }
    (folder / "shape.json").write_text(json.dumps(shape), encoding="utf-8")


def measure_start_up(commands: Sequence[str], folder: Path, rounds: int) -> tuple[list[StartUp], dict[str, str]]:
    """Start everything in turn, ``rounds`` times; return the figures, and the runs that failed with their reasons."""
    prepare(folder)
    runs, absent = smallest_runs(folder), {}
    helps: dict[str, list[float]] = {name: [] for name in (BARE, *commands)}
    works: dict[str, list[float]] = {}
    for _ in range(rounds):
        helps[BARE].append(run_measured([sys.executable, "-c", "pass"]).seconds)
        for name in commands:
            rowpack = [sys.executable, "-m", "rowpack", name]
            helps[name].append(run_measured([*rowpack, "--help"]).seconds)
            if name not in runs or name in absent:
                continue
            clear(folder)
            try:
                works.setdefault(name, []).append(run_measured([*rowpack, *runs[name]]).seconds)
            except CommandError as error:
                absent[name] = str(error)
    return [
        StartUp(name, summarize(taken), summarize(works[name]) if name in works else None, words_of(runs.get(name)))
        for name, taken in helps.items()
    ], absent


def clear(folder: Path) -> None:
    """Remove what the last round's commands wrote."""
    for name in ("again.bundle", "graphs", "random"):
        remove_path(folder / name)


def words_of(arguments: Sequence[str | Path] | None) -> str:
    """Return arguments as a person would type them, folders left out."""
    return " ".join(word if isinstance(word, str) else word.name for word in arguments or ())


def start_up_table(figures: Sequence[StartUp]) -> str:
    """Return the figures as a table in ms."""
    rows = [
        [
            f"`{entry.command}`",
            f"`{entry.run}`" if entry.run_s else "",
            f"{1e3 * entry.help_s.median:.0f} ({1e3 * entry.help_s.least:.0f} to {1e3 * entry.help_s.most:.0f})",
            f"{1e3 * entry.run_s.median:.0f} ({1e3 * entry.run_s.least:.0f} to {1e3 * entry.run_s.most:.0f})"
            if entry.run_s
            else "",
        ]
        for entry in figures
    ]
    return markdown_table(["command", "smallest run", "`--help` ms", "run ms"], rows, text_columns=2)
