"""Build one plan; this file is a program of its own, started in a process of its own (see builder_process.py).

It knows nothing of rowpack and imports nothing but the standard library and the module it is told: what happened in
a process before a build changes a plan's bytes, so as little as possible happens here, and always the same.

    descriptor 0   a socket to the parent: one JSON object a line in both directions; after the first line the
                   graph's bytes, and with its first byte the descriptor of the file that is to be mapped
    descriptor 1   the plan's bytes, nothing else
    descriptor 2   whatever libraries print

Messages to the parent are ``{"kind": …, …}`` with kind ``library``, ``network``, ``log``, ``phase``, ``parser_error``,
``tensors``, ``done`` or ``failed``.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import json
import mmap
import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

PHASE_SECONDS = 0.2
"""Least time between two reports of one build phase."""

_PARENT_DEATH_SIGNAL = 1  # linux/prctl.h: PR_SET_PDEATHSIG
_PIECE_BYTES = 1 << 20
_CAPABILITY_ATTRIBUTES = (75, 76)  # cuda.h: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


class Channel:
    """The socket to the parent; a file descriptor may come with the first bytes and no later."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._sending = threading.Lock()
        self._received, descriptors, _, _ = socket.recv_fds(self._socket, _PIECE_BYTES, 1)
        self.weight_file = descriptors[0] if descriptors else -1

    def send(self, kind: str, **facts: Any) -> None:
        """Send one message; the library calls back from several threads."""
        message = json.dumps({"kind": kind, **facts}).encode() + b"\n"
        with self._sending:
            self._socket.sendall(message)

    def line(self) -> dict[str, Any]:
        """Read one JSON line; an end of the stream ends the process, as the parent is gone."""
        while b"\n" not in self._received:
            self._fill()
        line, self._received = self._received.split(b"\n", 1)
        request: dict[str, Any] = json.loads(line)
        return request

    def exactly(self, byte_count: int) -> bytes:
        """Read ``byte_count`` bytes."""
        while len(self._received) < byte_count:
            self._fill()
        data, self._received = self._received[:byte_count], self._received[byte_count:]
        return data

    def _fill(self) -> None:
        piece = self._socket.recv(_PIECE_BYTES)
        if not piece:
            sys.exit("the parent is gone")
        self._received += piece


def main() -> int:
    """Serve one request."""
    _die_with_parent()
    channel = Channel(os.dup(0))
    # Libraries that print to standard output must not print into the plan.
    plan_descriptor = os.dup(1)
    os.dup2(2, 1)
    request = channel.line()
    # Before the library is loaded, which may print more than its pipe holds while the parent still sends.
    request["graph"] = channel.exactly(request["graph_bytes"])
    sys.path[:] = request["sys_path"]
    try:
        trt = import_first(request["modules"])
    except Exception as error:  # whatever a library's import raises is told, not shown as a traceback
        channel.send("library", error=f"{type(error).__name__}: {error}")
        return 0
    channel.send("library", **library_facts(trt))
    if request["task"] == "facts":
        return 0
    task = {"build": build, "tensors": tensors}[request["task"]]
    try:
        task(trt, channel, request, plan_descriptor)
    except Exception as error:  # as above
        channel.send("failed", text=f"{type(error).__name__}: {error}")
    return 0


def import_first(modules: list[str]) -> Any:
    """Import the first of ``modules`` that is there; a module that is there and cannot be loaded raises."""
    missing: ImportError | None = None
    for name in modules:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            missing = missing or error
    raise missing or ImportError("no module was named")


def library_facts(trt: Any) -> dict[str, Any]:
    """Return version, compute capabilities that can be chosen (``SM89``), and the first GPU's own (``8.9``)."""
    members = getattr(getattr(trt, "ComputeCapability", None), "__members__", {})
    capabilities = [name for name in members if re.fullmatch(r"SM\d+", name)]
    return {"version": str(trt.__version__), "capabilities": capabilities, "device": device_capability()}


