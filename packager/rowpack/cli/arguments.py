"""Converters for arguments that several commands share, and the exception for unusable ones."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from rowpack_loaders.errors import RowpackError

PROGRESS_MODES = ("auto", "live", "lines", "jsonl", "none")


class UnusableArgumentsError(Exception):
    """Wrap the error that an argument caused before any work began; the process ends with exit code 2."""

    def __init__(self, error: RowpackError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def argument_errors() -> Iterator[None]:
    """Let every ``RowpackError`` of the body count as unusable arguments."""
    try:
        yield
    except RowpackError as error:
        raise UnusableArgumentsError(error) from error


class ArgumentParser(argparse.ArgumentParser):
    """Report a bad line as an error with a code instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise ``RowpackError`` with code ``unusable_arguments``."""
        raise RowpackError(
            "unusable_arguments",
            message,
            remedy=f"`{self.prog} --help` lists the arguments and what they take",
        )


def whole_number(least: int) -> Callable[[str], int]:
    """Return a converter for whole numbers from ``least``."""

    def convert(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number, {least} or more")
        return int(text)

    return convert


def compute_capabilities(text: str) -> tuple[str, ...]:
    """Read ``8.6,8.9`` as CUDA compute capabilities; which there are is for the compiler to say."""
    parts = tuple(part.strip() for part in text.split(","))
    if not all(re.fullmatch(r"[1-9]\d?\.\d", part) for part in parts):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected compute capabilities such as 8.6,8.9,12.0")
    return parts


def token_ids(text: str) -> list[int]:
    """Read ``1,2,3`` as token ids; whether they exist is for the bundle to say."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected token ids such as 5,6,7")
    return [int(part) for part in parts]


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def add_progress_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--progress MODE``."""
    parser.add_argument(
        "--progress",
        choices=PROGRESS_MODES,
        default="auto",
        help="how stages are shown on stderr: a live view on a terminal, else one line a stage (auto); "
        "jsonl is one JSON object a line for machines; none shows warnings alone",
    )
