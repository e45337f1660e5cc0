"""The thin layer over NVIDIA's libraries: each call is made as they want it, and each way they fail is noticed."""

from __future__ import annotations

import enum
import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rowpack_loaders.runtimes.tensorrt.interfaces import DeviceError, DeviceMemoryError
from rowpack_loaders.runtimes.tensorrt.nvidia_library import NvidiaLibrary, import_module
from rowpack_loaders.section_content import RawContent

PLAN = bytes(range(256)) * 8


def raw_plan() -> RawContent:
    """Return a plan that lies in one piece."""

    def read(buffer: memoryview, offset_bytes: int) -> None:
        buffer[:] = PLAN[offset_bytes : offset_bytes + len(buffer)]

    return RawContent(len(PLAN), read, lambda: memoryview(PLAN))


class PiecewisePlan:
    """A plan that is put together while it is read."""

    length_bytes = len(PLAN)

    def read_into(self, buffer: memoryview, offset_bytes: int) -> None:
        buffer[:] = PLAN[offset_bytes : offset_bytes + len(buffer)]


class TensorRt(ModuleType):
    """A module with the API that is used; ``fails`` names what returns None or False."""

    Severity = enum.Enum("Severity", "INTERNAL_ERROR ERROR WARNING INFO")
    TensorIOMode = enum.Enum("TensorIOMode", "INPUT OUTPUT")
    DataType = enum.Enum("DataType", "FLOAT HALF BF16 INT32 FP8")
    SeekPosition = enum.Enum("SeekPosition", "SET CUR END")
    __version__ = "1.7.1.116"

    def __init__(self, *, rtx: bool = True) -> None:
        super().__init__("tensorrt_rtx")
        self.fails: set[str] = set()
        self.says = "the reason"
        self.got: dict[str, Any] = {}
        module = self

        class Base:
            def __init__(self) -> None:
                self.begun = True

        class Runtime:
            def __init__(self, logger: Any) -> None:
                assert logger.begun
                self.logger = logger

            def deserialize_cuda_engine(self, plan: Any) -> Any:
                if "reader" in module.fails and not isinstance(plan, memoryview):
                    raise RuntimeError("[ERROR] Failed to open cuda driver.")
                module.got["plan"] = module.read(plan)
                return module.unless("deserialize", self.logger, module.engine(self.logger))

        self.ILogger = type("ILogger", (Base,), {"Severity": self.Severity})
        self.IStreamReaderV2 = type("IStreamReaderV2", (Base,), {"__init__": self.begin_reader})
        self.Runtime = Runtime
        if rtx:
            self.IRuntimeCache = object

    @staticmethod
    def begin_reader(reader: Any) -> None:
        """Begin a stream reader, or fail as the binding does where it finds no driver."""
        module = sys.modules["tensorrt_rtx"]
        if "reader class" in module.fails:
            raise RuntimeError("[ERROR] Failed to open cuda driver.")
        reader.begun = True

    def unless(self, name: str, logger: Any, value: Any) -> Any:
        """Return ``value``, or log and return what the library returns when it fails."""
        if name not in self.fails:
            return value
        logger.log(self.Severity.INFO, "not this")
        logger.log(self.Severity.ERROR, self.says)
        return None if not isinstance(value, bool) else False

    def read(self, plan: Any) -> bytes:
        """Read a plan as the library does: a buffer at once, a reader in pieces and with seeks."""
        if isinstance(plan, memoryview):
            return bytes(plan)
        assert plan.begun
        assert plan.seek(-16, self.SeekPosition.END)
        tail = plan.read(100, 0)
        assert not plan.seek(1, self.SeekPosition.END)
        assert plan.seek(0, self.SeekPosition.SET)
        head = plan.read(1000, 0)
        assert plan.seek(0, self.SeekPosition.CUR)
        rest = b"".join(iter(lambda: plan.read(300, 0), b""))
        assert rest.endswith(tail)
        return head + rest

    def engine(self, logger: Any) -> Any:
        """Return an engine with one fixed and one free input, and one output."""
        tensors = {
            "mask": ("INPUT", "FLOAT", (-1, 20)),
            "state": ("INPUT", "BF16", (3, 4)),
            "logits": ("OUTPUT", "FP8", (1, 8)),
        }
        cache = SimpleNamespace(
            serialize=lambda: b"compiled", deserialize=lambda blob: self.got.__setitem__("cache", blob)
        )
        config = SimpleNamespace(
            create_runtime_cache=lambda: cache, set_runtime_cache=lambda value: self.got.__setitem__("set", value)
        )
        context = SimpleNamespace(
            set_input_shape=lambda name, shape: self.unless("shape", logger, True),
            set_tensor_address=lambda name, address: self.unless("address", logger, True),
            execute_async_v3=lambda stream: (
                self.got.__setitem__("stream", stream) or self.unless("execute", logger, True)
            ),
            is_stream_capturable=lambda stream: "capture" not in self.fails,
        )
        return SimpleNamespace(
            num_io_tensors=len(tensors),
            get_tensor_name=lambda index: list(tensors)[index],
            get_tensor_mode=lambda name: self.TensorIOMode[tensors[name][0]],
            get_tensor_dtype=lambda name: self.DataType[tensors[name][1]],
            get_tensor_shape=lambda name: tensors[name][2],
            get_tensor_profile_shape=lambda name, index: [(1, 20), (32, 20), (64, 20)],
            create_runtime_config=lambda: config,
            create_execution_context=lambda config=None: (
                self.got.__setitem__("config", config) or self.unless("context", logger, context)
            ),
        )


