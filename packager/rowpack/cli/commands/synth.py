"""``rowpack synth``: a checkpoint of a published size with random weights, to measure with."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rowpack.cli.arguments import add_json_option, add_progress_option
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    add_progress_option(parser)
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Write the checkpoint."""
    from rowpack.synthesis import synthesize

    synthesize(arguments.output)
    return DONE


COMMAND = Command(
    "synth", "write a checkpoint with random weights and the shape of a published one", add_arguments, run
)
