"""Prefill engines for more than 64 rows on OpenVINO: up to as many as the backend takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rowpack import BuildRequest, build
from rowpack.engines import find_backend
from rowpack_loaders import load

pytestmark = pytest.mark.openvino

CACHE_ROWS = 256
PROMPT = [(5 * index) % 61 for index in range(CACHE_ROWS - 6)]


@pytest.mark.parametrize("prefill_rows", [128, find_backend("openvino").max_prefill_rows])
@pytest.mark.parametrize("family", ["qwen3_5", "rwkv"])
def test_a_chunk_of_many_rows_equals_the_token_loop(
    family: str, prefill_rows: int, tiny_checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    request = BuildRequest(
        tiny_checkpoints[family],
        tmp_path / "x.bundle",
        backend="openvino",
        decoder_engine_layout="split",
        prefill_rows=prefill_rows,
        max_sequence_length=CACHE_ROWS,
    )
    build(request)
    with load(request.output, threads=1) as decoder:
        session = decoder.session()
        chunked = session.prefill(PROMPT, mode="chunked")
        assert session.prefill_run.chunks[0] == min(prefill_rows, len(PROMPT))
        looped = session.prefill(PROMPT, mode="token-loop")
    assert np.abs(chunked - looped).max() <= 1e-4 * np.abs(looped).max()
