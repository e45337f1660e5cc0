"""Measure how long every command takes to start: its help, and the smallest run that does its work."""

from __future__ import annotations

import contextlib
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
OLDER_BUNDLE = ROOT / "schema" / "vectors" / "good" / "older" / "format-1-rwkv-single.bundle"
BARE = "python -c pass"
WRITTEN = ("again.bundle", "again.json", "new.bundle", "graphs", "random", "demonstrated.bundle")
"""What the runs of a round write; it is removed before the next command."""
SHAPE_OF_ONE_LAYER = {
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


@dataclass(frozen=True)
class StartUp:
    """One command: seconds of ``--help`` and of its smallest run, and what that was; None where it has none."""

    command: str
    help_s: Summary
    run_s: Summary | None
    run: str


def smallest_runs(folder: Path) -> dict[str, list[str | Path]]:
    """Return the arguments of the smallest real run of each command, on what :func:`prepare` put into ``folder``."""
    bundle, task, shape = folder / "demo.bundle", folder / "task.jsonl", folder / "shape.json"
    quiet: list[str | Path] = ["--progress", "none"]
    return {
        "build": [DEMO_CHECKPOINT, "-o", folder / "again.bundle", "--no-verify", *quiet],
        "inspect": [bundle],
        "diff": [bundle, bundle],
        "validate": ["--header-only", bundle, *quiet],
        "migrate": [OLDER_BUNDLE, "-o", folder / "new.bundle", *quiet],
        "check": ["--here", bundle],
        "digest": [bundle, *quiet],
        "sign": ["--key", folder / "key.pem", "--signature", folder / "again.json", bundle, *quiet],
        "verify-signature": ["--key", folder / "key.pub.pem", bundle, *quiet],
        "run": ["--prompt-ids", "1", "--max-new-tokens", "1", bundle],
        "selftest": [bundle],
        "bench": ["--prompt-tokens", "1", "--new-tokens", "1", "--repeats", "1", bundle, *quiet],
        "eval": [bundle, task, *quiet],
        "export-onnx": [DEMO_CHECKPOINT, "-o", folder / "graphs", *quiet],
        "synth": [shape, "-o", folder / "random", *quiet],
        "demo": ["-o", folder / "demonstrated.bundle", *quiet],
    }


def prepare(folder: Path) -> None:
    """Build the demo bundle and sign it, and write a task of one item and the config of a model of one layer.

    Without ``openssl`` there is no key, so that what signs is left out with that reason.
    """
    rowpack: list[str | Path] = [sys.executable, "-m", "rowpack"]
    bundle, key, public_key = folder / "demo.bundle", folder / "key.pem", folder / "key.pub.pem"
    run_measured([*rowpack, "build", DEMO_CHECKPOINT, "-o", bundle, "--progress", "none"])
    with contextlib.suppress(CommandError):
        run_measured(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key])
        run_measured(["openssl", "pkey", "-in", key, "-pubout", "-out", public_key])
        run_measured([*rowpack, "sign", "--key", key, bundle, "--progress", "none"])
    (folder / "task.jsonl").write_text('{"context": "In the", "target": " beginning"}\n', encoding="utf-8")
    (folder / "shape.json").write_text(json.dumps(SHAPE_OF_ONE_LAYER), encoding="utf-8")


def measure_start_up(commands: Sequence[str], folder: Path, rounds: int) -> tuple[list[StartUp], dict[str, str]]:
    """Start everything in turn, ``rounds`` times; return the figures, and the runs that failed with their reasons."""
    prepare(folder)
    runs, absent = smallest_runs(folder), {}
    helps: dict[str, list[float]] = {name: [] for name in (BARE, *commands)}
    works: dict[str, list[float]] = {}
    for number in range(rounds):
        print(f"start-up: round {number + 1} of {rounds}", file=sys.stderr)
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
    """Remove what the last command wrote."""
    for name in WRITTEN:
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
