"""``rowpack demo``: from checkpoint to text in one command."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from rowpack.cli.arguments import add_json_option, add_progress_option
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE
from rowpack.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rowpack.demo import DemoReport

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
        console.result(report_text(report))
    return DONE


def report_text(report: DemoReport) -> str:
    """Return the verses, the times, and what to do next with the bundle."""
    verses = "\n".join(verse.prompt + verse.text for verse in report.verses)
    return f"""\
{verses}

prefill of {report.prompt_tokens} tokens: {report.chunked_ms:.1f} ms in chunks, \
{report.token_loop_ms:.1f} ms one by one ({report.speedup:.1f} times as fast)
decode: {report.decode_ms_per_token:.2f} ms a token
bundle: {report.path} ({format_bytes(report.file_bytes)}, built in {format_seconds(report.build_s)})

next: rowpack inspect {report.path}
      rowpack run {report.path} --prompt "Mt5:3 Blessed are" """.rstrip()


COMMAND = Command("demo", "build the small model in the project and generate text with it", add_arguments, run)
