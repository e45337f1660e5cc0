"""``rowpack eval``: exact-match continuation accuracy on a task file."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rowpack.cli.arguments import add_json_option, add_progress_option, whole_number
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE
from rowpack.cli.loading import add_runtime_option, load_bundle
from rowpack.cli.text_table import count_of

NOTES = """\
A task has one example a line: {"context": TEXT, "target": TEXT}, or token ids as "context_ids" and
"target_ids". An example counts when the model's greedy continuation is exactly its target.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("task", type=Path, metavar="TASK.jsonl")
    add_runtime_option(parser)
    parser.add_argument("--limit", type=whole_number(1), metavar="N", help="score the first N examples only")
    parser.add_argument("--prefill", choices=("auto", "chunked", "token-loop"), default="auto")
    add_progress_option(parser)
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Count the examples whose continuation is exactly the expected one."""
    from rowpack_loaders.evaluation import evaluate

    with (
        load_bundle(arguments) as decoder,
        console.progress(arguments.progress) as progress,
        progress.stage("evaluation") as stage,
    ):
        report = evaluate(
            decoder,
            arguments.task,
            prefill=arguments.prefill,
            limit=arguments.limit,
            on_example=lambda done: stage.describe(count_of(done, "example")),
        )
    if console.as_json:
        console.json_result(report.as_json())
    else:
        examples = count_of(report.examples, "example")
        console.result(f"{report.task}: {report.correct} of {examples} right, {report.accuracy:.4f}")
    return DONE


COMMAND = Command("eval", "measure exact-match continuation accuracy", add_arguments, run, notes=NOTES)
