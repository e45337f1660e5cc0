"""Run one command and turn everything that can go wrong into text (or JSON) and an exit code."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence

from rowpack.cli.arguments import UnusableArgumentsError, argument_errors
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import BROKEN_PIPE, DONE, INTERRUPTED, REFUSED, UNUSABLE_ARGUMENTS
from rowpack.cli.parser import make_parser
from rowpack_loaders.errors import RowpackError

TRACEBACK_VARIABLE = "ROWPACK_TRACEBACK"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's) and return its exit code.

    Results go to stdout, progress and errors for people to stderr. With ``--json`` an error is a JSON object
    ``{"error": {"code", "message", "where", "found", "expected", "remedy", "problems"}}`` on stdout.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files need not be text; stderr escapes what it cannot encode by itself.
        sys.stdout.reconfigure(errors="backslashreplace")
    console = Console(sys.stdout, sys.stderr, as_json="--json" in words)
    try:
        exit_code = _run(words, console)
        sys.stdout.flush()
        return exit_code
    except BrokenPipeError:
        # What is still buffered cannot be written; without this the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        console.say("interrupted")
        return INTERRUPTED


def _run(words: list[str], console: Console) -> int:
    try:
        with argument_errors():
            arguments = make_parser().parse_args(words)
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: console.say(f"warning: {message}")
            exit_code: int = arguments.run(arguments, console)
        return exit_code
    except SystemExit as stop:
        # argparse ends --help and --version this way.
        return stop.code if isinstance(stop.code, int) else DONE
    except BrokenPipeError:
        raise
    except UnusableArgumentsError as unusable:
        _show_traceback_if_asked()
        console.error(unusable.error)
        return UNUSABLE_ARGUMENTS
    except Exception as error:
        _show_traceback_if_asked()
        console.error(explain(error))
        return REFUSED


def explain(error: Exception) -> RowpackError:
    """Return ``error`` as a ``RowpackError``: itself, or what the system or a fault in rowpack amounts to."""
    if isinstance(error, RowpackError):
        return error
    if isinstance(error, MemoryError):
        return RowpackError(
            "out_of_memory",
            "the system gave no more memory",
            found=str(error) or "no memory left",
            expected="memory for the whole command",
            remedy="Free memory, or use a machine with more",
        )
    if isinstance(error, OSError) and error.strerror is not None:
        return RowpackError(
            "system_error",
            "the operating system refused a file operation",
            where=None if error.filename is None else str(error.filename),
            found=error.strerror,
            expected="an operation that succeeds",
            remedy="Check the path, its permissions and the free space",
        )
    return RowpackError(
        "unexpected_error",
        "this should not happen and is a fault of rowpack",
        found=f"{type(error).__name__}: {error}",
        expected="a result, or an error with a code of its own",
        remedy=f"Set {TRACEBACK_VARIABLE}=1 and run again to see where, and report it",
    )


def _show_traceback_if_asked() -> None:
    if os.environ.get(TRACEBACK_VARIABLE, "0") not in ("", "0"):
        import traceback

        traceback.print_exc()