@pytest.fixture
def trt(monkeypatch: pytest.MonkeyPatch) -> TensorRt:
    """Install the module as TensorRT for RTX."""
    module = TensorRt()
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", module)
    return module


def library(cache_path: Path | None = None) -> NvidiaLibrary:
    """Return the layer over the module."""
    device: Any = SimpleNamespace(stream=42)
    return NvidiaLibrary("trt_rtx", device, cache_path)


@pytest.mark.parametrize("plan", [raw_plan(), PiecewisePlan()], ids=["raw", "piecewise"])
def test_a_plan_arrives_whole_and_its_tensors_are_told(plan: Any, trt: TensorRt) -> None:
    engine = library().load_engine(plan)
    assert trt.got["plan"] == PLAN
    told = [(tensor.name, tensor.is_input, tensor.dtype, tensor.shape, tensor.profile) for tensor in engine.tensors]
    assert told == [
        ("mask", True, "float32", (-1, 20), ((1, 20), (64, 20))),
        ("state", True, "bfloat16", (3, 4), None),
        ("logits", False, "fp8", (1, 8), None),
    ]


@pytest.mark.parametrize("what", ["reader", "reader class"])
def test_a_library_that_takes_no_pieces_gets_the_whole(what: str, trt: TensorRt) -> None:
    trt.fails.add(what)
    plan: Any = PiecewisePlan()
    library().load_engine(plan)
    assert trt.got["plan"] == PLAN
    trt.fails.add("deserialize")
    with pytest.raises(DeviceError, match="the reason"):
        library().load_engine(plan)


def test_a_run_goes_to_the_devices_stream(trt: TensorRt) -> None:
    context = library().load_engine(raw_plan()).create_context()
    context.set_shape("mask", (3, 20))
    context.set_address("mask", 256)
    context.execute()
    assert trt.got["stream"] == 42
    assert context.can_be_captured()
    trt.fails.add("capture")
    assert not context.can_be_captured()


@pytest.mark.parametrize("what", ["deserialize", "context", "shape", "address", "execute"])
def test_a_failure_is_noticed_and_quoted(what: str, trt: TensorRt) -> None:
    def use() -> None:
        context = library().load_engine(raw_plan()).create_context()
        context.set_shape("mask", (1, 20))
        context.set_address("mask", 256)
        context.execute()

    use()
    trt.fails.add(what)
    with pytest.raises(DeviceError, match="the reason") as caught:
        use()
    assert "not this" not in str(caught.value)
    assert not isinstance(caught.value, DeviceMemoryError)
    trt.says = "Requested amount of GPU memory could not be allocated: out of memory"
    with pytest.raises(DeviceMemoryError):
        use()
    trt.says = ""
    with pytest.raises(DeviceError, match=r"was|were"):
        use()


