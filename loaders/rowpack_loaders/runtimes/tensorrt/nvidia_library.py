"""The TensorRT libraries themselves: ``tensorrt`` and ``tensorrt_rtx``, through the part of the API they share."""

from __future__ import annotations

import importlib
import os
import warnings
from pathlib import Path
from typing import Any

from rowpack_loaders.runtimes.tensorrt.interfaces import Device, DeviceError, DeviceMemoryError, PlanTensor
from rowpack_loaders.section_content import RawContent, SectionContent, content_pieces

MODULES = {"trt": ("tensorrt", "tensorrt_bindings"), "trt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings")}
_DTYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT32": "int32", "INT64": "int64"}
_NO_MEMORY = ("out of memory", "OutOfMemory", "Out of memory")
_ERRORS = ("INTERNAL_ERROR", "ERROR")


def import_module(backend: str) -> Any:
    """Import the library of ``backend``; raises ImportError when none of its modules is there."""
    first: ImportError | None = None
    for name in MODULES[backend]:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            first = first or error
    raise first or ImportError(backend)


class NvidiaLibrary:
    """One library over one device; see :class:`.interfaces.Library`.

    ``cache_path`` is a file for what TensorRT for RTX compiles at load: read when it is there, written on
    :meth:`keep_compiled`. The library itself checks that it was made by this version, on this device.
    """

    def __init__(self, backend: str, device: Device, cache_path: Path | None = None) -> None:
        self._trt = import_module(backend)
        self.version = str(self._trt.__version__)
        self._device = device
        self._messages: list[str] = []
        # The first logger of a process is the one that is used, as long as any object of the library lives.
        self._logger = _make_logger(self._trt, self._messages)
        self._runtime = self._trt.Runtime(self._logger)
        self._cache_path = cache_path
        self._cache: Any = None

    def load_engine(self, plan: SectionContent) -> NvidiaEngine:
        """Deserialise a plan from the mapped file, or piece by piece where it is stored as extents.

        A library that does not take pieces gets the plan put together in host memory.
        """
        if isinstance(plan, RawContent):
            return self._deserialised(plan.view())
        try:
            return self._deserialised(_make_reader(self._trt, plan))
        except DeviceMemoryError:
            raise
        except (DeviceError, RuntimeError):  # the latter where not even a reader can be made
            return self._deserialised(memoryview(b"".join(map(bytes, content_pieces(plan)))))

    def _deserialised(self, source: Any) -> NvidiaEngine:
        self._messages.clear()
        try:
            engine = self._runtime.deserialize_cuda_engine(source)
        except RuntimeError as error:  # what a binding makes of a library that cannot reach a driver
            raise self.error(str(error)) from error
        if engine is None:
            raise self.error("the plan was not deserialised")
        return NvidiaEngine(self._trt, engine, self)

    def create_context(self, engine: Any) -> Any:
        """Return an execution context, over the runtime cache where there is one."""
        self._messages.clear()
        context = engine.create_execution_context(self._config(engine)) if self._cache_path else None
        context = context or engine.create_execution_context()
        if context is None:
            raise self.error("no execution context was created")
        return context

    def keep_compiled(self) -> None:
        """Write the runtime cache under another name and rename it, so that a reader never sees half of one."""
        if self._cache is None or self._cache_path is None:
            return
        beside = self._cache_path.with_name(f".{self._cache_path.name}.{os.getpid()}.tmp")
        try:
            beside.write_bytes(memoryview(self._cache.serialize()))
            beside.replace(self._cache_path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            warnings.warn(f"The runtime cache {self._cache_path} cannot be written: {error.strerror}", stacklevel=2)

    def error(self, what: str) -> DeviceError:
        """Return an error with what the library has logged."""
        said = " ".join(" ".join(self._messages).split())[:600] or what
        kind = DeviceMemoryError if any(words in said for words in _NO_MEMORY) else DeviceError
        return kind(said)

    @property
    def stream(self) -> int:
        """The stream that runs are put on."""
        return self._device.stream

    def _config(self, engine: Any) -> Any:
        if not hasattr(self._trt, "IRuntimeCache"):
            return None
        config = engine.create_runtime_config()
        if self._cache is None:
            self._cache = config.create_runtime_cache()
            if self._cache_path is not None and self._cache_path.is_file():
                # A cache of another device or version is refused by the library and simply made anew.
                self._cache.deserialize(self._cache_path.read_bytes())
        config.set_runtime_cache(self._cache)
        return config


class NvidiaEngine:
    """A loaded plan."""

    def __init__(self, trt: Any, engine: Any, library: NvidiaLibrary) -> None:
        self._engine = engine
        self._library = library
        self.tensors = tuple(_tensor(trt, engine, index) for index in range(engine.num_io_tensors))

    def create_context(self) -> NvidiaContext:
        """Return a context with its memory."""
        return NvidiaContext(self._library.create_context(self._engine), self._library)


class NvidiaContext:
    """An execution context."""

    def __init__(self, context: Any, library: NvidiaLibrary) -> None:
        self._context = context
        self._library = library

    def set_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Say how large an input is."""
        if not self._context.set_input_shape(name, shape):
            raise self._library.error(f"the shape {shape} of {name} was refused")

    def set_address(self, name: str, address: int) -> None:
        """Say where a tensor lies."""
        if not self._context.set_tensor_address(name, address):
            raise self._library.error(f"the address of {name} was refused")

    def execute(self) -> None:
        """Put a run on the stream."""
        if not self._context.execute_async_v3(self._library.stream):
            raise self._library.error("the run was not started")

    def can_be_captured(self) -> bool:
        """Ask where the library can say; full TensorRT's runs can be recorded unless capturing fails."""
        ask = getattr(self._context, "is_stream_capturable", None)
        return True if ask is None else bool(ask(self._library.stream))


def _tensor(trt: Any, engine: Any, index: int) -> PlanTensor:
    name = engine.get_tensor_name(index)
    is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
    shape = tuple(int(extent) for extent in engine.get_tensor_shape(name))
    profile = None
    if is_input and -1 in shape:
        smallest, _, largest = engine.get_tensor_profile_shape(name, 0)
        profile = (tuple(map(int, smallest)), tuple(map(int, largest)))
    word = engine.get_tensor_dtype(name).name
    return PlanTensor(name, is_input, _DTYPES.get(word, word.lower()), shape, profile)


def _make_logger(trt: Any, messages: list[str]) -> Any:
    def begin(self: Any) -> None:
        trt.ILogger.__init__(self)

    def log(self: Any, severity: Any, text: str) -> None:
        if severity.name in _ERRORS:
            messages.append(text)

    return type("Logger", (trt.ILogger,), {"__init__": begin, "log": log})()


def _make_reader(trt: Any, plan: SectionContent) -> Any:
    """Return a stream reader over content: the library asks for pieces and seeks."""

    def begin(self: Any) -> None:
        trt.IStreamReaderV2.__init__(self)
        self.position = 0

    def read(self: Any, num_bytes: int, stream: int) -> bytes:
        count = max(0, min(num_bytes, plan.length_bytes - self.position))
        buffer = bytearray(count)
        plan.read_into(memoryview(buffer), self.position)
        self.position += count
        return bytes(buffer)

    def seek(self: Any, offset: int, where: Any) -> bool:
        start = {"SET": 0, "CUR": self.position, "END": plan.length_bytes}[where.name]
        if not 0 <= start + offset <= plan.length_bytes:
            return False
        self.position = start + offset
        return True

    return type("PlanReader", (trt.IStreamReaderV2,), {"__init__": begin, "read": read, "seek": seek})()
