"""Run the rules in layers over one bundle and gather every finding.

Each layer is one file of rules; a later layer runs only when the earlier ones left it something to work on. To
add checks, add a file of rules and a line to ``LAYERS``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rowpack_loaders.errors import Problem, RowpackError
from rowpack_loaders.validation import (
    container_rules,
    decision_rules,
    digest_rules,
    engine_rules,
    extent_rules,
    limit_rules,
    manifest_rules,
    onnx_rules,
    origin_rules,
    plan_rules,
    reference_rules,
    runtime_json_rules,
    runtime_state_rules,
    self_test_rules,
    state_rules,
    trailer_rules,
    weight_rules,
)
from rowpack_loaders.validation.report import Checked, Report
from rowpack_loaders.validation.subject import Progress, Rule, Subject, Warned

# A hostile file can break one rule a million times; this many findings of a rule tell what is wrong.
MOST_FINDINGS_PER_RULE = 100


def _always(subject: Subject) -> bool:
    return True


def _has_container(subject: Subject) -> bool:
    return subject.open_container is not None


def _has_manifest(subject: Subject) -> bool:
    return subject.parsed_manifest is not None and subject.schema_understood


@dataclass(frozen=True)
class Layer:
    """Rules that look at the same thing; ``reads_sections`` leaves it out of header-only checks."""

    name: str
    rules: tuple[Rule, ...]
    ready: Callable[[Subject], bool]
    reads_sections: bool = False


LAYERS = (
    Layer("file", container_rules.OPENING_RULES, _always),
    Layer("container", container_rules.RULES, _has_container),
    Layer("padding", container_rules.PADDING_RULES, _has_container, reads_sections=True),
    Layer("manifest", manifest_rules.RULES, _has_container),
    Layer("origin", origin_rules.RULES, _has_manifest),
    Layer("references", reference_rules.RULES, _has_manifest),
    Layer("engines", engine_rules.RULES, _has_manifest),
    Layer("decision", decision_rules.RULES, _has_manifest),
    Layer("states", state_rules.RULES, _has_manifest),
    Layer("limits", limit_rules.RULES, _has_manifest),
    Layer("runtime_json", runtime_json_rules.RULES + runtime_state_rules.RULES, _has_manifest),
    Layer("weights", weight_rules.RULES, _has_manifest, reads_sections=True),
    Layer("onnx", onnx_rules.RULES, _has_manifest, reads_sections=True),
    Layer("plans", plan_rules.RULES, _has_manifest, reads_sections=True),
    Layer("extents", extent_rules.RULES, _has_manifest, reads_sections=True),
    Layer("digests", digest_rules.RULES, _has_manifest, reads_sections=True),
    Layer("trailer", trailer_rules.RULES, _has_container, reads_sections=True),
    Layer("self_test", self_test_rules.RULES, _has_manifest, reads_sections=True),
    Layer("unchanged", container_rules.CLOSING_RULES, _has_container),
)


def validate(path: str | os.PathLike[str], *, header_only: bool = False, progress: Progress | None = None) -> Report:
    """Check the bundle at ``path`` against every rule of the format and return all findings together.

    ``header_only`` reads at most the first MiB: container, manifest and cross-references. ``progress`` is called with
    bytes done and bytes in all while sections are digested. Nothing in the file makes this raise; a file that
    is missing or unreadable is an error in the report.
    """
    started_s = time.perf_counter()
    subject = Subject(Path(path), header_only, progress)
    report = Report(subject.path, Checked("header_only" if header_only else "full"))
    try:
        for layer in LAYERS:
            if layer.ready(subject) and not (header_only and layer.reads_sections):
                _run_layer(layer, subject, report)
        if subject.open_container is not None:
            report.checked.sections = len(subject.container.sections)
            report.checked.file_size = subject.container.file_size
            report.checked.digested_bytes = sum(
                subject.container.sections[name].length_bytes for name in subject.section_sha256
            )
    finally:
        report.checked.elapsed_s = time.perf_counter() - started_s
        if subject.open_container is not None:
            subject.container.close()
    return report


def _run_layer(layer: Layer, subject: Subject, report: Report) -> None:
    report.checked.layers.append(layer.name)
    for rule in layer.rules:
        report.checked.rules += 1
        try:
            for finding in islice(rule(subject), MOST_FINDINGS_PER_RULE):
                if isinstance(finding, Warned):
                    report.add(finding.problem, layer=layer.name, is_warning=True)
                else:
                    report.add(finding, layer=layer.name, is_warning=False)
        except RowpackError as error:
            for problem in error.problems:
                if not _already_told(problem, report):
                    report.add(problem, layer=layer.name, is_warning=False)


def _already_told(problem: Problem, report: Report) -> bool:
    """Tell whether a rule only stumbled over a malformed value that the schema has reported."""
    return problem.code == "manifest_malformed" and any(
        told.code.startswith("schema_") and (told.where or "").startswith("manifest.json") for told in report.errors
    )
