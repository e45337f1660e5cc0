"""The engines' part of a build: from the exported graph to engines in the bundle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rowpack.bundle.output_file import OutputFile
from rowpack.bundle.writer import BundleWriter
from rowpack.engines.backend import (
    DECODE_ROWS,
    BuiltEngine,
    EngineBuilder,
    EngineOrder,
    FileRange,
    prefill_rows_profile,
)
from rowpack.engines.io_contract import DECODE, PREFILL, check_contract, check_pair
from rowpack.model_preparation import PreparedModel
from rowpack.progress import Progress, Stage
from rowpack.surgery.graph_form import GraphForm

if TYPE_CHECKING:
    import onnx

Piece = TypeVar("Piece", bytes, memoryview, "bytes | memoryview")


def engine_graphs(
    exported: onnx.ModelProto, prefill_rows: int, form: GraphForm, *, split: bool
) -> dict[str, onnx.ModelProto]:
    """Return the engines' graphs by role, in the form their backend takes."""
    from rowpack.surgery import decode_model, prefill_model

    graphs = {DECODE: decode_model(exported, form)}
    if split:
        graphs[PREFILL] = prefill_model(exported, prefill_rows, form)
    return graphs


def engine_orders(
    prepared: PreparedModel, graphs: Mapping[str, onnx.ModelProto], prefill_rows: int, form: GraphForm
) -> list[EngineOrder]:
    """Return what each engine is built from, after its graph's inputs and outputs were checked.

    Raises RowpackError ``engine_contract`` or ``engine_pair_mismatch``.
    """
    rows = {DECODE: DECODE_ROWS, PREFILL: prefill_rows_profile(prefill_rows)}
    capacity_rows = form.cache_capacity_rows
    orders = [
        EngineOrder(
            role,
            graph,
            check_contract(graph, prepared.model, role, capacity_rows),
            rows[role],
            prepared.plan.tensor_bytes,
            prepared.max_cache_length,
        )
        for role, graph in graphs.items()
    ]
    if len(orders) > 1:
        check_pair(orders[0].contract, orders[1].contract)
    return orders


def add_engines(
    writer: BundleWriter,
    builder: EngineBuilder,
    orders: Iterable[EngineOrder],
    weights: FileRange | None,
    progress: Progress,
) -> list[BuiltEngine]:
    """Build every engine into its section, one stage each, and check it as it was written."""
    engines = []
    for order in orders:
        with progress.stage(f"{order.role} engine") as stage:
            build = builder.build_engine(order, weights, stage.describe)
            writer.add_section(build.section, counted(build.pieces(), stage), media_type=build.media_type)
            engine = build.result()
            place = writer.section_range(engine.section)
            builder.check_written(engine, FileRange(writer.temporary_path, place.offset_bytes, place.length_bytes))
            engines.append(engine)
    return engines


@contextmanager
def scratch_file(target: Path, pieces: Iterable[bytes | memoryview], length_bytes: int) -> Iterator[FileRange]:
    """Write a file beside ``target`` that is gone afterwards, also after a crash: the next build removes it.

    Raises RowpackError as the bundle writer does.
    """
    file = OutputFile(target.with_name(f"{target.name}.weights"))
    try:
        file.check_free_space(length_bytes)
        position = 0
        for piece in pieces:
            file.write(memoryview(piece), position)
            position += len(piece)
        yield FileRange(file.temporary_path, 0, position)
    finally:
        file.discard()


def counted(pieces: Iterable[Piece], stage: Stage) -> Iterator[Piece]:
    """Yield ``pieces`` and tell ``stage`` how many bytes went by."""
    for piece in pieces:
        yield piece
        stage.advance(len(piece))
