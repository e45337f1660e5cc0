"""Refuse engines whose operators the installed runtime does not have, before it is asked to load them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from rowpack_loaders.compatibility.engine_needs import EngineNeeds
from rowpack_loaders.errors import RowpackError

CPU_PROVIDER = "CPUExecutionProvider"


def check_required_operators(needs: Iterable[EngineNeeds], offered: Container[str] | None, product: str) -> None:
    """Raise ``engine_operator_missing`` when an engine requires what is not ``offered`` (``domain.Operator``).

    ``product`` names the runtime and its version. None for ``offered`` says that nobody knows: loading will tell.
    """
    for engine in needs:
        missing = [] if offered is None else [name for name in engine.requires if name not in offered]
        if missing:
            raise RowpackError(
                "engine_operator_missing",
                f"The installed runtime lacks operators of the {engine.role} engine",
                where=engine.pointer("requires"),
                found=f"{product} without {', '.join(missing)}"[:400],
                expected=f"one that has them, as {engine.backend} {engine.backend_version} has",
                remedy="Update the runtime, or build the bundle with --lowering plain",
            )


def operators_of_onnxruntime(onnxruntime: Any) -> frozenset[str] | None:
    """Return every operator that the processor has a kernel for, as ``domain.Operator``; None where it does not say.

    A schema is no kernel: operators for other devices have one as well.
    """
    kernels = getattr(onnxruntime.capi.onnxruntime_pybind11_state, "get_all_opkernel_def", None)
    if kernels is None:
        return None
    return frozenset(f"{kernel.domain}.{kernel.op_name}" for kernel in kernels() if kernel.provider == CPU_PROVIDER)