def device_capability() -> str | None:
    """Return the compute capability of the first CUDA device, or None when there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, values = ctypes.c_int(), []
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return None
    for attribute in _CAPABILITY_ATTRIBUTES:
        value = ctypes.c_int()
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        values.append(str(value.value))
    return ".".join(values)


def build(trt: Any, channel: Channel, request: dict[str, Any], plan_descriptor: int) -> None:
    """Parse the graph, tell the network's tensors, and write the plan once the parent agrees."""
    weights = map_file(channel.weight_file)
    logger = make_logger(trt, channel)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    started = time.monotonic()
    if not parse(parser, request["graph"], weights, request["initializers"]):
        for index in range(parser.num_errors):
            channel.send("parser_error", **parser_error(parser.get_error(index)))
        channel.send("done", parsed=False)
        return
    channel.send("network", layers=network.num_layers, **network_tensors(network))
    channel.line()
    config, cache = configure(trt, builder, request)
    monitor = make_monitor(trt, channel)
    config.progress_monitor = monitor
    pipe = PlanPipe(plan_descriptor)
    writer = derived(trt.IStreamWriter, write=lambda self, data: pipe.write(data))
    built = builder.build_serialized_network_to_stream(network, config, writer)
    pipe.close()
    facts: dict[str, Any] = {"seconds": time.monotonic() - started, **memory_facts()}
    if cache is not None and built:
        facts["timing_cache"] = base64.b64encode(bytes(cache.serialize())).decode()
    channel.send(
        "done", parsed=True, built=bool(built), written_bytes=pipe.byte_count, writer_error=pipe.error, **facts
    )


def parse(parser: Any, graph: bytes, weights: mmap.mmap, initializers: list[tuple[str, int, int]]) -> bool:
    """Parse ``graph`` with its weights taken from the mapping by (name, offset, length): nothing is copied."""
    if not parser.load_model_proto(graph):
        return False
    start = ctypes.addressof(ctypes.c_char.from_buffer(weights))
    for name, offset, byte_count in initializers:
        if not parser.load_initializer(name, start + offset, byte_count):
            return False
    return bool(parser.parse_model_proto())


def map_file(descriptor: int) -> mmap.mmap:
    """Map a file; private, so that its address may be taken although nothing is written."""
    return mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE)


def configure(trt: Any, builder: Any, request: dict[str, Any]) -> tuple[Any, Any]:
    """Return the builder configuration the request describes, and the timing cache if it has one."""
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request["workspace_bytes"])
    for name, wanted in request["flags"].items():
        flag = getattr(trt.BuilderFlag, name)
        config.set_flag(flag) if wanted else config.clear_flag(flag)
    if request["hardware_compatibility"] is not None:
        config.hardware_compatibility_level = getattr(trt.HardwareCompatibilityLevel, request["hardware_compatibility"])
    capabilities = request["capabilities"]
    if capabilities:
        config.num_compute_capabilities = len(capabilities)
        for index, name in enumerate(capabilities):
            if not config.set_compute_capability(getattr(trt.ComputeCapability, name), index):
                raise RuntimeError(f"the library refuses the compute capability {name}")
    profile = builder.create_optimization_profile()
    for name, shapes in request["profile"].items():
        profile.set_shape(name, *shapes)
    config.add_optimization_profile(profile)
    cache = None
    if request["timing_cache"] is not None:
        cache = config.create_timing_cache(base64.b64decode(request["timing_cache"]))
        config.set_timing_cache(cache, False)
    return config, cache


