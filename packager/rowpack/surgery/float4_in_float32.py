"""Let graphs with NVFP4 projections run where no runtime has the type: the same roundings with plain operators.

TensorRT's dynamic quantiser, by its definition: every 16 columns of a row share the scale max|x| / 6, rounded to E4M3
in units of the global scale; values are divided by the rounded scale and rounded to E2M1, ties to even. Stored weights
are read as four-bit integers and looked up. It serves to check graphs on a build machine; no engine is built from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from rowpack.graph.model import use_opset
from rowpack.surgery.float4_form import BLOCK_COLUMNS, DYNAMIC_QUANTIZE, LARGEST_FLOAT4, TENSORRT_DOMAIN

EMULATION_OPSET = 21
"""The first opset whose DequantizeLinear takes four-bit integers."""

FLOAT4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the codes 0 to 7 mean; 8 to 15 are the same with a minus sign."""


def has_float4(model: onnx.ModelProto) -> bool:
    """Tell whether ``model`` quantises rows to E2M1."""
    return any(node.domain == TENSORRT_DOMAIN for node in model.graph.node)


def without_float4(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with float32 in place of E2M1; weights keep their bytes in the external file."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    emulation = Emulation()
    values: set[str] = set()
    for tensor in result.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT4E2M1:
            tensor.data_type = TensorProto.UINT4
            values.add(tensor.name)
    for node in model.graph.node:
        if node.domain == TENSORRT_DOMAIN and node.op_type == DYNAMIC_QUANTIZE:
            emulation.quantize_rows(node)
            values.add(node.output[0])
        elif node.op_type == "DequantizeLinear" and node.input[0] in values:
            emulation.dequantize(node, stored=node.input[0] not in emulation.rows)
        else:
            emulation.nodes.append(node)
    del result.graph.node[:]
    result.graph.node.extend(emulation.nodes)
    result.graph.initializer.extend(emulation.constants.values())
    kept = [entry for entry in model.opset_import if entry.domain != TENSORRT_DOMAIN]
    del result.opset_import[:]
    result.opset_import.extend(kept)
    use_opset(result, EMULATION_OPSET)
    del result.graph.value_info[:]
    return result


@dataclass
class Emulation:
    """Nodes and constants that take the quantised ones' places; ``rows`` are quantised rows, not stored weights."""

    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    rows: set[str] = field(default_factory=set)

    def quantize_rows(self, node: NodeProto) -> None:
        """Emit values (float32, on the E2M1 grid) and E4M3 block scales under the node's own output names."""
        x, global_scale = node.input
        values, scales = node.output
        self.rows.add(values)
        wide = self._op("Cast", [x], f"{values}.wide", to=TensorProto.FLOAT)
        blocks = self._op("Reshape", [wide, self._ints("blocks", 0, -1, BLOCK_COLUMNS)], f"{values}.blocks")
        magnitudes = self._op("Abs", [blocks], f"{values}.magnitudes")
        largest = self._op("ReduceMax", [magnitudes, self._ints("last", -1)], f"{values}.largest", keepdims=0)
        exact = self._op("Div", [largest, self._float("six", LARGEST_FLOAT4)], f"{values}.exact_scale")
        zero = self._constant("zero", helper.make_tensor("", TensorProto.FLOAT8E4M3FN, [], b"\0", raw=True))
        self._op("QuantizeLinear", [exact, global_scale, zero], scales)
        rounded = self._op("DequantizeLinear", [scales, global_scale, zero], f"{values}.scale")
        # A block of zeros has the scale zero; any divisor but zero does for it.
        divisor = self._op("Max", [rounded, self._float("tiny", 1e-30)], f"{values}.divisor")
        column = self._op("Unsqueeze", [divisor, self._ints("last", -1)], f"{values}.divisor_column")
        ratio = self._op("Div", [blocks, column], f"{values}.ratio")
        grid = self.to_grid(ratio, f"{values}.grid")
        self._op("Reshape", [grid, self._shape_of(wide, values)], values)

    def dequantize(self, node: NodeProto, *, stored: bool) -> None:
        """Emit values times the scale of their block, in the scale's type, under the node's own output name."""
        source, scale = node.input[:2]
        name = node.output[0]
        if stored:
            codes = self._op("DequantizeLinear", [source, self._float("one", 1.0)], f"{name}.codes")
            index = self._op("Cast", [codes], f"{name}.index", to=TensorProto.INT32)
            table = numpy_helper.from_array(np.array([*FLOAT4_VALUES, *(-v for v in FLOAT4_VALUES)], np.float32))
            source = self._op("Gather", [self._constant("table", table), index], f"{name}.values")
        wide_scale = self._op("Cast", [scale], f"{name}.wide_scale", to=TensorProto.FLOAT)
        blocks = self._op("Reshape", [source, self._ints("blocks", 0, -1, BLOCK_COLUMNS)], f"{name}.blocks")
        column = self._op("Unsqueeze", [wide_scale, self._ints("last", -1)], f"{name}.scale_column")
        product = self._op("Mul", [blocks, column], f"{name}.scaled")
        flat = self._op("Reshape", [product, self._shape_of(source, name)], f"{name}.flat")
        self._op("CastLike", [flat, scale], name)

    def to_grid(self, ratio: str, name: str) -> str:
        """Emit E2M1 of float32: steps of a half below 2, of one below 4, of two above, at most 6; ties to even."""
        magnitude = self._op("Abs", [ratio], f"{name}.magnitude")
        above_two = self._op("GreaterOrEqual", [magnitude, self._float("two", 2.0)], f"{name}.above_two")
        above_four = self._op("GreaterOrEqual", [magnitude, self._float("four", 4.0)], f"{name}.above_four")
        coarse = self._op("Where", [above_four, self._float("two", 2.0), self._float("one", 1.0)], f"{name}.coarse")
        step = self._op("Where", [above_two, coarse, self._float("half", 0.5)], f"{name}.step")
        steps = self._op("Round", [self._op("Div", [ratio, step], f"{name}.steps")], f"{name}.rounded")
        rounded = self._op("Mul", [steps, step], f"{name}.unbounded")
        bounds = [self._float("minus_six", -LARGEST_FLOAT4), self._float("six", LARGEST_FLOAT4)]
        return self._op("Clip", [rounded, *bounds], name)

    def _shape_of(self, tensor: str, name: str) -> str:
        return self._op("Shape", [tensor], f"{name}.shape")

    def _op(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def _float(self, name: str, value: float) -> str:
        return self._constant(name, numpy_helper.from_array(np.array(value, np.float32)))

    def _ints(self, name: str, *values: int) -> str:
        return self._constant(name, numpy_helper.from_array(np.array(values, np.int64)))

    def _constant(self, name: str, tensor: TensorProto) -> str:
        full_name = f"float4.{name}"
        if full_name not in self.constants:
            tensor.name = full_name
            self.constants[full_name] = tensor
        return full_name
