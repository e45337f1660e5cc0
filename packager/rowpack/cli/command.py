"""What a command is: a name, one line of help, its arguments, and the function that does it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass

from rowpack.cli.console import Console


@dataclass(frozen=True)
class Command:
    """Declare one command; ``run`` gets the parsed arguments and returns the exit code.

    ``run`` imports what it needs when it is called, so that the command line itself starts at once.
    """

    name: str
    summary: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace, Console], int]
    notes: str = ""
    """Text below the arguments in the command's help."""
