"""Place a model's prompts and steps under the machine's roof."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from artifacts import ArtifactStore
from bundle_bytes import NARROW
from contender_process import ContenderError, ContenderProcess, prompt_of
from contenders import LoadRequest
from contenders.catalogue import Artifact
from machine_roof import MachineRoof, RoofPoint, narrow_step, roof_points
from markdown_table import markdown_table
from measured_process import CommandError
from read_bandwidth import EMBEDDINGS, HEADS, bytes_read_a_token, weight_tensors

PROMPT_ROWS = (4, 16, 64)
CHUNK_ROWS = 64
STEPS = 16
PASSES = 3


def measure_points(store: ArtifactStore, python: str, threads: int) -> tuple[list[RoofPoint], dict[str, str]]:
    """Time prompts of a few lengths and single steps in float32, and single steps with narrower weights.

    Returns the points, and which widths could not be measured, with the reason.
    """
    path = store.prepare(Artifact("bundle"))
    vocabulary = store.vocabulary_size()
    times: list[tuple[str, int, float]] = []
    print("roof: float32", file=sys.stderr)
    with ContenderProcess(python, "rowpack_bundle", LoadRequest(path, "chunked", threads, 4096)) as process:
        for rows in PROMPT_ROWS:
            prompt = prompt_of(rows, vocabulary)
            process.prefill_s(prompt)
            seconds = statistics.median(process.prefill_s(prompt) for _ in range(PASSES))
            times.append((f"prompt of {rows}", rows, 1e3 * seconds))
        times.append(("step, float32", 1, step_ms(process)))
    layer_bytes, head_bytes = weight_parts(path)
    points, remarks = roof_points(times, layer_bytes, head_bytes, CHUNK_ROWS), {}
    for width in NARROW:
        print(f"roof: {width}", file=sys.stderr)
        try:
            narrow = store.prepare(Artifact("bundle", ("--quantization", width)))
            with ContenderProcess(python, "rowpack_bundle", LoadRequest(narrow, "chunked", threads, 4096)) as process:
                process.prefill_s(prompt_of(PROMPT_ROWS[0], vocabulary))
                taken_ms = step_ms(process)
        except (CommandError, ContenderError) as error:
            remarks[width] = str(error)
            continue
        read_bytes = bytes_read_a_token(weight_tensors(narrow))
        points.append(narrow_step(f"step, {width}", taken_ms, layer_bytes + head_bytes, read_bytes))
    return points, remarks


def step_ms(process: ContenderProcess) -> float:
    """Return the time of a step after a prompt."""
    process.step_s(2)
    return 1e3 * statistics.median(process.step_s(STEPS) for _ in range(PASSES))


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
