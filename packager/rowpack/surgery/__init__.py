"""Passes that replace the exported graph's mixer calls; what the model computes never changes, only how."""

from __future__ import annotations

from rowpack.surgery.pipelines import decode_model, prefill_model

__all__ = ["decode_model", "prefill_model"]
