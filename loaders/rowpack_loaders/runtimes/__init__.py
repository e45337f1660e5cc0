"""Choose the runtime that executes a bundle's engines, by the backend id in its manifest.

A runtime is one module of this package. It is given what the manifest says, the bytes of each engine and one
mapped weight section; it shares engines and weights among any number of sequences, each of which owns its
buffers. Sessions, generation and the self-test know only the two protocols below.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.model_description import ModelDescription

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from rowpack_loaders.buffers import SequenceSnapshot
    from rowpack_loaders.mapped_section import MappedSection
    from rowpack_loaders.runtimes.thread_wait import ThreadWait
    from rowpack_loaders.section_content import SectionContent

    FloatArray = npt.NDArray[np.float32]
    IntArray = npt.NDArray[np.int32]


class SequenceState(Protocol):
    """One sequence on a runtime: its states, its caches, and running rows through an engine.

    Rows given are valid token ids and fit (the session checks both). After an exception from a run the
    sequence is only good for :meth:`reset` or :meth:`restore`.
    """

    @property
    def position(self) -> int:
        """The rows seen since the start."""

    @property
    def slid_rows(self) -> int:
        """The rows that a sliding cache has dropped; 0 as long as the output equals the reference."""

    def reset(self) -> None:
        """Go back to the start: every state at its initial value."""

    def run_step(self, token_id: int) -> FloatArray:
        """Run one row on the decode engine; return its logits [vocab], overwritten by the next run."""

    def run_chunk(self, token_ids: IntArray) -> FloatArray:
        """Run up to ``prefill_rows`` rows on the prefill engine; return the last row's logits [vocab], as
        above.
        """

    def run_leading_chunk(self, token_ids: IntArray) -> None:
        """Run a chunk that others of the same prompt follow: as :meth:`run_chunk`, but nobody reads its logits."""

    def capture(self) -> SequenceSnapshot:
        """Return a copy of everything the sequence carries."""

    def restore(self, snapshot: SequenceSnapshot) -> None:
        """Make the sequence what it was when the copy was taken."""


class Runtime(Protocol):
    """The loaded engines of one bundle."""

    backend: str
    backend_version: str
    thread_count: int
    has_prefill_engine: bool

    def open_sequence(self, *, slide: bool = False) -> SequenceState:
        """Return a new sequence at its start; with ``slide`` a full cache drops its oldest row instead of
        refusing.
        """


@dataclass(frozen=True)
class RuntimeEntry:
    """Where a runtime is found, and whether it runs on a GPU, whose memory it then looks after itself.

    ``one_session`` says that it runs both roles by a prefill engine that serves decode, and needs no other.
    """

    module: str
    class_name: str
    on_gpu: bool = False
    thread_wait: bool = False
    one_session: bool = False


# By backend id; a module is imported when a bundle asks for it.
RUNTIMES = {
    "ort": RuntimeEntry("rowpack_loaders.runtimes.ort", "OrtRuntime", thread_wait=True, one_session=True),
    "openvino": RuntimeEntry("rowpack_loaders.runtimes.openvino", "OpenVinoRuntime"),
    "trt": RuntimeEntry("rowpack_loaders.runtimes.tensorrt", "TensorRtRuntime", on_gpu=True),
    "trt_rtx": RuntimeEntry("rowpack_loaders.runtimes.tensorrt", "TensorRtxRuntime", on_gpu=True),
}

INSTALLED_BY = {
    "ort": "onnxruntime",
    "openvino": "'rowpack[openvino]'",
    "trt": "'rowpack[trt]'",
    "trt_rtx": "'rowpack[trt-rtx]'",
}
"""What brings each runtime's library, as ``pip install`` takes it."""


def load_runtime(
    backend: str,
    model: ModelDescription,
    engines: Mapping[str, bytes | SectionContent],
    weights: MappedSection | None,
    *,
    device: str | None = None,
    thread_count: int | None = None,
    cache_folder: Path | None = None,
    thread_wait: ThreadWait = "auto",
) -> Runtime:
    """Load ``engines`` (role → a graph's bytes, or a plan's content) with the runtime for ``backend``.

    ``weights`` is the weight section, which stays mapped as long as the runtime lives. ``cache_folder`` is for
    runtimes that compile at load, ``thread_wait`` for those that can be told how idle threads wait. Raises
    :class:`RowpackError` ``runtime_unknown``, ``runtime_not_installed`` or ``thread_wait_unsupported``, and what the
    runtime raises.
    """
    if backend not in RUNTIMES:
        raise RowpackError(
            "runtime_unknown",
            "This loader has no runtime for the bundle's backend",
            found=backend,
            expected=" or ".join(sorted(RUNTIMES)),
            remedy="Update rowpack, or build the bundle for a listed backend",
        )
    entry = RUNTIMES[backend]
    options: dict[str, Any] = {"cache_folder": cache_folder} if entry.on_gpu else {}
    if entry.thread_wait:
        options["thread_wait"] = thread_wait
    elif thread_wait != "auto":
        raise RowpackError(
            "thread_wait_unsupported",
            "This runtime does not let one say how its threads wait",
            where=backend,
            found=repr(thread_wait)[:80],
            expected="auto",
            remedy="Leave the choice out",
        )
    try:
        runtime_class: Any = getattr(importlib.import_module(entry.module), entry.class_name)
        runtime: Runtime = runtime_class(model, engines, weights, device=device, thread_count=thread_count, **options)
    except ImportError as error:
        raise RowpackError(
            "runtime_not_installed",
            f"The inference library of backend {backend!r} cannot be imported",
            found=str(error),
            expected="an installed library",
            remedy=f"pip install {INSTALLED_BY[backend]}",
        ) from error
    return runtime
