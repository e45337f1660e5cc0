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
    parser.add_argument(
        "--catalog-entry",
        action="store_true",
        help="print what a catalog of bundles needs, as JSON of schema/catalog_entry.schema.json",
    )
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Print what the bundle says of itself; only its header, manifest and trailer are read."""
    from rowpack.cli.inspection import Inspection
    from rowpack_loaders import open_bundle

    with open_bundle(arguments.bundle) as bundle:
        if arguments.catalog_entry:
            from rowpack_loaders.catalog_entry import catalog_entry

            console.json_result(catalog_entry(bundle))
            return DONE
        inspection = Inspection(bundle)
        if console.as_json:
            console.json_result(inspection.as_json())
        else:
            console.result(inspection.text())
    return DONE


COMMAND = Command("inspect", "show what is in a bundle, from its header and manifest", add_arguments, run)
