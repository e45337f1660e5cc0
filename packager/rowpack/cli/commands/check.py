"""``rowpack check``: can a machine run a bundle."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from rowpack.cli.arguments import add_json_option, argument_errors
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE, REFUSED
from rowpack.cli.text_table import format_facts

if TYPE_CHECKING:
    from rowpack_loaders.compatibility import CompatibilityReport
    from rowpack_loaders.errors import Problem


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the file, or its first MiB")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--target",
        metavar="KEY=VALUE,…",
        help="the machine: gpu (a published name) or sm, memory, os, arch, cpu (instruction sets, joined by +), "
        "driver, and versions: ort, openvino, trt, trt_rtx",
    )
    which.add_argument("--here", action="store_true", help="this machine, with what is installed on it")
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Print the answer; refused when something speaks against the bundle."""
    from rowpack_loaders.compatibility import check_bundle, target_here

    if arguments.here:
        target = target_here()
    else:
        from rowpack.cli.target_argument import parse_target

        with argument_errors():
            target = parse_target(arguments.target)
    report = check_bundle(arguments.bundle, target, ask_library=arguments.here)
    if console.as_json:
        console.json_result(report.as_json())
    else:
        console.result(report_text(report))
    return DONE if report.compatible else REFUSED


def report_text(report: CompatibilityReport) -> str:
    """Return the verdict, each reason with what was found and what is needed, and what was not checked."""
    verdict = "compatible" if report.compatible else "NOT compatible"
    if report.compatible and report.unsaid:
        verdict = "compatible, as far as the target is described"
    lines = [f"{report.path}: {verdict}"]
    for problem in report.reasons:
        lines += _problem_lines("reason", problem)
    for problem in report.notes:
        lines += _problem_lines("note", problem)
    for entry in report.unsaid:
        lines.append(f"  not checked: {entry.needed} (say {entry.option}=…)")
    lines += [f"  {answer}" for answer in report.library_answers]
    return "\n".join(lines)


def _problem_lines(kind: str, problem: Problem) -> list[str]:
    facts = [("found", problem.found), ("needed", problem.expected), ("remedy", problem.remedy)]
    return [
        f"  {kind}: {problem.message} [{problem.code}]",
        format_facts([(name, value) for name, value in facts if value is not None], indent=4),
    ]


COMMAND = Command(
    "check",
    "tell whether a machine can run a bundle, from the first MiB of the file",
    add_arguments,
    run,
    notes="Example: rowpack check x.bundle --target sm=8.9,trt_rtx=1.7.1.116,os=linux,arch=x86_64,memory=24GiB\n"
    "Exit code 0 when nothing speaks against it, 1 when something does.",
)
