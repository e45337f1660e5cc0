"""``rowpack inspect``: what is in a bundle."""

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
    """Print what the bundle says of itself; only its header, manifest and trailer are read."""
    from rowpack.cli.inspection import Inspection
    from rowpack_loaders import open_bundle

    with open_bundle(arguments.bundle) as bundle:
        inspection = Inspection(bundle)
        if console.as_json:
            console.json_result(inspection.as_json())
        else:
            console.result(inspection.text())
    return DONE


COMMAND = Command("inspect", "show what is in a bundle, from its header and manifest", add_arguments, run)
