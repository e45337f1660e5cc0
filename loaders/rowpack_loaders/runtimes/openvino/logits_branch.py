"""Compute logits in a branch of their own: a chunk that others follow has no use for them.

The head alone reads a third of a small model's weights, once a chunk, and a compiled model computes all its outputs.
So the operators that lead to the logits and nowhere else are moved into an ``If``, whose condition is an input of its
own. Only what has fixed shapes is moved, which is all that follows the choice of the last row: OpenVINO 2026.4.1
computed a branch with free ones wrongly (docs/openvino.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rowpack_loaders.runtimes.host_sequence import WANTS_LOGITS
from rowpack_loaders.runtimes.openvino.library import import_openvino

openvino = import_openvino()

_OPERATORS = openvino.opset8


def branch_off_logits(model: Any, logits: str) -> bool:
    """Move all of fixed shape that only the result ``logits`` needs into a branch, in place; tell whether any was.

    The input that is added, :data:`WANTS_LOGITS`, is a truth value [1]; where it is false, ``logits`` are zeros.
    Nothing is moved in a graph without such a result, or with such an input.
    """
    results = [found for found in model.get_results() if logits in _names(found)]
    is_taken = any(WANTS_LOGITS in parameter.output(0).get_names() for parameter in model.get_parameters())
    moved = [] if len(results) != 1 or is_taken else _nodes_only_for(results[0])
    if not moved:
        return False
    result = results[0]
    source = result.input_value(0)
    entries = _cut_off(moved)
    body = openvino.Model([_OPERATORS.result(source)], [parameter for _, parameter in entries], "logits").clone()
    wants_logits = _OPERATORS.parameter([1], openvino.Type.boolean, name=WANTS_LOGITS)
    wants_logits.output(0).set_names({WANTS_LOGITS})
    choice = _OPERATORS.if_op(wants_logits.output(0))
    otherwise = _zeros(list(source.get_shape()))
    choice.set_then_body(body)
    choice.set_else_body(otherwise)
    for (outside, _), inside in zip(entries, body.get_parameters(), strict=True):
        choice.set_input(outside, inside, None)
    output = choice.set_output(body.get_results()[0], otherwise.get_results()[0])
    names = source.get_names()
    source.get_tensor().set_names(set())
    output.get_tensor().set_names(names)
    result.input(0).replace_source_output(output)
    model.add_parameters([wants_logits])
    model.validate_nodes_and_infer_types()
    return True


def _nodes_only_for(result: Any) -> list[Any]:
    """Return the operators of fixed shape whose outputs lead to ``result`` and nowhere else."""
    found: dict[str, Any] = {}
    waiting = [result.input_value(0).get_node()]
    while waiting:
        node = waiting.pop()
        readers = {reader.get_node().get_name() for output in node.outputs() for reader in output.get_target_inputs()}
        if (
            node.get_name() in found
            or node.get_type_name() in {"Constant", "Parameter"}
            or not readers <= found.keys() | {result.get_name()}
            or not all(value.get_partial_shape().is_static for value in (*node.input_values(), *node.outputs()))
        ):
            continue
        found[node.get_name()] = node
        # A node that also leads elsewhere is looked at again with each of its readers that is found.
        waiting += (value.get_node() for value in node.input_values())
    return list(found.values())


def _cut_off(nodes: list[Any]) -> list[tuple[Any, Any]]:
    """Let ``nodes`` read parameters where they read others but constants; return what they read, and the parameter."""
    inside = {node.get_name() for node in nodes}
    entries: dict[tuple[str, int], tuple[Any, Any]] = {}
    for node in nodes:
        for entry in node.inputs():
            value = entry.get_source_output()
            maker = value.get_node()
            if maker.get_name() in inside or maker.get_type_name() == "Constant":
                continue
            place = (maker.get_name(), value.get_index())
            if place not in entries:
                parameter = _OPERATORS.parameter(list(value.get_shape()), value.get_element_type())
                entries[place] = (value, parameter)
            entry.replace_source_output(entries[place][1].output(0))
    return list(entries.values())


def _zeros(shape: list[int]) -> Any:
    zeros = _OPERATORS.broadcast(_OPERATORS.constant(np.float32(0)), _OPERATORS.constant(np.array(shape, np.int64)))
    return openvino.Model([_OPERATORS.result(zeros)], [], "no_logits")


def _names(result: Any) -> set[str]:
    names: set[str] = result.output(0).get_names() | result.input_value(0).get_names()
    return names
