"""``rowpack selftest``: does this machine compute what the bundle's reference computed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from rowpack.cli.arguments import add_json_option
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE, REFUSED
from rowpack.cli.loading import add_runtime_option, load_bundle
from rowpack.cli.text_table import count_of, format_table

if TYPE_CHECKING:
    from rowpack_loaders.selftest import SelfTestReport


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    add_runtime_option(parser)
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Replay the golden vectors; refused when one of them differs by more than its tolerance."""
    from rowpack_loaders.selftest import run_self_test

    with load_bundle(arguments) as decoder:
        report = run_self_test(decoder)
    if console.as_json:
        console.json_result(report.as_json())
    else:
        console.result(report_text(report))
    return DONE if report.passed else REFUSED


def report_text(report: SelfTestReport) -> str:
    """Return one line a case and mode, and the verdict."""
    rows = [("case", "prompt tokens", "prefill", "new tokens", "logits off by", "")]
    for result in report.results:
        equal = "equal" if result.tokens_equal else f"differ from new token {result.first_difference}"
        if not result.tokens_equal and result.near_tie:
            equal += " (a tie within the tolerance)"
        off = f"{result.relative_logit_error:.1e}"
        verdict = "passed" if result.passed else "FAILED"
        rows.append((result.kind, str(result.prompt_tokens), result.mode, equal, off, verdict))
    skipped = f", {count_of(report.skipped_cases, 'case')} too long for it" if report.skipped_cases else ""
    passed = sum(result.passed for result in report.results)
    return (
        f"{report.bundle} on {report.backend} {report.backend_version}, against {report.reference}, "
        f"tolerance {report.relative_tolerance:g}\n"
        f"{format_table(rows, right_aligned=(1,))}\n"
        f"{'passed' if report.passed else 'FAILED'}: {passed} of {len(report.results)}{skipped}"
    )


COMMAND = Command("selftest", "replay the golden vectors in a bundle on this machine", add_arguments, run)
