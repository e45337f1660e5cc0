"""``rowpack selftest``: does this machine compute what the bundle's reference computed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rowpack.cli.arguments import add_json_option
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE, REFUSED


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Replay the golden vectors; refused when one of them differs by more than its tolerance."""
    from rowpack_loaders.selftest import run_selftest

    report = run_selftest(arguments.bundle)
    if console.as_json:
        console.json_result(report.as_json())
    return DONE if report.passed else REFUSED


COMMAND = Command("selftest", "replay the golden vectors in a bundle on this machine", add_arguments, run)
