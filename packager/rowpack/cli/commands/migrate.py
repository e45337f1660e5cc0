"""``rowpack migrate``: a bundle from before the manifest becomes one of today."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from rowpack.cli.arguments import add_json_option, add_progress_option
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE
from rowpack.cli.text_table import format_facts
from rowpack.units import format_bytes

if TYPE_CHECKING:
    from rowpack.bundle.migration import MigrationReport


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("old", type=Path, metavar="OLD", help="a bundle from before the manifest")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="NEW", help="the bundle to write")
    parser.add_argument("--model-id", metavar="ID", help="name of the model in the manifest, where OLD has none")
    parser.add_argument("--revision", metavar="REVISION", help="revision of the checkpoint, for the manifest")
    parser.add_argument(
        "--prefill-rows",
        type=int,
        metavar="N",
        help="most rows that OLD's prefill engine takes (assumed: 64, as engines of its time were built)",
    )
    add_progress_option(parser)
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Convert the bundle and print what could not be known."""
    from rowpack.bundle.migration import migrate

    with console.progress(arguments.progress) as progress:
        report = migrate(
            arguments.old,
            arguments.output,
            model_id=arguments.model_id,
            revision=arguments.revision,
            prefill_rows=arguments.prefill_rows,
            progress=progress,
        )
    if console.as_json:
        console.json_result(report.as_json())
    else:
        console.result(report_text(report))
    return DONE


def report_text(report: MigrationReport) -> str:
    """Return what was made of what, and the places of the manifest that stay open."""
    from rowpack.cli.inspection import FORMS_IN_WORDS

    renamed = ", ".join(f"{old} → {new}" for old, new in report.renamed_sections.items())
    facts = [
        ("bundle", f"{report.path} ({format_bytes(report.file_bytes)})"),
        ("converted from", FORMS_IN_WORDS[report.form]),
        ("renamed", renamed or "nothing"),
        ("content digest", report.content_digest),
        ("file digest", report.file_digest),
    ]
    lines = [format_facts(facts)]
    for title, pointers in (
        ("not known, because the older bundle does not say", report.unknown),
        ("assumed, from what loaders of its time bound to the engines", report.assumed),
    ):
        if pointers:
            lines += ["", f"{title}:", *(f"  {pointer}" for pointer in pointers)]
    return "\n".join(lines)


COMMAND = Command(
    "migrate",
    "convert a bundle from before the manifest; the older file is left as it is",
    add_arguments,
    run,
)
