"""``rowpack eval``: exact-match continuation accuracy on a task file."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rowpack.cli.arguments import add_json_option
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("task", type=Path, metavar="TASK.jsonl")
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Count the examples whose continuation is exactly the expected one."""
    from rowpack_loaders.evaluation import evaluate

    report = evaluate(arguments.bundle, arguments.task)
    if console.as_json:
        console.json_result(report.as_json())
    return DONE


COMMAND = Command("eval", "measure exact-match continuation accuracy", add_arguments, run)
