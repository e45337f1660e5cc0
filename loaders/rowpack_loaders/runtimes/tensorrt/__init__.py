"""Run plans of TensorRT and TensorRT for RTX on an NVIDIA GPU.

Everything but the calls into the two libraries is written against the protocols of :mod:`.interfaces`, so that it is
tested on machines without a GPU by stand-ins that enforce the libraries' rules.
"""

from __future__ import annotations

from rowpack_loaders.runtimes.tensorrt.runtime import TensorRtRuntime, TensorRtxRuntime

__all__ = ["TensorRtRuntime", "TensorRtxRuntime"]
