"""A folder of ONNX Runtime GenAI; ``choice`` is unused, the folder was built in its precision.

Left alone it uses one core of two, so the thread count is laid over its configuration. Its generator picks the next
token itself: a step takes no token, and the shortest length is set to the longest, or a random model would stop.
"""

from __future__ import annotations

import json
from typing import Any

from contenders import LoadRequest, package_versions


class GeneratorSequence:
    """One sequence; a prompt from the start is a new generator, as its examples do it."""

    def __init__(self, model: Any, cache_rows: int) -> None:
        self._model = model
        self._cache_rows = cache_rows
        self._generator: Any = None

    def prefill(self, token_ids: list[int]) -> int:
        """Start anew with a prompt."""
        import onnxruntime_genai

        self._generator = None
        parameters = onnxruntime_genai.GeneratorParams(self._model)
        parameters.set_search_options(max_length=self._cache_rows, min_length=self._cache_rows, do_sample=False)
        self._generator = onnxruntime_genai.Generator(self._model, parameters)
        self._generator.append_tokens(token_ids)
        return self._next()

    def step(self, token_id: int) -> int:
        """Run the row that the generator chose last."""
        return self._next()

    def _next(self) -> int:
        self._generator.generate_next_token()
        return int(self._generator.get_next_tokens()[0])


def versions() -> dict[str, str]:
    """Return the versions of what runs."""
    return package_versions("onnxruntime-genai", "onnxruntime")


def import_runtime() -> None:
    """Import the library."""
    import onnxruntime_genai

    _ = onnxruntime_genai.Model


def load(request: LoadRequest) -> GeneratorSequence:
    """Load a folder."""
    import onnxruntime_genai

    config = onnxruntime_genai.Config(str(request.source))
    threads = {"session_options": {"intra_op_num_threads": request.threads}}
    config.overlay(json.dumps({"model": {"decoder": threads}}))
    return GeneratorSequence(onnxruntime_genai.Model(config), request.cache_rows)
