"""Load the plans of a bundle on a GPU, and open sequences over them."""

from __future__ import annotations

import contextlib
import re
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rowpack_loaders.compatibility import rules
from rowpack_loaders.compatibility.engine_needs import EngineNeeds
from rowpack_loaders.compatibility.rules import Question
from rowpack_loaders.compatibility.target import Target
from rowpack_loaders.errors import Problem, RowpackError
from rowpack_loaders.manifest import EngineRecord
from rowpack_loaders.model_description import DECODE, PREFILL, ModelDescription
from rowpack_loaders.runtimes.tensorrt.geometry import check_engine
from rowpack_loaders.runtimes.tensorrt.interfaces import (
    Device,
    DeviceError,
    DeviceMemoryError,
    Graph,
    Library,
    PlanContext,
    PlanEngine,
)
from rowpack_loaders.runtimes.tensorrt.sequence import TensorRtSequence
from rowpack_loaders.section_content import SectionContent

if TYPE_CHECKING:
    from pathlib import Path

    from rowpack_loaders.mapped_section import MappedSection
    from rowpack_loaders.runtimes import SequenceState

_DEVICE_WORDS = ("cuda", "gpu")


@dataclass(frozen=True)
class LoadedEngine:
    """An engine, the manifest's record of it, and the context it runs in."""

    record: EngineRecord
    engine: PlanEngine
    context: PlanContext


class TensorRtRuntime:
    """The engines of one bundle on one GPU.

    One context an engine serves all sequences, one run at a time: contexts hold the working memory. ``device`` is
    ``cuda`` or ``cuda:N``. The plan of the decode engine is loaded first; when there is no room for the second one,
    the error is ``engine_out_of_memory``, upon which a caller goes on with one engine. In ``cache_folder`` TensorRT
    for RTX keeps what it compiled for this device, so that the next load is fast; without one nothing is kept.
    """

    backend: ClassVar[str] = "trt"
    thread_count = 1

    def __init__(
        self,
        model: ModelDescription,
        engines: Mapping[str, SectionContent],
        weights: MappedSection | None,
        *,
        device: str | None = None,
        thread_count: int | None = None,
        cache_folder: Path | None = None,
        parts: tuple[Device, Library] | None = None,
    ) -> None:
        self.model = model
        self.lock = threading.RLock()
        self.records_runs = True
        self.device, self._library = parts or _open_parts(self.backend, device, cache_folder, model)
        self.backend_version = self._library.version
        try:
            self.decode = self._load(DECODE, engines[DECODE])
            self.prefill = self._load(PREFILL, engines[PREFILL]) if PREFILL in engines else None
        except BaseException:
            # The error's traceback keeps this object; the memory of the first engine is wanted for the next attempt.
            self.__dict__.pop("decode", None)
            self.device.close()
            raise
        self._library.keep_compiled()
        self.has_prefill_engine = self.prefill is not None

    def open_sequence(self, *, slide: bool = False) -> SequenceState:
        """Return a new sequence with its own device memory, at its start; raises ``engine_out_of_memory``."""
        try:
            return TensorRtSequence(self, slide=slide)
        except DeviceMemoryError as error:
            raise _out_of_memory("a sequence", "device memory", str(error)) from error

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Use device and contexts alone, in whatever thread."""
        with self.lock:
            self.device.activate()
            yield

    def keep(self, owner: object, graph: Graph) -> Graph:
        """Free a recording when the sequence it was made for is gone."""
        weakref.finalize(owner, graph.destroy)
        return graph

    def _check_needs(self, engine: EngineNeeds) -> None:
        """Refuse a plan for another GPU or library version before the library sees it."""
        target = Target(
            compute_capability=self.device.compute_capability,
            has_gpu=True,
            runtimes={self.backend: self._library.version},
            runtimes_complete=True,
        )
        question = Question(engine, self.model.precision, None, target)
        answers = [*rules.gpu(question), *rules.runtime_is_there(question)]
        problems = [answer for answer in answers if isinstance(answer, Problem)]
        if problems:
            raise RowpackError.from_problems(
                "engine_not_for_this_machine",
                f"The {engine.role} engine was compiled for another GPU or library ({self.device.name} is here)",
                problems,
            )

    def _load(self, role: str, plan: SectionContent) -> LoadedEngine:
        record = self.model.engines[role]
        self._check_needs(self.model.needs[role])
        needed = self.model.resident_bytes[role]
        free = self.device.free_bytes()
        if needed.weights + needed.context > free:
            raise _out_of_memory(
                f"the {role} engine", record.section, f"{free} bytes free, {needed.weights + needed.context} needed"
            )
        try:
            engine = self._library.load_engine(plan)
            check_engine(record, engine.tensors, self.model.limits.max_cache_length)
            return LoadedEngine(record, engine, engine.create_context())
        except DeviceMemoryError as error:
            raise _out_of_memory(f"the {role} engine", record.section, str(error)) from error
        except DeviceError as error:
            raise RowpackError(
                "engine_load_failed",
                f"{self.backend} {self._library.version} cannot load the {role} engine",
                where=record.section,
                found=str(error)[:400],
                expected=f"a plan for version {record.backend_version} and this GPU "
                f"({self.device.name}, compute capability {self.device.compute_capability})",
                remedy="Run rowpack check BUNDLE --here to see what does not fit",
            ) from error


class TensorRtxRuntime(TensorRtRuntime):
    """The same over TensorRT for RTX, which compiles a plan's kernels for the GPU when it is loaded."""

    backend = "trt_rtx"


def _open_parts(
    backend: str, device: str | None, cache_folder: Path | None, model: ModelDescription
) -> tuple[Device, Library]:
    from rowpack_loaders.runtimes.tensorrt.cuda_device import CudaDevice
    from rowpack_loaders.runtimes.tensorrt.nvidia_library import NvidiaLibrary

    index = _device_index(device)
    try:
        opened = CudaDevice(index)
    except DeviceError as error:
        raise RowpackError(
            "gpu_missing",
            "The bundle's engines run on an NVIDIA GPU, and none can be used here",
            where=device or "cuda",
            found=str(error)[:300],
            expected="an NVIDIA GPU with a driver",
            remedy="Run it where there is one, or build with --backend ort for the processor",
        ) from error
    cache_path = None if cache_folder is None else cache_folder / cache_file_name(opened.name, model.content_digest)
    return opened, NvidiaLibrary(backend, opened, cache_path)


def cache_file_name(device_name: str, content_digest: str | None) -> str:
    """Return the name of the file for what is compiled for one model on one kind of device."""
    device = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    return f"{(content_digest or 'unknown').removeprefix('sha256:')[:16]}-{device}.runtime-cache"


def _device_index(device: str | None) -> int:
    name, colon, number = (device or "cuda").partition(":")
    if name not in _DEVICE_WORDS or (colon and not number.isdecimal()):
        raise RowpackError(
            "device_unsupported",
            "TensorRT engines run on a GPU",
            found=repr(device),
            expected="cuda or cuda:N",
        )
    return int(number) if colon else 0


def _out_of_memory(what: str, where: str, found: str) -> RowpackError:
    return RowpackError(
        "engine_out_of_memory",
        f"There is not enough memory on the GPU for {what}",
        where=where,
        found=found[:300],
        expected="memory for the engine, its states and caches",
        remedy="Free memory, or load the bundle with layout single",
    )
