"""Try whether the installed ``LinearAttention`` may write a state over the one it reads.

It does all of a head's work in the buffer that the head's next state goes to, so both may be one; that is nowhere
promised, so it is tried in each process, with the sizes of the model, before anything relies on it. A state that
stays where it is goes through memory half as often.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from rowpack_loaders.onnx_encoding import (
    float_attribute,
    graph,
    integer_attribute,
    model,
    node,
    text_attribute,
)
from rowpack_loaders.onnx_wire import GRAPH_INPUT, GRAPH_OUTPUT
from rowpack_loaders.protobuf_wire import encoded_field, encoded_integer
from rowpack_loaders.runtimes.onnxruntime_import import import_onnxruntime
from rowpack_loaders.runtimes.ort_state_edges import DOMAIN, OPERATOR

FloatArray = np.ndarray[Any, np.dtype[np.float32]]

onnxruntime = import_onnxruntime()

_FLOAT = 1
_INPUTS = ("query", "key", "value", "past", "decay", "beta")
_OUTPUTS = ("out", "present")
_MOST_HEADS = 2
_MOST_VALUES = 2**20  # of a head
_ROWS = (1, 3)


@cache
def writes_over_its_state(heads: int, key_dim: int, value_dim: int) -> bool:
    """Tell whether results and states are the same bits in place, for a state [heads, key_dim, value_dim].

    A head far larger than any model's is not tried: loading is not to take memory for what a file merely says.
    """
    if key_dim * value_dim > _MOST_VALUES:
        return False
    heads = min(heads, _MOST_HEADS)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(_one_operator(heads), options, providers=["CPUExecutionProvider"])
    return all(_is_same(session, rows, heads, key_dim, value_dim) for rows in _ROWS)


def _is_same(session: Any, rows: int, heads: int, key_dim: int, value_dim: int) -> bool:
    count = 0

    def drawn(*shape: int) -> FloatArray:
        # Irregular enough, and numpy's generators would be imported for nothing else.
        nonlocal count
        count += 1
        steps = np.arange(math.prod(shape), dtype=np.float32) * np.float32(count + 0.7)
        values: FloatArray = np.sin(steps, dtype=np.float32)
        return values.reshape(shape)

    inputs = {
        "query": drawn(1, rows, heads * key_dim),
        "key": drawn(1, rows, heads * key_dim) / np.float32(key_dim),
        "value": drawn(1, rows, heads * value_dim),
        "decay": -np.abs(drawn(1, rows, heads)),
        "beta": np.abs(drawn(1, rows, heads)),
    }
    past = drawn(1, heads, key_dim, value_dim)
    found = []
    for present in (np.empty_like(past), past):
        binding = session.io_binding()
        for name, values in inputs.items():
            binding.bind_cpu_input(name, values)
        for bind, name, state in ((binding.bind_input, "past", past), (binding.bind_output, "present", present)):
            bind(name, "cpu", 0, np.float32, state.shape, state.ctypes.data)
        binding.bind_output("out", "cpu")
        session.run_with_iobinding(binding)
        found.append((binding.get_outputs()[1].numpy(), present))
    return all(np.array_equal(apart, together) for apart, together in zip(*found, strict=True))


def _one_operator(heads: int) -> bytes:
    """Return a model of one node; what it takes and gives is declared without shapes."""
    attributes = [
        *(integer_attribute(name, heads) for name in ("q_num_heads", "kv_num_heads")),
        float_attribute("scale", 1.0),
        text_attribute("update_rule", "gated_delta"),
    ]
    floats = encoded_field(2, encoded_field(1, encoded_integer(1, _FLOAT)))
    declared = ((GRAPH_INPUT, _INPUTS), (GRAPH_OUTPUT, _OUTPUTS))
    fields = [node(OPERATOR, _INPUTS, _OUTPUTS, *attributes, domain=DOMAIN)]
    fields += [
        encoded_field(field, encoded_field(1, name.encode()) + floats) for field, names in declared for name in names
    ]
    return model(graph("in_place", fields))
