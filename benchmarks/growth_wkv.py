"""Measure what a chunk of the WKV recurrence holds in memory: in blocks of rows, as bundles have it, and written out.

Written out for S rows the exponents are one tensor [S + 1, S, hidden] a layer, several times over, which is what
blocks avoid. That form is built here by the same lowering with one block as long as the chunk.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from artifacts import ArtifactStore, Environments, remove_path
from contender_process import ContenderProcess, prompt_of
from contenders import LoadRequest
from contenders.catalogue import Artifact
from growing_shapes import WKV_HIDDEN, config_of, wide_rwkv, wkv_tensor_bytes, write_shape
from markdown_table import markdown_table, megabytes
from measured_process import run_measured

WKV_ROWS = (16, 32, 64)
BUILD_IN_BLOCKS = """
import sys
from rowpack.cli.application import main
from rowpack.surgery import wkv_chunk
wkv_chunk.BLOCK_ROWS = int(sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""


@dataclass(frozen=True)
class WkvFigures:
    """One layer, its chunks of ``rows`` rows in blocks of ``block_rows``: memory after loading and after a prompt."""

    rows: int
    block_rows: int
    prefill_ms: float
    loaded_anonymous_bytes: int
    anonymous_bytes: int
    loaded_peak_bytes: int
    peak_bytes: int


def measure_wkv(folder: Path, environments: Environments, threads: int) -> list[WkvFigures]:
    """Measure one RWKV-4 layer of the 14b model's width with chunks of growing rows, in both forms."""
    from rowpack.surgery.wkv_chunk import BLOCK_ROWS

    path = write_shape(wide_rwkv(config_of("rwkv4-14b"), WKV_HIDDEN), folder / "shapes" / f"wkv-{WKV_HIDDEN}.json")
    store = ArtifactStore(path, folder, environments, 4096)
    checkpoint = store.prepare(Artifact("checkpoint"))
    bundle = store.folder / "wkv.bundle"
    figures = []
    for rows in WKV_ROWS:
        for block_rows in (BLOCK_ROWS, rows):
            print(f"wkv: chunks of {rows} rows in blocks of {block_rows}", file=sys.stderr)
            command: list[str | os.PathLike[str]] = [environments.rowpack_python, "-c", BUILD_IN_BLOCKS]
            command += [str(block_rows), "build", checkpoint, "-o", bundle, "--decoder-engine-layout", "split"]
            run_measured([*command, "--prefill-rows", str(rows), "--no-verify", "--progress", "none"])
            prompt = prompt_of(4 * rows, store.vocabulary_size())
            try:
                figures.append(measure_chunks(bundle, rows, block_rows, prompt, threads))
            finally:
                remove_path(bundle)
    store.remove(Artifact("checkpoint"))
    return figures


def measure_chunks(bundle: Path, rows: int, block_rows: int, prompt: list[int], threads: int) -> WkvFigures:
    """Load a bundle, run a prompt twice, the second one timed, and read the memory before and after."""
    with ContenderProcess(sys.executable, "rowpack_bundle", LoadRequest(bundle, "chunked", threads, 4096)) as process:
        loaded = process.ask(do="memory")
        process.prefill_s(prompt)
        prefill_s, after = process.prefill_s(prompt), process.ask(do="memory")
    return WkvFigures(
        rows=rows,
        block_rows=block_rows,
        prefill_ms=1e3 * prefill_s,
        loaded_anonymous_bytes=loaded["anonymous_bytes"],
        anonymous_bytes=after["anonymous_bytes"],
        loaded_peak_bytes=loaded["peak_bytes"],
        peak_bytes=after["peak_bytes"],
    )


def wkv_table(figures: Sequence[WkvFigures]) -> str:
    """Return the memory that chunks took beside the size of the exponents [rows + 1, rows, hidden] written out."""
    rows = []
    for entry in figures:
        tensor = wkv_tensor_bytes(entry.rows, WKV_HIDDEN)
        held = entry.anonymous_bytes - entry.loaded_anonymous_bytes
        form = "written out" if entry.block_rows == entry.rows else f"blocks of {entry.block_rows}"
        cells = [str(entry.rows), form, megabytes(tensor), megabytes(entry.loaded_anonymous_bytes), megabytes(held)]
        cells += [megabytes(entry.peak_bytes), f"{held / tensor:.2f}", f"{entry.prefill_ms:.1f}"]
        rows.append(cells)
    columns = ["rows a chunk", "form", "exponents MB", "own after load MB", "more after a prompt MB"]
    return markdown_table(
        [*columns, "peak resident MB", "more ÷ exponents", "prefill of four chunks ms"], rows, text_columns=2
    )
