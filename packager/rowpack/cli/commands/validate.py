"""``rowpack validate``: is a bundle what it says it is."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from rowpack.cli.arguments import add_json_option, add_progress_option, argument_errors
from rowpack.cli.command import Command
from rowpack.cli.console import Console, problem_lines
from rowpack.cli.exit_codes import DONE, REFUSED
from rowpack.cli.path_patterns import expand_patterns
from rowpack.cli.text_table import count_of
from rowpack.units import format_bytes
from rowpack_loaders.errors import RowpackError

if TYPE_CHECKING:
    from rowpack_loaders import Report

TEXT = "text"
REPORT_NAMES = (TEXT, "markdown", "junit")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "bundles", type=Path, nargs="+", metavar="BUNDLE", help="a file, or a pattern such as 'models/**/*.bundle'"
    )
    parser.add_argument(
        "--header-only",
        action="store_true",
        help="check header, manifest and cross-references from the first MiB, without reading the sections",
    )
    parser.add_argument(
        "--report",
        choices=REPORT_NAMES,
        default=TEXT,
        help="print one Markdown page or one JUnit XML document over all bundles, for CI",
    )
    add_progress_option(parser)
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Validate each bundle; refused when one of them is invalid, after all were looked at."""
    from rowpack_loaders import validate

    with argument_errors():
        paths = expand_patterns(arguments.bundles)
        if arguments.json and arguments.report != TEXT:
            raise RowpackError(
                "unusable_arguments",
                "--json and --report each ask for a form of the result",
                where="--report",
                found=f"--json and --report {arguments.report}",
                expected="one of them",
                remedy="Leave one of them out",
            )
    reports: list[Report] = []
    for path in paths:
        with console.progress(arguments.progress) as progress, progress.stage("validate", str(path)) as stage:
            report = validate(path, header_only=arguments.header_only, progress=stage.reach)
        if console.as_json:
            console.json_result(report.as_json())
        elif arguments.report == TEXT:
            console.result(report_text(report))
        reports.append(report)
    if arguments.report != TEXT:
        from rowpack_loaders.validation.report_formats import REPORT_FORMATS

        console.result(REPORT_FORMATS[arguments.report](reports))
    return DONE if all(report.valid for report in reports) else REFUSED


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
    notes="With --json: one object a bundle and line. Exit code 0 when all are valid, 1 when one is not, 2 when the "
    "arguments cannot be used or a pattern matches nothing.",
)
