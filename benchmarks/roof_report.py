"""Place a model's prompts and steps under the machine's roof."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from artifacts import ArtifactStore
from contender_process import ContenderProcess, prompt_of
from contenders import LoadRequest
from contenders.catalogue import Artifact
from machine_roof import MachineRoof, RoofPoint, roof_points
from markdown_table import markdown_table
from read_bandwidth import EMBEDDINGS, HEADS, bytes_read_a_token, weight_tensors

PROMPT_ROWS = (1, 16, 64)
CHUNK_ROWS = 64
STEPS = 16
PASSES = 3


def measure_points(store: ArtifactStore, python: str, threads: int) -> list[RoofPoint]:
    """Time prompts of a few lengths and single steps of the float32 bundle."""
    path = store.prepare(Artifact("bundle"))
    vocabulary = store.vocabulary_size()
    times: list[tuple[str, int, float]] = []
    with ContenderProcess(python, "rowpack_bundle", LoadRequest(path, "chunked", threads, 4096)) as process:
        for rows in PROMPT_ROWS:
            prompt = prompt_of(rows, vocabulary)
            process.prefill_s(prompt)
            seconds = statistics.median(process.prefill_s(prompt) for _ in range(PASSES))
            times.append((f"prompt of {rows}", rows, 1e3 * seconds))
        process.step_s(2)
        times.append(("decode", 1, 1e3 * statistics.median(process.step_s(STEPS) for _ in range(PASSES))))
    layer_bytes, head_bytes = weight_parts(path)
    return roof_points(times, layer_bytes, head_bytes, CHUNK_ROWS)


def weight_parts(bundle_path: Path) -> tuple[int, int]:
    """Return the bytes of the layers' weights and of the head; a tied embedding is the head."""
    tensors = weight_tensors(bundle_path)
    total = bytes_read_a_token(tensors)
    sizes = {name.split(".")[0]: byte_count for name, byte_count, _ in tensors}
    head = next((sizes[name] for name in (*HEADS, *EMBEDDINGS) if name in sizes), 0)
    return total - head, head


def roof_table(roof: MachineRoof, points: Sequence[RoofPoint]) -> str:
    """Return the points as a table, with the share of what is attainable."""
    rows = [
        [
            point.label,
            f"{point.operations_per_byte:.1f}",
            f"{point.operations_per_second / 1e9:.1f}",
            f"{roof.attainable(point.operations_per_byte) / 1e9:.1f}",
            f"{100 * point.operations_per_second / roof.attainable(point.operations_per_byte):.0f} %",
        ]
        for point in points
    ]
    limits = (
        f"Limits measured in this run: {roof.operations_per_second / 1e9:.0f} GFLOP/s in a float32 product, "
        f"{roof.bytes_per_second / 1e9:.1f} GB/s read."
    )
    columns = ["", "operations a byte", "GFLOP/s", "attainable GFLOP/s", "of it"]
    return f"{limits}\n\n{markdown_table(columns, rows)}"
