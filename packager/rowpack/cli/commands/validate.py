"""``rowpack validate``: is a bundle what it says it is."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from rowpack.cli.arguments import add_json_option, add_progress_option
from rowpack.cli.command import Command
from rowpack.cli.console import Console, problem_lines
from rowpack.cli.exit_codes import DONE, REFUSED
from rowpack.cli.text_table import count_of
from rowpack.units import format_bytes

if TYPE_CHECKING:
    from rowpack_loaders import Report


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument(
        "--header-only",
        action="store_true",
        help="check header, manifest and cross-references, without reading the sections",
    )
    add_progress_option(parser)
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Validate each bundle; refused when one of them is invalid, after all were looked at."""
    from rowpack_loaders import validate

    exit_code = DONE
    for path in arguments.bundles:
        with console.progress(arguments.progress) as progress, progress.stage("validate", str(path)) as stage:
            report = validate(path, header_only=arguments.header_only, progress=stage.reach)
        if console.as_json:
            console.json_result(report.as_json())
        else:
            console.result(report_text(report))
        if not report.valid:
            exit_code = REFUSED
    return exit_code


def report_text(report: Report) -> str:
    """Return the verdict and one block for each error and warning."""
    checked = report.checked
    scope = f"{count_of(checked.rules, 'rule')}, {format_bytes(checked.digested_bytes)} of sections digested"
    lines = [f"{report.path}: {'valid' if report.valid else 'INVALID'} ({scope})"]
    for kind, problems in (("error", report.errors), ("warning", report.warnings)):
        for problem in problems:
            first, *facts = problem_lines(problem)
            lines += [f"  {kind}: {first}", *(f"  {fact}" for fact in facts)]
    return "\n".join(lines)


COMMAND = Command(
    "validate",
    "check a bundle's structure, schema, digests and cross-references",
    add_arguments,
    run,
    notes="With --json: one object a bundle and line. Exit code 0 when all are valid, 1 when one is not.",
)