def test_what_was_compiled_is_kept_and_offered_again(trt: TensorRt, tmp_path: Path) -> None:
    path = tmp_path / "x.runtime-cache"
    first = library(path)
    first.load_engine(raw_plan()).create_context()
    assert "cache" not in trt.got
    assert trt.got["config"] is not None
    first.keep_compiled()
    assert path.read_bytes() == b"compiled"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    library(path).load_engine(raw_plan()).create_context()
    assert trt.got["cache"] == b"compiled"


def test_a_cache_that_cannot_be_written_is_a_warning(trt: TensorRt, tmp_path: Path) -> None:
    made = library(tmp_path / "missing" / "x.runtime-cache")
    made.load_engine(raw_plan()).create_context()
    with pytest.warns(UserWarning, match="cannot be written"):
        made.keep_compiled()


def test_without_a_cache_nothing_is_configured_or_written(trt: TensorRt) -> None:
    made = library()
    made.load_engine(raw_plan()).create_context()
    assert trt.got["config"] is None
    made.keep_compiled()


def test_full_tensorrt_has_no_such_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = TensorRt(rtx=False)
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    device: Any = SimpleNamespace(stream=1)
    made = NvidiaLibrary("trt", device, tmp_path / "x.runtime-cache")
    made.load_engine(raw_plan()).create_context()
    made.keep_compiled()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorrt", "tensorrt_bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="tensorrt"):
        import_module("trt")


ENUMERATIONS = {
    "cudaError_t": enum.Enum("cudaError_t", "cudaSuccess cudaErrorMemoryAllocation cudaErrorNoDevice"),
    "cudaMemcpyKind": enum.Enum(
        "cudaMemcpyKind", "cudaMemcpyHostToDevice cudaMemcpyDeviceToHost cudaMemcpyDeviceToDevice"
    ),
    "cudaStreamCaptureMode": enum.Enum("cudaStreamCaptureMode", "cudaStreamCaptureModeRelaxed"),
}


class CudaRuntime(ModuleType):
    """``cuda.bindings.runtime`` as far as it is used: every function returns a status and perhaps a value."""

    def __init__(self) -> None:
        super().__init__("cuda.bindings.runtime")
        self.__dict__.update(ENUMERATIONS)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.fails: dict[str, str] = {}
        self.blocks: list[Any] = []
        self.values: dict[str, Any] = {
            "cudaGetDeviceProperties": SimpleNamespace(name=b"NVIDIA L4\0\0", major=8, minor=9),
            "cudaStreamCreateWithFlags": 99,
            "cudaMemGetInfo": (1000, 2000),
            "cudaMalloc": 4096,
            "cudaStreamEndCapture": "graph",
            "cudaGraphInstantiate": "executable",
        }

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            if name in ("cudaGetErrorName", "cudaGetErrorString"):
                return self.cudaError_t.cudaSuccess, f"{name} of {arguments[0].name}".encode()
            if name in self.fails:
                return self.cudaError_t[self.fails[name]], None
            if name == "cudaMallocHost":
                self.blocks.append(np.zeros(arguments[0], np.uint8))
                return self.cudaError_t.cudaSuccess, self.blocks[-1].ctypes.data
            value = self.values.get(name)
            rest = () if value is None else value if isinstance(value, tuple) else (value,)
            return self.cudaError_t.cudaSuccess, *rest

        call.__name__ = name
        return call


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> tuple[CudaRuntime, Any]:
    """Install the module; return it and the layer over it."""
    module = CudaRuntime()
    bindings = ModuleType("cuda.bindings")
    vars(bindings)["runtime"] = module
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", module)
    name = "rowpack_loaders.runtimes.tensorrt.cuda_device"
    monkeypatch.delitem(sys.modules, name, raising=False)
    layer = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    return module, layer


