"""``rowpack diff``: what two bundles do not have in common, in words."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from rowpack.cli.arguments import add_json_option, whole_number
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE, REFUSED
from rowpack.cli.text_table import count_of

if TYPE_CHECKING:
    from rowpack.comparison import Comparison

MOST_LISTED = 12

TITLES = {
    "producer": "producer: what wrote the bundle",
    "model": "model: what it was made from",
    "decision": "decision: single or split, and why",
    "engines": "engines: how they were made and what they take",
    "graph": "graph: operators, nodes and constants",
    "states": "states: what a sequence carries",
    "weights": "weights: tensors and their values",
    "limits": "limits",
    "tokens": "tokens: special ids",
    "tokenizer": "tokenizer: text to ids",
    "self_test": "self-test: golden vectors",
    "sections": "sections",
    "provenance": "provenance: how and when it was built",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("first", type=Path, metavar="A")
    parser.add_argument("second", type=Path, metavar="B")
    parser.add_argument(
        "--most",
        type=whole_number(1),
        default=MOST_LISTED,
        metavar="N",
        help=f"differences listed of each part (default: {MOST_LISTED}); --json lists all",
    )
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Print the differences; exit code 1 when there are any."""
    from rowpack.comparison import compare_bundles

    comparison = compare_bundles(arguments.first, arguments.second)
    if console.as_json:
        console.json_result(comparison.as_json())
    else:
        console.result(comparison_text(comparison, arguments.most))
    return REFUSED if comparison.differences else DONE


def comparison_text(comparison: Comparison, most: int) -> str:
    """Return the verdict in one line, then each part that differs."""
    if not comparison.differences:
        return "the same: manifest, sections and provenance"
    digests = "the same content digest" if comparison.same_content else "another content digest"
    lines = [f"different: {', '.join(part.replace('_', '-') for part in comparison.parts)} ({digests})"]
    for part in comparison.parts:
        found = comparison.of(part)
        lines += ["", f"{TITLES[part]} ({count_of(len(found), 'difference')})"]
        if part == "decision":
            lines += [f"  {name}: {decision}" for name, decision in _decisions(comparison)]
        lines += [f"  {difference}" for difference in found[:most]]
        if len(found) > most:
            lines.append(f"  … and {len(found) - most:,} more (--most N, or --json)")
    return "\n".join(lines)


def _decisions(comparison: Comparison) -> list[tuple[str, str]]:
    """Return both decisions in words."""
    from rowpack.cli.layout_words import layout_in_words
    from rowpack_loaders.manifest_fields import Fields

    sides = (("first", comparison.first), ("second", comparison.second))
    return [
        (name, layout_in_words(Fields(side["layout_decision"], "", "layout_decision")))
        for name, side in sides
        if side["layout_decision"] is not None
    ]


COMMAND = Command(
    "diff",
    "say what differs between two bundles: weights, graph, tokenizer, decision, producer …",
    add_arguments,
    run,
    notes="Exit code 0 when they are the same, 1 when they differ or one cannot be read.",
)
