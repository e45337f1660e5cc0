"""Emit ONNX nodes into a graphsurgeon graph under readable, unique names.

Families, surgery passes and tests all emit through :class:`Emitter`, so every node is named after its place in
the model (``layers.3.deltanet.delta_rule.decay_matrix``): graph viewers and runtime messages then name something
a person recognises.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues

from rowpack.graph.dtypes import dtype_name, numpy_dtype, onnx_type

Tensor = Any  # gs.Variable or gs.Constant; graphsurgeon carries no type information


def static_shape(tensor: Tensor) -> list[int | str]:
    """Return the declared shape of ``tensor``; the tensor must have one."""
    if tensor.shape is None:
        raise AssertionError(f"tensor {tensor.name!r} was emitted without a shape")
    return list(tensor.shape)


def declared_dtype(tensor: Tensor) -> str:
    """Return the manifest's word for the element type that ``tensor`` declares; it must declare one."""
    if tensor.dtype is None:
        raise AssertionError(f"tensor {tensor.name!r} was emitted without an element type")
    # graphsurgeon keeps NumPy's type where there is one, and ONNX's number where there is none.
    return dtype_name(tensor.dtype) if isinstance(tensor.dtype, int) else str(np.dtype(tensor.dtype).name)


class Emitter:
    """Append nodes to ``graph``; ``scope`` prefixes every name.

    Emitters of one graph share names and constants. A constant is stored once for equal name, dtype and values.
    """

    def __init__(self, graph: gs.Graph, scope: str = "", root: Emitter | None = None) -> None:
        self.graph = graph
        self._scope = scope
        self._root = root or self
        if root is None:
            self._used_names: set[str] = {node.name for node in graph.nodes} | set(graph.tensors())
            self._constants: dict[tuple[str, str, bytes, tuple[int, ...]], Tensor] = {}
            self._made: dict[Hashable, Any] = {}

    def scope(self, name: str) -> Emitter:
        """Return an emitter whose names start with this scope and ``name``."""
        return Emitter(self.graph, self._qualified(name), self._root)

    def at_root(self, scope: str) -> Emitter:
        """Return an emitter of the same graph with an absolute ``scope``."""
        return Emitter(self.graph, scope, self._root)

    def main_graph(self, scope: str) -> Emitter:
        """Return an emitter of the graph that all others are inside of, with an absolute ``scope``."""
        return Emitter(self._root.graph, scope, self._root)

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returned to the first emitter of this graph that asked for ``key``."""
        made = self._root._made
        if key not in made:
            made[key] = make()
        return made[key]

    def inner_graph(self, name: str) -> Emitter:
        """Return an emitter of a new graph, for an attribute of a node; names and constants are the whole model's."""
        scope = self._qualified(name)
        return Emitter(gs.Graph(opset=self.graph.opset, name=scope), scope, self._root)

    def op(
        self,
        op_type: str,
        inputs: Sequence[Tensor],
        name: str,
        *,
        dtype: str | None = None,
        shape: Sequence[int | str] | None = None,
        domain: str | None = None,
        **attributes: Any,
    ) -> Tensor:
        """Emit a node with one output; return the output tensor, which carries the node's name."""
        return self.multi_op(op_type, inputs, name, [(None, dtype, shape)], domain=domain, **attributes)[0]

    def multi_op(
        self,
        op_type: str,
        inputs: Sequence[Tensor],
        name: str,
        outputs: Sequence[tuple[str | None, str | None, Sequence[int | str] | None]],
        *,
        domain: str | None = None,
        **attributes: Any,
    ) -> list[Tensor]:
        """Emit a node with several outputs, each given as (suffix or None, dtype or None, shape or None)."""
        node_name = self._unique(self._qualified(name))
        tensors = []
        for suffix, dtype, shape in outputs:
            tensor_name = node_name if suffix is None else self._unique(f"{node_name}.{suffix}")
            tensors.append(
                gs.Variable(
                    tensor_name,
                    dtype=None if dtype is None else onnx_type(dtype),
                    shape=None if shape is None else list(shape),
                )
            )
        self.graph.nodes.append(gs.Node(op_type, node_name, dict(attributes), list(inputs), tensors, domain=domain))
        return tensors

    def constant(self, name: str, values: np.ndarray[Any, Any]) -> Tensor:
        """Return a constant shared by the whole graph under ``constants.<name>``; it has at least one dimension."""
        return self._shared_constant(name, np.ascontiguousarray(values))

    def scalar(self, name: str, value: float, dtype: str) -> Tensor:
        """Return a constant without dimensions, as the scales of quantising operators are."""
        return self._shared_constant(name, np.array(value, numpy_dtype(dtype)))

    def _shared_constant(self, name: str, values: np.ndarray[Any, Any]) -> Tensor:
        key = (name, values.dtype.str, values.tobytes(), values.shape)
        constants = self._root._constants
        if key not in constants:
            constants[key] = gs.Constant(self._unique(f"constants.{name}"), values)
        return constants[key]

    def floats(self, name: str, *values: float, scalar: bool = False) -> Tensor:
        """Return a float32 constant: a vector, or a scalar when asked."""
        array = np.array(values[0] if scalar else values, np.float32)
        return self.constant(name, array)

    def ints(self, *values: int) -> Tensor:
        """Return an int64 vector constant (axes, shapes, slice bounds), named after its values."""
        text = "_".join(str(value).replace("-", "minus") for value in values)
        return self.constant(f"int64.{text}", np.array(values, np.int64))

    # -- the handful of shape operators that every graph needs --------------------------------------------------

    def reshape(
        self,
        tensor: Tensor,
        shape: Sequence[int],
        name: str,
        *,
        dtype: str | None = None,
        out_shape: Sequence[int | str] | None = None,
    ) -> Tensor:
        """Reshape; ``shape`` follows ONNX (0 copies the dimension, -1 is inferred)."""
        return self.op("Reshape", [tensor, self.ints(*shape)], name, dtype=dtype, shape=out_shape)

    def transpose(self, tensor: Tensor, permutation: Sequence[int], name: str) -> Tensor:
        """Permute the axes."""
        return self.op("Transpose", [tensor], name, perm=list(permutation))

    def slice_axis(self, tensor: Tensor, axis: int, start: int, stop: int | None, name: str) -> Tensor:
        """Take ``start:stop`` of ``axis``; ``None`` means to the end."""
        end = np.iinfo(np.int64).max if stop is None else stop
        end_constant = self.constant("int64.end", np.array([end])) if stop is None else self.ints(end)
        return self.op("Slice", [tensor, self.ints(start), end_constant, self.ints(axis)], name)

    def split(
        self,
        tensor: Tensor,
        sizes: Sequence[int],
        axis: int,
        name: str,
        parts: Sequence[str],
        *,
        dtype: str | None = None,
        shapes: Sequence[Sequence[int | str]] | None = None,
    ) -> list[Tensor]:
        """Split ``axis`` into ``sizes``; the outputs are called ``<name>.<part>``."""
        outputs = [(part, dtype, None if shapes is None else shapes[index]) for index, part in enumerate(parts)]
        return self.multi_op("Split", [tensor, self.ints(*sizes)], name, outputs, axis=axis)

    def halves(self, tensor: Tensor, axis: int, name: str, parts: Sequence[str]) -> list[Tensor]:
        """Split ``axis`` into two equal parts; the outputs are called ``<name>.<part>``."""
        return self.multi_op("Split", [tensor], name, [(part, None, None) for part in parts], axis=axis, num_outputs=2)

    def cast(self, tensor: Tensor, dtype: str, name: str, *, shape: Sequence[int | str] | None = None) -> Tensor:
        """Cast to ``dtype`` (``float32``, ``float16``, ``bfloat16``, ``int32``, …)."""
        return self.op("Cast", [tensor], name, dtype=dtype, shape=shape, to=onnx_type(dtype))

    def cast_if_needed(
        self,
        tensor: Tensor,
        source_dtype: str,
        dtype: str,
        name: str,
        *,
        shape: Sequence[int | str] | None = None,
    ) -> Tensor:
        """Cast unless ``source_dtype`` already is ``dtype``, so that a float32 build has no Cast nodes."""
        if source_dtype == dtype:
            return tensor
        return self.cast(tensor, dtype, name, shape=shape)

    def declare(self, tensor: Tensor, dtype: str, shape: Sequence[int | str]) -> Tensor:
        """Write ``dtype`` and ``shape`` onto ``tensor``, for passes that decide by them; return the tensor."""
        tensor.dtype, tensor.shape = onnx_type(dtype), list(shape)
        return tensor

    # -- inputs, weights, outputs -------------------------------------------------------------------------------

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> Tensor:
        """Declare a graph input."""
        tensor = gs.Variable(name, dtype=onnx_type(dtype), shape=list(shape))
        self._root._used_names.add(name)
        self.graph.inputs.append(tensor)
        return tensor

    def output(self, tensor: Tensor, name: str, dtype: str, shape: Sequence[int | str]) -> None:
        """Declare ``tensor`` as graph output ``name``; an Identity is emitted only where renaming cannot do."""
        already_output = any(output is tensor for output in self.graph.outputs)
        if not tensor.inputs or already_output:
            tensor = self.op("Identity", [tensor], f"outputs.{name}")
        tensor.name = self._unique(name)
        tensor.dtype = onnx_type(dtype)
        tensor.shape = list(shape)
        self.graph.outputs.append(tensor)

    def external_weight(
        self, name: str, dtype: str, shape: Sequence[int], location: str, offset_bytes: int, byte_count: int
    ) -> Tensor:
        """Return the constant ``name`` whose bytes lie in the external file ``location``; nothing is read."""
        proto = onnx.TensorProto(name=name, data_type=onnx_type(dtype), dims=list(shape))
        proto.data_location = onnx.TensorProto.EXTERNAL
        facts = {"location": location, "offset": str(offset_bytes), "length": str(byte_count)}
        for key, value in facts.items():
            proto.external_data.add(key=key, value=value)
        self._root._used_names.add(name)
        return gs.Constant(name, LazyValues(proto))

    def _qualified(self, name: str) -> str:
        return f"{self._scope}.{name}" if self._scope else name

    def _unique(self, name: str) -> str:
        used = self._root._used_names
        candidate, count = name, 1
        while candidate in used:
            count += 1
            candidate = f"{name}.{count}"
        used.add(candidate)
        return candidate
