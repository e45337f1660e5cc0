"""``rowpack validate``: is a bundle what it says it is."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rowpack.cli.arguments import add_json_option
from rowpack.cli.command import Command
from rowpack.cli.console import Console, problem_lines
from rowpack.cli.exit_codes import DONE, REFUSED


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument(
        "--header-only",
        action="store_true",
        help="check header, manifest and cross-references, without reading the sections",
    )
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Validate each bundle; refused when one of them has an error, whatever the others have."""
    from rowpack_loaders import validate

    exit_code = DONE
    reports = []
    for path in arguments.bundles:
        report = validate(path, header_only=arguments.header_only)
        reports.append((path, report))
        if not report.valid:
            exit_code = REFUSED
    for path, report in reports:
        if console.as_json:
            # One file gives the object itself, several one object a line, told apart by their path.
            console.json_result({**report.as_json(), "path": str(path)})
            continue
        console.result(f"{path}: {'valid' if report.valid else 'invalid'}")
        for kind, problems in (("error", report.errors), ("warning", report.warnings)):
            for problem in problems:
                first, *facts = problem_lines(problem)
                console.result("\n".join([f"  {kind}: {first}", *(f"  {fact}" for fact in facts)]))
    return exit_code


COMMAND = Command(
    "validate",
    "check a bundle's structure, schema, digests and cross-references",
    add_arguments,
    run,
    notes="With --json: one object a bundle and line. Exit code 0 when all are valid, 1 when one is not.",
)
