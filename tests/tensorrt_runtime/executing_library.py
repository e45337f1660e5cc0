"""A TensorRT library that runs the very graphs a plan would be compiled from, by ONNX Runtime, on a recording device.

It enforces the rules of the real one: shapes inside the profile, every address set and aligned, inputs and outputs
apart from each other, one stream; and it looks at addresses when a run is put on the stream, at memory when it runs.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from recording_device import ALIGNMENT, RecordingDevice, require

from rowpack_loaders.runtimes.tensorrt.interfaces import DeviceError, DeviceMemoryError, PlanTensor
from rowpack_loaders.section_content import SectionContent, content_pieces

DTYPES = {"float32": np.float32, "float16": np.float16, "int32": np.int32}


@dataclass(frozen=True)
class CompiledGraph:
    """What stands behind one plan: its graph on disk, beside its weights, and its tensors."""

    path: Path
    tensors: tuple[PlanTensor, ...]
    weight_bytes: int = 1000


class ExecutingContext:
    """An execution context."""

    def __init__(self, device: RecordingDevice, engine: ExecutingEngine) -> None:
        self._device, self._engine = device, engine
        self._addresses: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def set_shape(self, name: str, shape: tuple[int, ...]) -> None:
        tensor = self._engine.tensor(name)
        require(tensor.is_input and tensor.profile is not None, f"{name} has no free extents")
        assert tensor.profile is not None
        smallest, largest = tensor.profile
        inside = all(low <= extent <= high for low, extent, high in zip(smallest, shape, largest, strict=True))
        if not inside:
            raise DeviceError(f"the shape {shape} of {name} is outside the profile")
        self._shapes[name] = shape

    def set_address(self, name: str, address: int) -> None:
        self._engine.tensor(name)
        require(address % ALIGNMENT == 0, f"the address of {name} is not on a multiple of {ALIGNMENT}")
        self._addresses[name] = address

    def can_be_captured(self) -> bool:
        return self._engine.can_be_captured

    def execute(self) -> None:
        require(self._engine.alive, "an engine is not gone while its context runs")
        if self._engine.fails_next_run:
            self._engine.fails_next_run = False
            raise DeviceError("the run was not started")
        rows = self._shapes["token_id"][0] if "token_id" in self._shapes else 1
        places = {tensor.name: (tensor, self._place(tensor, rows)) for tensor in self._engine.tensors}
        ranges = sorted((place[0], place[0] + place[1], name) for name, (_, place) in places.items())
        for (_, end, before), (start, _, after) in pairwise(ranges):
            require(end <= start, f"{before} and {after} overlap")
        self._device.log.append("execute")
        self._device.enqueue(lambda: self._run(places))

    def _place(self, tensor: PlanTensor, rows: int) -> tuple[int, int, tuple[int, ...]]:
        require(tensor.name in self._addresses, f"the address of {tensor.name} was not set")
        if tensor.is_input and -1 in tensor.shape:
            require(tensor.name in self._shapes, f"the shape of {tensor.name} was not set")
            shape = self._shapes[tensor.name]
        else:
            shape = tuple(rows if extent == -1 else extent for extent in tensor.shape)
        byte_count = math.prod(shape) * np.dtype(DTYPES[tensor.dtype]).itemsize
        self._device.at(self._addresses[tensor.name], byte_count)
        return self._addresses[tensor.name], byte_count, shape

    def _run(self, places: Mapping[str, tuple[PlanTensor, tuple[int, int, tuple[int, ...]]]]) -> None:
        def array(tensor: PlanTensor, place: tuple[int, int, tuple[int, ...]]) -> Any:
            return np.frombuffer(self._device.at(place[0], place[1]), DTYPES[tensor.dtype]).reshape(place[2])

        inputs = {name: array(*place) for name, place in places.items() if place[0].is_input}
        outputs = [name for name, place in places.items() if not place[0].is_input]
        for name, value in zip(outputs, self._engine.session.run(outputs, inputs), strict=True):
            target = array(*places[name])
            require(target.shape == value.shape, f"{name} has the shape {value.shape}, not {target.shape}")
            target[...] = value


class ExecutingEngine:
    """A loaded plan."""

    def __init__(self, device: RecordingDevice, graph: CompiledGraph) -> None:
        self._device = device
        self.tensors = graph.tensors
        self.alive, self.fails_next_run, self.can_be_captured = True, False, True
        self.session = _session(graph.path)
        weakref.finalize(self, device.free, device.allocate(graph.weight_bytes))

    def create_context(self) -> ExecutingContext:
        return ExecutingContext(self._device, self)

    def tensor(self, name: str) -> PlanTensor:
        found = [tensor for tensor in self.tensors if tensor.name == name]
        require(found, f"there is no tensor {name}")
        return found[0]


class ExecutingLibrary:
    """The library; plans are the names of ``graphs``. ``changes`` alters the tensors it tells of."""

    version = "1.7.1.116"

    def __init__(self, device: RecordingDevice, graphs: Mapping[str, CompiledGraph]) -> None:
        self._device, self._graphs = device, graphs
        self.engines: weakref.WeakValueDictionary[str, ExecutingEngine] = weakref.WeakValueDictionary()
        self.changes: dict[str, dict[str, Any]] = {}
        self.kept = 0

    def load_engine(self, plan: SectionContent) -> ExecutingEngine:
        role = b"".join(map(bytes, content_pieces(plan, 999))).split()[0].decode()
        if role not in self._graphs:
            raise DeviceError("Version tag does not match")
        graph = self._graphs[role]
        if graph.weight_bytes > self._device.free_bytes():
            raise DeviceMemoryError("out of memory")
        tensors = tuple(replace(tensor, **self.changes.get(tensor.name, {})) for tensor in graph.tensors)
        engine = ExecutingEngine(self._device, replace(graph, tensors=tensors))
        self.engines[role] = engine
        return engine

    def keep_compiled(self) -> None:
        self.kept += 1


@cache
def _session(path: Path) -> Any:
    """Return a session of a graph; what is computed depends on its inputs alone, so all engines share it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
