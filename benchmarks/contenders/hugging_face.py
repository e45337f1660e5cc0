"""The checkpoint itself in Hugging Face transformers with its cache, the way ``generate`` runs it.

``choice`` is the torch data type. RWKV-4 calls its cache ``state``.
"""

from __future__ import annotations

from typing import Any

from contenders import LoadRequest, package_versions


class TransformersSequence:
    """One sequence on a model of transformers."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._is_rwkv = model.config.model_type == "rwkv"
        self._cache: Any = None

    def prefill(self, token_ids: list[int]) -> int:
        """Start anew with a prompt."""
        self._cache = None
        return self._run(token_ids)

    def step(self, token_id: int) -> int:
        """Run one more row."""
        return self._run([token_id])

    def _run(self, token_ids: list[int]) -> int:
        import torch

        cache_name = "state" if self._is_rwkv else "past_key_values"
        options: dict[str, Any] = {} if self._is_rwkv else {"logits_to_keep": 1}
        if self._cache is not None:
            options[cache_name] = self._cache
        with torch.inference_mode():
            out = self._model(torch.tensor([token_ids]), use_cache=True, **options)
        self._cache = getattr(out, cache_name)
        return int(out.logits[0, -1].argmax())


def versions() -> dict[str, str]:
    """Return the versions of what runs."""
    return package_versions("transformers", "torch")


def import_runtime() -> None:
    """Import torch and transformers."""
    import torch
    import transformers

    _ = torch, transformers.AutoModelForCausalLM


def load(request: LoadRequest) -> TransformersSequence:
    """Load a checkpoint in one data type."""
    import torch
    import transformers

    torch.set_num_threads(request.threads)
    dtype = getattr(torch, request.choice)
    return TransformersSequence(transformers.AutoModelForCausalLM.from_pretrained(request.source, dtype=dtype).eval())
