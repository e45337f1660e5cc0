"""Loaders that predate the manifest are told of a prefill engine only where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import BUILD_OPTIONS

from rowpack import BuildRequest, build
from rowpack.layout_stage import check_promised_layout
from rowpack_loaders import open_bundle
from rowpack_loaders.errors import RowpackError


@pytest.mark.parametrize(("layout", "told"), [("split", "split"), ("single", "single")])
def test_the_word_is_that_of_the_engines(
    tiny_checkpoints: dict[str, Path], tmp_path: Path, layout: str, told: str
) -> None:
    options = {**BUILD_OPTIONS, "decoder_engine_layout": layout}
    path = tmp_path / "x.bundle"
    build(BuildRequest(tiny_checkpoints["rwkv"], path, runtime_json_layout="split", verify=False, **options))
    with open_bundle(path) as bundle:
        assert json.loads(bundle.read_section("runtime.json"))["decoder_engine_layout"] == told
        assert bundle.manifest["runtime_json"]["decoder_engine_layout"] == told
        assert bundle.manifest["decoder_engine_layout"] == layout


def test_a_promised_prefill_plan_is_not_taken_back_in_silence() -> None:
    check_promised_layout("single")
    with pytest.raises(RowpackError) as caught:
        check_promised_layout("split")
    assert caught.value.code == "runtime_json_split_unbuilt"
