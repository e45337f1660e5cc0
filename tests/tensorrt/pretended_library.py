"""A stand-in for the ``tensorrt`` module, loaded by the builder's child process instead of the real one.

It has the parts of the library that the child drives and enforces the library's own rules: a model is loaded before its
initializers, each initializer has its declared size, every free dimension has a profile. Its plan is a JSON record of
all it was asked for. What should go wrong is read from ``behaviour.json`` beside this file.
"""

import ctypes
import enum
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import onnx

BEHAVIOUR = json.loads(Path(__file__).with_name("behaviour.json").read_text("utf-8"))

__version__ = BEHAVIOUR.get("version", "11.4.0")

if "print_at_import" in BEHAVIOUR:
    print("x" * BEHAVIOUR["print_at_import"], file=sys.stderr, flush=True)
if "import_error" in BEHAVIOUR:
    raise ImportError(BEHAVIOUR["import_error"])

DataType = enum.Enum("DataType", "FLOAT HALF BF16 INT32 INT64 BOOL FP8 FP4")
BuilderFlag = enum.Enum("BuilderFlag", "TF32 VERSION_COMPATIBLE")
HardwareCompatibilityLevel = enum.Enum("HardwareCompatibilityLevel", "NONE AMPERE_PLUS SAME_COMPUTE_CAPABILITY")
MemoryPoolType = enum.Enum("MemoryPoolType", "WORKSPACE")
TensorIOMode = enum.Enum("TensorIOMode", "INPUT OUTPUT")
if BEHAVIOUR.get("capabilities"):
    ComputeCapability = enum.Enum("ComputeCapability", ["NONE", "CURRENT", *BEHAVIOUR["capabilities"]])

_ELEMENT_TYPES = {
    onnx.TensorProto.FLOAT: DataType.FLOAT,
    onnx.TensorProto.FLOAT16: DataType.HALF,
    onnx.TensorProto.BFLOAT16: DataType.BF16,
    onnx.TensorProto.INT32: DataType.INT32,
    onnx.TensorProto.INT64: DataType.INT64,
}


class ILogger:
    Severity = enum.Enum("Severity", "INTERNAL_ERROR ERROR WARNING INFO VERBOSE")

    def __init__(self):
        self.ready = True


class IProgressMonitor:
    def __init__(self):
        self.ready = True


class IStreamWriter:
    def __init__(self):
        self.ready = True


class Tensor:
    def __init__(self, value):
        tensor_type = value.type.tensor_type
        self.name = BEHAVIOUR.get("rename", {}).get(value.name, value.name)
        self.dtype = _ELEMENT_TYPES[tensor_type.elem_type]
        self.shape = tuple(-1 if part.dim_param else part.dim_value for part in tensor_type.shape.dim)
        changes = BEHAVIOUR.get("change", {}).get(value.name, {})
        if "dtype" in changes:
            self.dtype = DataType[changes["dtype"]]
        if "shape" in changes:
            self.shape = tuple(changes["shape"])


class Network:
    def __init__(self):
        self.tensors = {"inputs": [], "outputs": []}
        self.num_layers = 0

    num_inputs = property(lambda self: len(self.tensors["inputs"]))
    num_outputs = property(lambda self: len(self.tensors["outputs"]))

    def get_input(self, index):
        return self.tensors["inputs"][index]

    def get_output(self, index):
        return self.tensors["outputs"][index]


class ParserError:
    def __init__(self, facts):
        self._facts = facts

    def node_name(self):
        return self._facts["node"]

    def node_operator(self):
        return self._facts["operator"]

    def code(self):
        return enum.Enum("ErrorCode", ["INVALID_NODE"]).INVALID_NODE

    def desc(self):
        return self._facts["text"]


class OnnxParser:
    def __init__(self, network, logger):
        assert logger.ready
        self._network = network
        self._model = None
        self._initializers = {}
        self.num_errors = 0

    def load_model_proto(self, data):
        self._model = onnx.load_model_from_string(data)
        return True

    def load_initializer(self, name, address, size):
        assert self._model is not None, "a model is loaded before its initializers"
        declared = {tensor.name: tensor for tensor in self._model.graph.initializer}[name]
        facts = {entry.key: entry.value for entry in declared.external_data}
        assert int(facts["length"]) == size
        self._initializers[name] = hashlib.sha256(ctypes.string_at(address, size)).hexdigest()
        return True

    def parse_model_proto(self):
        external = {tensor.name for tensor in self._model.graph.initializer if tensor.external_data}
        assert external == set(self._initializers), "weights that nobody gave"
        if "parser_error" in BEHAVIOUR:
            self.num_errors = 1
            return False
        graph = self._model.graph
        self._network.tensors = {
            "inputs": [Tensor(value) for value in graph.input],
            "outputs": [Tensor(value) for value in graph.output if value.name not in BEHAVIOUR.get("drop", ())],
        }
        self._network.num_layers = len(graph.node)
        self._network.initializers = self._initializers
        return True

    def get_error(self, index):
        return ParserError(BEHAVIOUR["parser_error"])


class Profile:
    def __init__(self):
        self.shapes = {}

    def set_shape(self, name, fewest, usual, most):
        self.shapes[name] = [list(fewest), list(usual), list(most)]


class TimingCache:
    def __init__(self, data):
        self.data = data

    def serialize(self):
        return self.data


