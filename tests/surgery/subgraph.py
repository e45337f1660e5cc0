"""Run the nodes that one lowering emits, alone, under ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime

from rowpack.graph.dtypes import numpy_dtype, onnx_type
from rowpack.graph.emitter import Emitter
from rowpack.graph.model import FUNCTION_DOMAIN, export_model, new_graph
from rowpack.onnx_ops import function
from rowpack.surgery.mixer_replacement import Lowering

Array = np.ndarray[Any, Any]
Shape = tuple[int | str, ...]


def cpu_session(model: bytes | str, **entries: str) -> onnxruntime.InferenceSession:
    """Return a one-thread CPU session; spinning thread pools slow down whoever shares the machine."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Subgraph:
    """One mixer as a model of its own: named inputs with dtypes and shapes, outputs by name."""

    def __init__(self, model: onnx.ModelProto, outputs: Sequence[str]) -> None:
        self.model = model
        self._outputs = list(outputs)
        self._types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
        self._session = cpu_session(model.SerializeToString())

    @property
    def node_count(self) -> int:
        """Nodes in the main graph."""
        return len(self.model.graph.node)

    def __call__(self, **inputs: Array) -> tuple[Array, ...]:
        """Run once; bfloat16 arrays are handed over by their bits."""
        feeds = {name: self._ort_value(name, np.ascontiguousarray(value)) for name, value in inputs.items()}
        results = self._session.run_with_ort_values(self._outputs, feeds)
        return tuple(result.numpy() for result in results)

    def run_into(self, outputs: Mapping[str, Array], **inputs: Array) -> None:
        """Run once and let the engine write into ``outputs``: contiguous arrays, or heads of larger ones."""
        binding = self._session.io_binding()
        kept = [self._ort_value(name, value) for name, value in inputs.items()]
        for name, value in zip(inputs, kept, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name, array in outputs.items():
            assert array.flags.c_contiguous
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self._session.run_with_iobinding(binding)

    def _ort_value(self, name: str, value: Array) -> onnxruntime.OrtValue:
        number = self._types[name]
        if number == onnx_type("bfloat16"):
            return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(value.view(np.uint16), number)
        return onnxruntime.OrtValue.ortvalue_from_numpy(value)


def lowered(
    lowering: Lowering,
    inputs: Mapping[str, tuple[str, Shape]],
    outputs: Mapping[str, Shape],
    constants: Mapping[str, Array] | None = None,
    **attributes: Any,
) -> Subgraph:
    """Build the subgraph that ``lowering`` emits for ``inputs`` (name → dtype and shape), in their order.

    ``constants`` are inputs that the model holds as weights, as the families pass them.
    """
    emitter = Emitter(new_graph("subgraph"))
    tensors = _declared(emitter, inputs, constants or {})
    results = lowering(emitter.scope("mixer"), tensors, attributes)
    for tensor, (name, shape) in zip(results, outputs.items(), strict=True):
        emitter.output(tensor, name, "float32", shape)
    model = export_model(emitter.graph)
    onnx.checker.check_model(model, full_check=True)
    return Subgraph(model, list(outputs))


def called(
    name: str,
    inputs: Mapping[str, tuple[str, Shape]],
    outputs: Mapping[str, Shape],
    constants: Mapping[str, Array] | None = None,
    **attributes: Any,
) -> Subgraph:
    """Build a model that is one call of the ONNX function ``name``."""
    emitter = Emitter(new_graph("function_call"))
    tensors = _declared(emitter, inputs, constants or {})
    results = emitter.multi_op(
        name,
        tensors,
        "mixer",
        [(output, "float32", shape) for output, shape in outputs.items()],
        domain=FUNCTION_DOMAIN,
        **attributes,
    )
    for tensor, (output, shape) in zip(results, outputs.items(), strict=True):
        emitter.output(tensor, f"result_{output}", "float32", shape)
    model = export_model(emitter.graph, [function(name)])
    onnx.checker.check_model(model, full_check=True)
    return Subgraph(model, [f"result_{output}" for output in outputs])


def _declared(emitter: Emitter, inputs: Mapping[str, tuple[str, Shape]], constants: Mapping[str, Array]) -> list[Any]:
    tensors = []
    for name, (dtype, shape) in inputs.items():
        if name in constants:
            tensors.append(emitter.constant(name, constants[name].astype(numpy_dtype(dtype))))
        else:
            tensors.append(emitter.input(name, dtype, shape))
    return tensors
