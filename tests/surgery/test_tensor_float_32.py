"""What the delta rule would lose to TF32, which TensorRT uses for float32 products unless told not to.

TF32 products read their operands with 10 explicit bits of mantissa. That is emulated here by rounding the operands of
every product of the lowered delta rule, or of the triangular solve alone. Engines are built with TF32 off; the figures
say what that is worth, and that the half-precision engines would have survived it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from mixer_inputs import ADVERSARIAL_BAR, DELTA_RULE_CHANGES, Heads, delta_rule_inputs
from mixers import delta_rule_chunk_graph
from oracles import delta_rule, relative_error
from subgraph import Subgraph

HALF_PRECISION_BAR = 2e-3
HEADS = Heads(2, 2, 32)
KEPT_BITS = 11
"""Significant bits of TF32, the implicit one included."""

SPLITTER = np.float32(2 ** (24 - KEPT_BITS) + 1)


def rounded(values: Any) -> Any:
    """Round float32 values to TF32 (Dekker's splitting: nearest, as the hardware does)."""
    scaled = values * SPLITTER
    return scaled - (scaled - values)


@cache
def in_tf32(scope: str) -> Subgraph:
    """Return the chunk lowering with the operands of all products below ``scope`` rounded to TF32."""
    exact = delta_rule_chunk_graph(HEADS, 64, free_rows=False)
    model = onnx.ModelProto()
    model.CopyFrom(exact.model)
    del model.graph.node[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(SPLITTER.reshape(1), "tf32.splitter"))
    products = 0
    for node in exact.model.graph.node:
        copied = onnx.NodeProto()
        copied.CopyFrom(node)
        if node.op_type == "MatMul" and node.name.startswith(scope):
            products += 1
            for index, name in enumerate(node.input):
                made = f"{node.name}.operand_{index}"
                for op, inputs, output in (
                    ("Mul", [name, "tf32.splitter"], f"{made}.scaled"),
                    ("Sub", [f"{made}.scaled", name], f"{made}.low"),
                    ("Sub", [f"{made}.scaled", f"{made}.low"], made),
                ):
                    model.graph.node.append(onnx.helper.make_node(op, inputs, [output], name=output))
                copied.input[index] = made
        model.graph.node.append(copied)
    assert products >= 7
    return Subgraph(model, ["out", "present"])


def error_of(graph: Subgraph, name: str) -> float:
    inputs = delta_rule_inputs(name, 64, HEADS)
    out, present = graph(**inputs)
    expected_out, expected_present = delta_rule(**inputs)
    return max(relative_error(out, expected_out), relative_error(present, expected_present))


def test_rounding_keeps_eleven_bits() -> None:
    values = np.array([1 + 2**-10, 1 + 2**-11 + 2**-20, 1 + 2**-12, -3.14159265, 1e-20], np.float32)
    expected = [1 + 2**-10, 1 + 2**-10, 1.0]
    assert rounded(values)[:3].tolist() == expected
    assert np.abs(rounded(values) / values - 1).max() <= 2.0**-KEPT_BITS


@pytest.mark.parametrize("scope", ["mixer.solve", "mixer"])
@pytest.mark.parametrize("name", DELTA_RULE_CHANGES)
def test_half_precision_engines_would_survive_tf32(name: str, scope: str) -> None:
    """Measured at 64 rows: at most 8e-4 with a rounded solve, 9.4e-4 with every product of the rule rounded."""
    assert error_of(in_tf32(scope), name) <= HALF_PRECISION_BAR


def test_tf32_would_break_the_float32_bar() -> None:
    """So the flag is off: a float32 engine with TF32 products is none."""
    worst = max(error_of(in_tf32("mixer.solve"), name) for name in DELTA_RULE_CHANGES)
    assert worst > ADVERSARIAL_BAR
