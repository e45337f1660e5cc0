"""Where there is one row, it is the last one: nothing looks it up."""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs
import pytest

from rowpack.graph.emitter import Emitter
from rowpack.graph.last_row import last_row
from rowpack.graph.model import new_graph
from rowpack.surgery.only_row import TakeTheOnlyRow
from rowpack.surgery.row_count import FixRowCount
from rowpack.surgery.surgery_pass import run_passes


def graph_of(*, row: int = -1, axis: int = 0, given_out: bool = False) -> gs.Graph:
    emitter = Emitter(new_graph("rows"))
    rows = emitter.op("Neg", [emitter.input("x", "float32", ["rows", 3])], "negative")
    if (row, axis) == (-1, 0):
        row_of = last_row(emitter, rows, "row", dtype="float32", width=3, row_count="rows")
    else:
        emitter.declare(rows, "float32", ["rows", 3])
        row_of = emitter.op("Gather", [rows, emitter.ints(row)], "row", dtype="float32", shape=[1, 3], axis=axis)
    emitter.output(emitter.op("Abs", [row_of], "size"), "out", "float32", [1, 3])
    if given_out:
        emitter.output(row_of, "also", "float32", [1, 3])
    return emitter.graph


def operators(graph: Any) -> list[str]:
    return [node.op for node in graph.nodes]


def test_one_row_is_not_looked_up() -> None:
    graph = graph_of()
    run_passes(graph, [FixRowCount(1), TakeTheOnlyRow()])
    assert operators(graph) == ["Neg", "Abs"]


def test_one_of_several_rows_is() -> None:
    graph = graph_of()
    run_passes(graph, [TakeTheOnlyRow()])
    assert operators(graph) == ["Neg", "Gather", "Abs"]


@pytest.mark.parametrize(("row", "axis"), [(0, 0), (-1, 1)])
def test_another_lookup_stays(row: int, axis: int) -> None:
    graph = graph_of(row=row, axis=axis)
    run_passes(graph, [FixRowCount(1), TakeTheOnlyRow()])
    assert operators(graph) == ["Neg", "Gather", "Abs"]


def test_a_row_that_is_given_out_stays_for_that() -> None:
    graph = graph_of(given_out=True)
    run_passes(graph, [FixRowCount(1), TakeTheOnlyRow()])
    assert operators(graph) == ["Neg", "Abs", "Gather"]
