"""The argument parser of the whole command line."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter

from rowpack.cli.arguments import ArgumentParser
from rowpack.cli.commands import COMMANDS
from rowpack_loaders.version import __version__

EPILOG = """\
Results go to stdout, progress and errors to stderr. Exit codes: 0 done, 1 refused, invalid or failed,
2 unusable arguments.
"""


def make_parser() -> ArgumentParser:
    """Return the parser; a parsed line carries its command's function as ``run``."""
    parser = ArgumentParser(
        prog="rowpack",
        description="Pack recurrent and hybrid language models into one self-describing bundle, and run it.",
        epilog=EPILOG,
        allow_abbrev=False,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rowpack {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=command.summary,
            epilog=command.notes,
            allow_abbrev=False,
            formatter_class=RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser
