"""The human form of a build report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rowpack.cli.layout_words import layout_in_words
from rowpack.cli.text_table import format_facts
from rowpack.units import format_bytes, format_seconds
from rowpack_loaders.manifest_fields import Fields

if TYPE_CHECKING:
    from rowpack import BuildReport


_ENGINES_RAN = "the engines ran here and agree with the exported model"
_SOURCES_RAN = "the graphs that the engines were compiled from ran here; the engines themselves run on their target"
_GRAPHS_RAN = "the engines' graphs ran here, by operators that this processor has; the engines run on one with theirs"


def build_summary(report: BuildReport) -> str:
    """Return path, size, layout with its reason, digests and the time taken."""
    decision = Fields(report.layout_decision, "", "layout_decision")
    return format_facts(
        [
            ("bundle", f"{report.path} ({format_bytes(report.file_bytes)})"),
            ("layout", layout_in_words(decision)),
            ("device memory", f"{format_bytes(report.memory.pair_bytes)} with one full sequence"),
            ("build memory", _host_memory(report)),
            *((f"{role} engine", _compiled(took)) for role, took in report.engine_builds.items()),
            *([("verified", _verified(report))] if report.executed else []),
            ("content digest", report.content_digest),
            ("file digest", report.file_digest),
            ("built in", format_seconds(sum(stage.elapsed_s for stage in report.stages))),
        ]
    )


def _verified(report: BuildReport) -> str:
    """Return what the smoke run executed, in words."""
    if report.executed == "engines":
        return _ENGINES_RAN
    return _SOURCES_RAN if report.engine_builds else _GRAPHS_RAN


def _host_memory(report: BuildReport) -> str:
    """Return what the build took of this machine's memory, and what was expected."""
    used = report.host_memory
    peak = "unknown" if used.peak_anonymous_bytes is None else format_bytes(used.peak_anonymous_bytes)
    return f"{peak} ({format_bytes(used.need.byte_count)} were expected, for {used.need.stage})"


def _compiled(took: Mapping[str, object]) -> str:
    """Return size, time and memory of one compiled engine."""
    fields = Fields(dict(took), "", "engine_builds")
    size, peak = (format_bytes(fields.integer(name)) for name in ("engine_bytes", "peak_resident_bytes"))
    estimate = format_bytes(fields.integer("estimated_peak_bytes"))
    seconds = format_seconds(float(fields.number("seconds")))
    return f"{size}, compiled in {seconds} with at most {peak} of memory ({estimate} were expected)"
