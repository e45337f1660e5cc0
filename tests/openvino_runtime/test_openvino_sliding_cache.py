"""A sliding cache on OpenVINO gives what it gives on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rowpack import BuildRequest, build
from rowpack_loaders import RowpackError, load

pytestmark = pytest.mark.openvino

CAPACITY_ROWS = 80


@pytest.fixture(scope="module")
def short_cache(qwen_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose cache holds few rows."""
    output = tmp_path_factory.mktemp("sliding") / "short.bundle"
    build(BuildRequest(qwen_checkpoint, output, backend="openvino", max_sequence_length=CAPACITY_ROWS, verify=False))
    return output


def test_a_full_cache_slides_as_on_onnx_runtime(short_cache: Path) -> None:
    prompt = [5 + row % 40 for row in range(CAPACITY_ROWS - 6)]
    with load(short_cache, threads=1) as ours, load(short_cache, runtime="ort", threads=1) as theirs:
        sessions = ours.session(overflow="slide"), theirs.session(overflow="slide")
        for session in sessions:
            session.prefill(prompt)
        # Past the end of the cache, and past the slack rows behind which the window is moved to the front.
        for token_id in range(10, 90):
            found, expected = (session.step(token_id) for session in sessions)
            assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
        assert sessions[0].slid_rows == sessions[1].slid_rows > 64


def test_a_full_cache_is_refused_otherwise(short_cache: Path) -> None:
    with load(short_cache, threads=1, layout="single") as decoder:
        session = decoder.session()
        session.prefill([7] * CAPACITY_ROWS)
        with pytest.raises(RowpackError) as refused:
            session.step(7)
    assert refused.value.code == "sequence_too_long"