class Config:
    progress_monitor = None
    hardware_compatibility_level = HardwareCompatibilityLevel.NONE

    def __init__(self):
        self.flags = {"TF32"}
        self.pools = {}
        self.profiles = []
        self.capabilities = []
        self.cache = None

    def set_memory_pool_limit(self, pool, byte_count):
        self.pools[pool.name] = byte_count

    def set_flag(self, flag):
        self.flags.add(flag.name)

    def clear_flag(self, flag):
        self.flags.discard(flag.name)

    def add_optimization_profile(self, profile):
        self.profiles.append(profile)

    def create_timing_cache(self, data):
        return TimingCache(data)

    def set_timing_cache(self, cache, ignore_mismatch):
        if BEHAVIOUR.get("refuse_cache"):
            raise RuntimeError("the cache is of another device")
        self.cache = cache

    @property
    def num_compute_capabilities(self):
        return len(self.capabilities)

    @num_compute_capabilities.setter
    def num_compute_capabilities(self, count):
        self.capabilities = [None] * count

    def set_compute_capability(self, capability, index):
        self.capabilities[index] = capability.name
        return capability.name not in BEHAVIOUR.get("refuse_capabilities", ())


class Builder:
    def __init__(self, logger):
        self._logger = logger

    def create_network(self, flags):
        return Network()

    def create_builder_config(self):
        return Config()

    def create_optimization_profile(self):
        return Profile()

    def build_serialized_network_to_stream(self, network, config, writer):
        self._check_profiles(network, config)
        monitor = config.progress_monitor
        monitor.phase_start("Building engine", None, 2)
        print("a library that prints to standard output")
        os.write(1, b"and one that writes there")
        for severity, text in BEHAVIOUR.get("log", ()):
            self._logger.log(ILogger.Severity[severity], text)
        if "print" in BEHAVIOUR:
            print(BEHAVIOUR["print"], file=sys.stderr, flush=True)
        if "signal" in BEHAVIOUR:
            os.kill(os.getpid(), signal.Signals[BEHAVIOUR["signal"]])
        if "process_file" in BEHAVIOUR:
            Path(BEHAVIOUR["process_file"]).write_text(str(os.getpid()), "utf-8")
        if "allocate_bytes" in BEHAVIOUR:
            bytearray(BEHAVIOUR["allocate_bytes"])
        if BEHAVIOUR.get("hang"):
            Path(BEHAVIOUR["hang"]).write_text(str(os.getpid()), "utf-8")
            time.sleep(600)
        if BEHAVIOUR.get("built") is False:
            return None
        if config.cache is not None:
            config.cache.data += b"measured;"
        record = {
            "flags": sorted(config.flags),
            "pools": config.pools,
            "profile": config.profiles[0].shapes,
            "capabilities": config.capabilities,
            "hardware_compatibility": config.hardware_compatibility_level.name,
            "initializers": network.initializers,
            "arguments": sys.argv,
            "environment": dict(os.environ),
            "folder": str(Path.cwd()),
            "tensors": [
                {"name": tensor.name, "mode": mode, "dtype": tensor.dtype.name, "shape": tensor.shape}
                | (
                    {"profile": config.profiles[0].shapes[tensor.name]}
                    if mode == "INPUT" and -1 in tensor.shape
                    else {}
                )
                for mode, tensors in (("INPUT", network.tensors["inputs"]), ("OUTPUT", network.tensors["outputs"]))
                for tensor in tensors
            ],
        }
        data = json.dumps(record, sort_keys=True).encode() + b"\n" + bytes(BEHAVIOUR.get("filler_bytes", 0))
        for start in range(0, len(data), 1 << 20):
            # As the library does: what the writer returns or raises changes nothing.
            writer.write(data[start : start + (1 << 20)])
        monitor.step_complete("Building engine", 1)
        monitor.phase_finish("Building engine")
        self._log_memory()
        return not BEHAVIOUR.get("plan_and_false", False)

    def _check_profiles(self, network, config):
        assert config.profiles, "Network has dynamic inputs, but no optimization profile has been defined"
        for tensor in network.tensors["inputs"]:
            if -1 in tensor.shape:
                for shape in config.profiles[0].shapes[tensor.name]:
                    assert all(real in (-1, part) for real, part in zip(tensor.shape, shape, strict=True))

    def _log_memory(self):
        for name, byte_count in BEHAVIOUR.get("memory", {}).items():
            self._logger.log(ILogger.Severity.INFO, f"{name} Memory: {byte_count} bytes")


class Engine:
    """A loaded plan with the tensors of the network it came from, or those that ``behaviour.json`` gives it."""

    def __init__(self, facts):
        self._tensors = facts
        self.num_io_tensors = len(facts)

    def get_tensor_name(self, index):
        return self._tensors[index]["name"]

    def _tensor(self, name):
        return next(tensor for tensor in self._tensors if tensor["name"] == name)

    def get_tensor_mode(self, name):
        return TensorIOMode[self._tensor(name)["mode"]]

    def get_tensor_shape(self, name):
        return tuple(self._tensor(name)["shape"])

    def get_tensor_dtype(self, name):
        return DataType[self._tensor(name)["dtype"]]

    def get_tensor_profile_shape(self, name, profile):
        return [tuple(shape) for shape in self._tensor(name)["profile"]]


class Runtime:
    def __init__(self, logger):
        self._logger = logger

    def deserialize_cuda_engine(self, plan):
        record = json.loads(bytes(plan).split(b"\n")[0])
        if BEHAVIOUR.get("refuse_plan"):
            self._logger.log(ILogger.Severity.ERROR, "Version tag does not match")
            return None
        return Engine(BEHAVIOUR.get("engine_tensors", record["tensors"]))
