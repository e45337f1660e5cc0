"""What is looked up in ONNX models by the tests of their form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import onnx
from model_engines import ModelEngines

from rowpack.graph.dtypes import dtype_name

GRAPHS = ("exported", "decode", "prefill")

Signature = dict[str, tuple[str, list[int | str]]]


def models(engines: ModelEngines) -> dict[str, onnx.ModelProto]:
    """Return the three models by name."""
    return {graph: getattr(engines, f"{graph}_model") for graph in GRAPHS}


def scope_of(node_name: str) -> str:
    """Return ``layers.<n>`` for a node of a layer, and an empty text for what is around the layers."""
    parts = node_name.split(".")
    return ".".join(parts[:2]) if parts[0] == "layers" else ""


def operators_by_layer(model: onnx.ModelProto) -> dict[str, Counter[str]]:
    """Return the operators of each layer, and under the empty text those around the layers."""
    counts: dict[str, Counter[str]] = {}
    for node in model.graph.node:
        counts.setdefault(scope_of(node.name), Counter())[node.op_type] += 1
    return counts


def signature(values: list[onnx.ValueInfoProto]) -> Signature:
    """Return name → (dtype, shape) of graph inputs or outputs."""
    result: Signature = {}
    for value in values:
        tensor = value.type.tensor_type
        shape = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
        result[value.name] = (dtype_name(tensor.elem_type), shape)
    return result


def external_facts(tensor: onnx.TensorProto) -> Mapping[str, str]:
    """Return location, offset and length of an external initializer."""
    return {entry.key: entry.value for entry in tensor.external_data}
