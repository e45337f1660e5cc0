"""Passes that replace the exported graph's mixer calls; what the model computes never changes, only how."""

from __future__ import annotations

from rowpack.surgery.graph_form import FREE_CACHE, GraphForm, compiled_form
from rowpack.surgery.pipelines import decode_model, pads_rows, prefill_model

__all__ = ["FREE_CACHE", "GraphForm", "compiled_form", "decode_model", "pads_rows", "prefill_model"]
