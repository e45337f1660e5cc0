"""The engines' part of a build: from the exported graph to engines in the bundle."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rowpack.bundle.output_file import OutputFile
from rowpack.bundle.writer import BundleWriter
from rowpack.engines.backend import (
    DECODE_ROWS,
    BuiltEngine,
    EngineBuild,
    EngineBuilder,
    EngineOrder,
    FileRange,
    prefill_rows_profile,
)
from rowpack.engines.io_contract import DECODE, PREFILL, check_contract, check_pair
from rowpack.engines.options import PlanEncoding
from rowpack.model_preparation import PreparedModel
from rowpack.progress import Progress, Stage
from rowpack.surgery.graph_form import GraphForm
from rowpack_loaders.container_header import SectionRange
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.extents import ExtentContent, parse_extents
from rowpack_loaders.section_content import EXTENTS_ENCODING, ExtentsRecord, content_sha256

if TYPE_CHECKING:
    import onnx

PLAN_SUFFIX = ".plan"

Piece = TypeVar("Piece", bytes, memoryview, "bytes | memoryview")


@dataclass(frozen=True)
class EngineGraphs:
    """The engines' graphs by role; ``prefill_serves_decode`` says that one session is to run chunks and steps.

    So it is where each session would pack the weights for itself, and no mixer computes rows that are not there, by
    itself or because it has a branch for one row.
    """

    exported: onnx.ModelProto
    by_role: Mapping[str, onnx.ModelProto]
    prefill_serves_decode: bool

    def without_prefill(self) -> EngineGraphs:
        """Return the graphs of a single bundle."""
        return EngineGraphs(self.exported, {DECODE: self.by_role[DECODE]}, False)


def engine_graphs(exported: onnx.ModelProto, prefill_rows: int, form: GraphForm, *, split: bool) -> EngineGraphs:
    """Return the engines' graphs, in the form their backend takes."""
    from rowpack.graph.constants import constant_bytes
    from rowpack.surgery import decode_model, pads_rows, prefill_model

    graphs = {DECODE: decode_model(exported, form)}
    if not split:
        return EngineGraphs(exported, graphs, False)
    is_packed = constant_bytes(graphs[DECODE]).packed > 0
    form = replace(form, one_row_branch=is_packed)
    graphs[PREFILL] = prefill_model(exported, prefill_rows, form)
    return EngineGraphs(exported, graphs, is_packed and not pads_rows(exported, prefill_rows, form))


def engine_orders(
    prepared: PreparedModel, graphs: EngineGraphs, prefill_rows: int, form: GraphForm
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
            serves_decode=role == PREFILL and graphs.prefill_serves_decode,
        )
        for role, graph in graphs.by_role.items()
    ]
    if len(orders) > 1:
        check_pair(orders[0].contract, orders[1].contract)
    return orders


def add_engines(
    writer: BundleWriter,
    builder: EngineBuilder,
    orders: Iterable[EngineOrder],
    weights: FileRange | None,
    plan_encoding: PlanEncoding,
    progress: Progress,
) -> list[BuiltEngine]:
    """Build every engine into its section, one stage each, and check it as it was written.

    With ``shared`` a plan after the first is stored as extents over the first.
    """
    engines: list[BuiltEngine] = []
    for order in orders:
        with ExitStack() as ending:
            stage = ending.enter_context(progress.stage(f"{order.role} engine"))
            build = builder.build_engine(order, weights, stage.describe)
            # The generator has a compiler's process behind it, which must not live as long as an error's traceback.
            pieces = counted(ending.enter_context(_closed(build.pieces())), stage)
            if engines and plan_encoding == "shared" and build.section.endswith(PLAN_SUFFIX):
                with scratch_file(writer.target, pieces, 0, "plan") as plan:
                    stage.describe(f"{order.role} engine, looking for what both engines hold")
                    _add_shared_plan(writer, build, plan, engines[0].section)
                    builder.check_written(build.result(), plan)
            else:
                writer.add_section(build.section, pieces, media_type=build.media_type)
                place = writer.section_range(build.section)
                written = FileRange(writer.temporary_path, place.offset_bytes, place.length_bytes)
                builder.check_written(build.result(), written)
            engines.append(build.result())
    return engines


@contextmanager
def _closed(pieces: Iterator[Piece]) -> Iterator[Iterator[Piece]]:
    """Yield ``pieces``, and end what makes them at once when the body ends, whichever way."""
    try:
        yield pieces
    finally:
        if isinstance(pieces, Generator):
            pieces.close()


def _add_shared_plan(writer: BundleWriter, build: EngineBuild, plan: FileRange, base_section: str) -> None:
    """Store a plan as extents over the section ``base_section``, and read it back from there."""
    from rowpack.bundle.shared_extents import find_shared_extents, mapped_bytes, stored_pieces

    base = writer.section_range(base_section)
    content = mapped_bytes(plan.path, plan.offset_bytes, plan.length_bytes)
    shared = find_shared_extents(content, mapped_bytes(writer.temporary_path, base.offset_bytes, base.length_bytes))
    record = ExtentsRecord(base_section, plan.length_bytes, hashlib.sha256(content.data).hexdigest())
    place = writer.add_section(
        build.section,
        stored_pieces(shared, content),
        media_type=build.media_type,
        encoding=EXTENTS_ENCODING,
        extents=record,
        length_bytes=shared.stored_bytes,
    )
    _check_rebuilt(writer.temporary_path, place, base, record)


def _check_rebuilt(path: Path, place: SectionRange, base: SectionRange, record: ExtentsRecord) -> None:
    """Read the plan back from the extents as they lie in the file; raises ``plan_incomplete``."""
    with path.open("rb") as file:
        stored, copied = _reader(file.fileno(), place), _reader(file.fileno(), base)
        table = parse_extents(stored, place.length_bytes, base.length_bytes, where=str(path))
        found = content_sha256(ExtentContent(table, stored, copied))
    if found != record.sha256:
        raise RowpackError(
            "plan_incomplete",
            "the stored plan does not read back as it was built",
            where=str(path),
            found=found,
            expected=record.sha256,
            remedy="Check the disk, then build again; --plan-encoding raw stores the plan as it is.",
        )


def _reader(descriptor: int, place: SectionRange) -> Callable[[memoryview, int], None]:
    def read(buffer: memoryview, offset_bytes: int) -> None:
        while buffer:
            count = os.preadv(descriptor, [buffer], place.offset_bytes + offset_bytes)
            if count == 0:
                raise EOFError("the file ends early")
            buffer, offset_bytes = buffer[count:], offset_bytes + count

    return read


@contextmanager
def scratch_file(
    target: Path, pieces: Iterable[bytes | memoryview], length_bytes: int, kind: str = "weights"
) -> Iterator[FileRange]:
    """Write a file beside ``target`` that is gone afterwards, also after a crash: the next build removes it.

    Raises RowpackError as the bundle writer does.
    """
    file = OutputFile(target.with_name(f"{target.name}.{kind}"), will_publish=False)
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