def tensors(trt: Any, channel: Channel, request: dict[str, Any], plan_descriptor: int) -> None:
    """Deserialise a finished plan (needs a GPU) and tell its inputs and outputs."""
    mapping = map_file(channel.weight_file)
    start, byte_count = request["plan_range"]
    logger = make_logger(trt, channel)
    engine = trt.Runtime(logger).deserialize_cuda_engine(memoryview(mapping)[start : start + byte_count])
    if engine is None:
        channel.send("done", read=False)
        return
    found: dict[str, list[dict[str, Any]]] = {"inputs": [], "outputs": []}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        shape = list(engine.get_tensor_shape(name))
        facts: dict[str, Any] = {"name": name, "dtype": engine.get_tensor_dtype(name).name, "shape": shape}
        if is_input and -1 in shape:
            facts["profile"] = [list(extents) for extents in engine.get_tensor_profile_shape(name, 0)]
        found["inputs" if is_input else "outputs"].append(facts)
    channel.send("tensors", **found)
    channel.send("done", read=True)


def network_tensors(network: Any) -> dict[str, list[dict[str, Any]]]:
    """Return every input and output of a network; −1 stands for a free dimension."""

    def facts(tensor: Any) -> dict[str, Any]:
        return {"name": tensor.name, "dtype": tensor.dtype.name, "shape": list(tensor.shape)}

    return {
        "inputs": [facts(network.get_input(index)) for index in range(network.num_inputs)],
        "outputs": [facts(network.get_output(index)) for index in range(network.num_outputs)],
    }


def parser_error(error: Any) -> dict[str, Any]:
    """Return what the parser says of the node it cannot take."""
    return {
        "node": error.node_name(),
        "operator": error.node_operator(),
        "code": error.code().name,
        "text": error.desc(),
    }


def derived(base: Any, **methods: Any) -> Any:
    """Return an instance of a class of the library's own kind ``base`` with ``methods``."""

    def initialise(self: Any) -> None:
        base.__init__(self)  # the library's classes must be initialised by name

    return type(base.__name__, (base,), {"__init__": initialise, **methods})()


def make_logger(trt: Any, channel: Channel) -> Any:
    """Return a logger that tells the parent everything but the library's verbose notes."""

    def log(self: Any, severity: Any, text: str) -> None:
        if severity != trt.ILogger.Severity.VERBOSE:
            channel.send("log", severity=severity.name, text=text)

    return derived(trt.ILogger, log=log)


def make_monitor(trt: Any, channel: Channel) -> Any:
    """Return a monitor that tells the parent which phase is at which step."""
    step_counts: dict[str, int] = {}
    told = 0.0

    def tell(phase: str, step: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= PHASE_SECONDS:
            told = now
            channel.send("phase", phase=phase, step=step, steps=step_counts.get(phase, 0))

    def phase_start(self: Any, phase: str, parent: str | None, steps: int) -> None:
        step_counts[phase] = steps
        tell(phase, 0)

    def step_complete(self: Any, phase: str, step: int) -> bool:
        tell(phase, step + 1)
        return True

    def phase_finish(self: Any, phase: str) -> None:
        step_counts.pop(phase, None)

    return derived(
        trt.IProgressMonitor, phase_start=phase_start, step_complete=step_complete, phase_finish=phase_finish
    )


class PlanPipe:
    """The pipe that a plan is written to; it remembers its own error, because the library ignores a failing writer."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.byte_count = 0
        self.error: str | None = None

    def write(self, data: Any) -> int:
        """Write all of ``data`` (a buffer); return its length, whatever happened."""
        view = memoryview(data).cast("B")
        length = len(view)
        if self.error is None:
            try:
                while view:
                    count = os.write(self._descriptor, view[:_PIECE_BYTES])
                    self.byte_count += count
                    view = view[count:]
            except OSError as error:
                self.error = str(error)
        return length

    def close(self) -> None:
        """Let the parent see the end of the plan."""
        os.close(self._descriptor)


def memory_facts() -> dict[str, int]:
    """Return the most memory this process ever held, pages of mapped files included."""
    status = Path("/proc/self/status").read_text("ascii", errors="replace")
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB$", status, re.MULTILINE))
    return {"peak_resident_bytes": 1024 * int(fields.get("VmHWM", 0))}


def _die_with_parent() -> None:
    """Let the kernel end this process with its parent, and leave interrupts of the terminal to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
