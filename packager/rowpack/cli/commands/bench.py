"""``rowpack bench``: how fast a bundle runs on this machine."""

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
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Time prefill and decode apart, chunked against token loop."""
    from rowpack_loaders.benchmark import run_benchmark

    report = run_benchmark(arguments.bundle)
    if console.as_json:
        console.json_result(report.as_json())
    return DONE


COMMAND = Command("bench", "time prefill and decode, chunked against token loop", add_arguments, run)
