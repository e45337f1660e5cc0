"""TensorRT and TensorRT for RTX: plans compiled from the graphs, each in a process of its own."""

from __future__ import annotations

from rowpack.engines.tensorrt.backend import TensorRtBackend
from rowpack.engines.tensorrt.flavour import TENSORRT, TENSORRT_RTX

BACKENDS = (TensorRtBackend(TENSORRT), TensorRtBackend(TENSORRT_RTX))
