"""The human form of a build report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowpack.cli.layout_words import layout_in_words
from rowpack.cli.text_table import format_facts
from rowpack.units import format_bytes, format_seconds
from rowpack_loaders.manifest_fields import Fields

if TYPE_CHECKING:
    from rowpack import BuildReport


def build_summary(report: BuildReport) -> str:
    """Return path, size, layout with its reason, digests and the time taken."""
    decision = Fields(report.layout_decision, "", "layout_decision")
    return format_facts(
        [
            ("bundle", f"{report.path} ({format_bytes(report.file_bytes)})"),
            ("layout", layout_in_words(decision)),
            ("content digest", report.content_digest),
            ("file digest", report.file_digest),
            ("built in", format_seconds(sum(stage.elapsed_s for stage in report.stages))),
        ]
    )
