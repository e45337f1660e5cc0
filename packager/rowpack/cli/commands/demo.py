"""``rowpack demo``: from checkpoint to text in one command."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rowpack.cli.arguments import add_json_option, add_progress_option
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE

DEFAULT_OUTPUT = Path("rowpack-demo.bundle")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=DEFAULT_OUTPUT,
        metavar="PATH",
        help=f"where the bundle is written (default: {DEFAULT_OUTPUT}); a bundle that is there is replaced",
    )
    add_progress_option(parser)
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Build the bundle, then print verses, times and the path."""
    from rowpack.demo import run_demo

    with console.progress(arguments.progress) as progress:
        report = run_demo(arguments.output, progress)
    if console.as_json:
        console.json_result(report.as_json())
    else:
        console.result(report.text())
    return DONE


COMMAND = Command(
    "demo", "build the small model in the project and generate text with it", add_arguments, run
)
