"""Run ONNX sections on OpenVINO's CPU plugin: the second way to run a bundle on the processor."""

from __future__ import annotations

from rowpack_loaders.runtimes.openvino.runtime import OpenVinoRuntime

__all__ = ["OpenVinoRuntime"]
