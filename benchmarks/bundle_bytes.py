"""Measure what bundles weigh, in the file and in memory: one engine and two, in each precision."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from artifacts import ArtifactStore
from contender_process import ContenderError, ContenderProcess, prompt_of
from contenders import LoadRequest
from contenders.catalogue import Artifact
from markdown_table import markdown_table, megabytes
from measured_process import CommandError, size_of

SINGLE = ("--decoder-engine-layout", "single")
NARROW = ("int8", "w8a8", "int4")
PRECISIONS = {"fp32": (), **{width: ("--quantization", width) for width in NARROW}}
PROMPT_TOKENS = 64


@dataclass(frozen=True)
class BundleBytes:
    """One bundle: its file, and what a process holds that loaded it and ran a prompt."""

    precision: str
    layout: str
    file_bytes: int
    anonymous_bytes: int
    mapped_bytes: int


def measure_bytes(store: ArtifactStore, python: str, threads: int) -> tuple[list[BundleBytes], dict[str, str]]:
    """Build, load and run each; return the figures, and what could not be built with the reason.

    Bundles of one engine are removed, those of two stay for whatever else measures them.
    """
    figures, absent = [], {}
    for precision, options in PRECISIONS.items():
        for layout in ("single", "split"):
            artifact = Artifact("bundle", options + (SINGLE if layout == "single" else ()))
            print(f"bytes: {precision} {layout}", file=sys.stderr)
            try:
                path = store.prepare(artifact)
                mode = "chunked" if layout == "split" else "token-loop"
                with ContenderProcess(python, "rowpack_bundle", LoadRequest(path, mode, threads, 4096)) as process:
                    process.prefill_s(prompt_of(PROMPT_TOKENS, store.vocabulary_size()))
                    memory = process.ask(do="memory")
            except (CommandError, ContenderError) as error:
                absent[f"{precision} {layout}"] = str(error)
                continue
            figures.append(
                BundleBytes(precision, layout, size_of(path), memory["anonymous_bytes"], memory["mapped_bytes"])
            )
            if layout == "single":
                store.remove(artifact)
    return figures, absent


def bytes_table(figures: Sequence[BundleBytes]) -> str:
    """Return the sizes, with ratios of two engines to one."""
    single = {entry.precision: entry for entry in figures if entry.layout == "single"}
    rows = []
    for entry in figures:
        one = single.get(entry.precision, entry)
        resident, one_resident = (part.anonymous_bytes + part.mapped_bytes for part in (entry, one))
        rows.append(
            [
                f"{entry.precision} {entry.layout}",
                megabytes(entry.file_bytes),
                f"{entry.file_bytes / one.file_bytes:.3f}",
                megabytes(entry.anonymous_bytes),
                megabytes(entry.mapped_bytes),
                f"{resident / one_resident:.3f}",
            ]
        )
    columns = ["bundle", "file MB", "× single", "anonymous MB", "mapped MB", "resident × single"]
    return markdown_table(columns, rows)
