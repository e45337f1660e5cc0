"""Bundles for other numbers of prefill rows than 64: the number is the manifest's, from the build to the session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rowpack import BuildRequest, build
from rowpack.engines import BACKENDS
from rowpack.engines.backend import RowProfile, prefill_rows_profile
from rowpack.prefill_rows import DEFAULT_PREFILL_ROWS
from rowpack_loaders import RowpackError, load, open_bundle, validate
from rowpack_loaders.catalog_entry import catalog_entry
from rowpack_loaders.manifest import MAX_PREFILL_ROWS
from rowpack_loaders.schema_data import load_schema
from rowpack_loaders.selftest import run_self_test

CACHE_ROWS = 256
PROMPT = [(5 * index) % 61 for index in range(CACHE_ROWS - 6)]


def built(checkpoint: Path, path: Path, prefill_rows: int, **changes: Any) -> Path:
    """Build a split bundle for ``prefill_rows`` rows; the build runs it against the exported graph."""
    options = {"max_sequence_length": CACHE_ROWS, "decoder_engine_layout": "split", **changes}
    return build(BuildRequest(checkpoint, path, prefill_rows=prefill_rows, **options)).path


@pytest.mark.parametrize("prefill_rows", [1, 17, 100, 128, 256, 512])
@pytest.mark.parametrize("family", ["qwen3_5", "rwkv"])
def test_a_bundle_for_this_many_rows(
    family: str, prefill_rows: int, tiny_checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    path = built(tiny_checkpoints[family], tmp_path / "x.bundle", prefill_rows)
    report = validate(path)
    assert (report.errors, report.warnings) == ([], [])
    with open_bundle(path) as bundle:
        assert bundle.limits.prefill_rows == bundle.engines["prefill"].rows.max == prefill_rows
        assert catalog_entry(bundle)["limits"]["prefill_rows"] == prefill_rows
    with load(path) as decoder:
        assert run_self_test(decoder).passed
        session = decoder.session()
        chunked = session.prefill(PROMPT, mode="chunked")
        full, rest = divmod(len(PROMPT), prefill_rows)
        assert session.prefill_run.chunks == (prefill_rows,) * full + ((rest,) if rest else ())
        looped = session.prefill(PROMPT, mode="token-loop")
    assert np.abs(chunked - looped).max() <= 1e-5 * np.abs(looped).max()


def test_a_prompt_longer_than_the_largest_chunk(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """WKV has no caches, so a sequence has no end: two chunks of 512 and what is left."""
    prompt = [(7 * index) % 61 for index in range(1030)]
    with load(built(tiny_checkpoints["rwkv"], tmp_path / "x.bundle", 512)) as decoder:
        session = decoder.session()
        chunked = session.prefill(prompt, mode="chunked")
        assert session.prefill_run.chunks == (512, 512, 6)
        looped = session.prefill(prompt, mode="token-loop")
    assert np.abs(chunked - looped).max() <= 1e-5 * np.abs(looped).max()


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_the_backend_says_how_many_rows_there_may_be(
    backend: Any, tiny_checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    assert DEFAULT_PREFILL_ROWS <= backend.max_prefill_rows <= MAX_PREFILL_ROWS
    for rows in (0, -1, backend.max_prefill_rows + 1, MAX_PREFILL_ROWS + 1):
        with pytest.raises(RowpackError) as caught:
            BuildRequest(tiny_checkpoints["rwkv"], tmp_path / "x.bundle", backend=backend.name, prefill_rows=rows)
        assert caught.value.code == "prefill_rows_range"
        assert caught.value.problem.expected == f"1 to {backend.max_prefill_rows}, for --backend {backend.name}"
    assert list(tmp_path.iterdir()) == []


def test_the_schema_has_the_bound_that_loaders_have() -> None:
    schema = load_schema("manifest")
    assert schema["properties"]["limits"]["properties"]["prefill_rows"]["maximum"] == MAX_PREFILL_ROWS
    rows = schema["$defs"]["rows"]["properties"]
    assert {key: value["maximum"] for key, value in rows.items()} == dict.fromkeys(
        ("min", "opt", "max"), MAX_PREFILL_ROWS
    )


def test_a_compiler_tunes_for_half_of_the_rows() -> None:
    """Full chunks and the last one of a prompt both run on the one profile; small engines stay what they were."""
    profiles = {rows: prefill_rows_profile(rows) for rows in (1, 16, 40, 64, 128, 512)}
    opt = {1: 1, 16: 16, 40: 32, 64: 32, 128: 64, 512: 256}
    assert profiles == {rows: RowProfile(1, opt[rows], rows) for rows in profiles}