def test_a_device_is_opened_with_a_stream_of_its_own(cuda: tuple[CudaRuntime, Any]) -> None:
    module, layer = cuda
    device = layer.CudaDevice(1)
    assert (device.name, device.compute_capability, device.stream) == ("NVIDIA L4", "8.9", 99)
    assert ("cudaSetDevice", (1,)) in module.calls
    assert ("cudaStreamCreateWithFlags", (1,)) in module.calls
    assert device.free_bytes() == 1000
    assert device.allocate(0) == 4096
    assert module.calls[-1] == ("cudaMalloc", (1,))


def test_copies_name_their_direction_and_the_stream(cuda: tuple[CudaRuntime, Any]) -> None:
    module, layer = cuda
    device = layer.CudaDevice()
    pinned = device.allocate_pinned(16)
    pinned.view[:] = b"0123456789abcdef"
    device.upload(256, pinned.view[4:8])
    kind = module.cudaMemcpyKind
    start = module.blocks[0].ctypes.data
    assert module.calls[-1] == ("cudaMemcpyAsync", (256, start + 4, 4, kind.cudaMemcpyHostToDevice, 99))
    device.download(pinned.view[8:], 512)
    assert module.calls[-1] == ("cudaMemcpyAsync", (start + 8, 512, 8, kind.cudaMemcpyDeviceToHost, 99))
    device.copy(1, 2, 3)
    assert module.calls[-1] == ("cudaMemcpyAsync", (1, 2, 3, kind.cudaMemcpyDeviceToDevice, 99))
    device.zero(5, 6)
    assert module.calls[-1] == ("cudaMemsetAsync", (5, 0, 6, 99))
    device.upload(256, memoryview(b"read-only"))
    pinned.free()
    assert module.calls[-1] == ("cudaFreeHost", (start,))


def test_recording_ends_whatever_happens(cuda: tuple[CudaRuntime, Any]) -> None:
    module, layer = cuda
    device = layer.CudaDevice()
    graph = device.capture(lambda: device.zero(1, 2))
    graph.launch()
    graph.destroy()
    names = [name for name, _ in module.calls][-7:]
    assert names == [
        "cudaStreamBeginCapture",
        "cudaMemsetAsync",
        "cudaStreamEndCapture",
        "cudaGraphInstantiate",
        "cudaGraphDestroy",
        "cudaGraphLaunch",
        "cudaGraphExecDestroy",
    ]
    module.fails["cudaMemsetAsync"] = "cudaErrorNoDevice"
    with pytest.raises(DeviceError):
        device.capture(lambda: device.zero(1, 2))
    assert "cudaStreamEndCapture" in [name for name, _ in module.calls][-4:]


@pytest.mark.parametrize(
    ("status", "kind"), [("cudaErrorMemoryAllocation", DeviceMemoryError), ("cudaErrorNoDevice", DeviceError)]
)
def test_a_bad_status_is_an_error_with_its_name(
    status: str, kind: type[Exception], cuda: tuple[CudaRuntime, Any]
) -> None:
    module, layer = cuda
    device = layer.CudaDevice()
    module.fails["cudaMalloc"] = status
    with pytest.raises(DeviceError, match=f"cudaGetErrorName of {status}.*cudaMalloc") as caught:
        device.allocate(10)
    assert type(caught.value) is kind


def test_no_device_is_told_as_such(cuda: tuple[CudaRuntime, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from rowpack_loaders import RowpackError
    from rowpack_loaders.runtimes.tensorrt import runtime

    module, layer = cuda
    monkeypatch.setitem(sys.modules, layer.__name__, layer)
    module.fails["cudaSetDevice"] = "cudaErrorNoDevice"
    model: Any = SimpleNamespace(content_digest=None)
    with pytest.raises(RowpackError) as caught:
        runtime._open_parts("trt_rtx", None, None, model)
    assert caught.value.code == "gpu_missing"
