"""Backends: each turns ONNX graphs into what its runtime loads, and says what the pair costs and needs."""

from __future__ import annotations

from rowpack.engines.backend import Backend
from rowpack.engines.openvino import OpenVinoBackend
from rowpack.engines.ort import OrtBackend
from rowpack.engines.tensorrt import BACKENDS as TENSORRT_BACKENDS
from rowpack_loaders.errors import RowpackError

BACKENDS: tuple[Backend, ...] = (OrtBackend(), OpenVinoBackend(), *TENSORRT_BACKENDS)


def find_backend(name: str) -> Backend:
    """Return the backend called ``name``; raises RowpackError ``backend_unknown``."""
    for backend in BACKENDS:
        if backend.name == name:
            return backend
    raise RowpackError(
        "backend_unknown",
        "there is no such backend",
        where="--backend",
        found=repr(name),
        expected=", ".join(backend.name for backend in BACKENDS),
        remedy="Choose one of them.",
    )
