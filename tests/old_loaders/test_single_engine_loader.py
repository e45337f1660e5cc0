"""A loader that knows one engine, counts keys and never heard of a manifest runs the split bundles of today."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from single_engine_loader import SingleEngineLoader
from strict_format_1_reader import read_bundle

from rowpack import BuildRequest, build
from rowpack.bundle.migration import migrate
from rowpack_loaders import load, open_bundle

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def trained_bundles(
    qwen_checkpoint: Path, rwkv_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Split bundles of the two trained models."""
    folder = tmp_path_factory.mktemp("trained")
    return {
        family: build(
            BuildRequest(
                checkpoint,
                folder / f"{family}.bundle",
                decoder_engine_layout="split",
                max_sequence_length=192,
                verify=False,
            )
        ).path
        for family, checkpoint in (("qwen3_5", qwen_checkpoint), ("rwkv", rwkv_checkpoint))
    }


@pytest.mark.parametrize("family", ["qwen3_5", "rwkv"])
def test_it_continues_a_text_as_the_chunked_loader_does(family: str, trained_bundles: dict[str, Path]) -> None:
    old = SingleEngineLoader(trained_bundles[family])
    assert old.tokenizer is not None
    text = "Ge1:1 In the beginning God created the heaven and the earth. And the earth was without form, and void; "
    text += "and darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters. And "
    text += "God said, Let there be light: and there was light. And God saw the light, that it"
    prompt_ids = old.tokenizer.encode(text).ids
    assert len(prompt_ids) > 64, "two chunks"
    with load(trained_bundles[family]) as decoder:
        assert decoder.runtime.has_prefill_engine
        today = decoder.generate(text, 32)
    assert today.prefill.mode == "chunked"
    assert old.generate(prompt_ids, 32) == list(today.token_ids)


KINDS = [
    "qwen3_5-single",
    "qwen3_5-split",
    "rwkv-single",
    "rwkv-split",
    "half",
    "half-rwkv",
    "fused-mixers",
    "unverified",
    "no-tokenizer",
    "runtime-json-split",
]


def test_the_kinds_are_all_tried(bundles_of_every_kind: dict[str, Path]) -> None:
    assert sorted(bundles_of_every_kind) == sorted(KINDS)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "runtime-json-split"])
def test_it_runs_every_kind_of_bundle(kind: str, bundles_of_every_kind: dict[str, Path]) -> None:
    path = bundles_of_every_kind[kind]
    prompt_ids = [(7 * index) % 61 for index in range(20)]
    with load(path) as decoder:
        wanted = decoder.generate(prompt_ids, 12, stop_token_ids=[], prefill="token-loop").token_ids
    assert SingleEngineLoader(path).generate(prompt_ids, 12, stop_at_end=False) == list(wanted)


def test_it_refuses_what_it_always_refused(bundles_of_every_kind: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="decoder_engine_layout"):
        SingleEngineLoader(bundles_of_every_kind["runtime-json-split"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_strict_reader_finds_what_it_always_found(kind: str, bundles_of_every_kind: dict[str, Path]) -> None:
    path = bundles_of_every_kind[kind]
    facts, sections = read_bundle(path)
    assert facts["task"] == "text_generation"
    assert {"engine.onnx", "runtime.json"} <= set(sections)
    with open_bundle(path) as bundle:
        assert (facts["family"], facts["backend"]) == (bundle.family, bundle.backend)
        assert sections == {name: bytes(bundle.section_view(name)) for name in bundle.sections}


OLDER = sorted((HERE.parents[1] / "schema" / "vectors" / "good" / "older").glob("*.bundle"))


@pytest.mark.parametrize("old", OLDER, ids=lambda path: path.stem)
def test_the_strict_reader_takes_converted_bundles(old: Path, tmp_path: Path) -> None:
    migrate(old, tmp_path / "new.bundle")
    facts, sections = read_bundle(tmp_path / "new.bundle")
    assert len(json.loads(sections["runtime.json"])) == {"qwen3_5": 20, "rwkv": 14}[facts["family"]]
    assert sections["engine.plan"].startswith(b"plan of the decode engine")


@pytest.mark.parametrize("name", ["strict_format_1_reader", "single_engine_loader"])
def test_the_frozen_loaders_import_nothing_of_rowpack(name: str) -> None:
    tree = ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    allowed = {
        "__future__",
        "json",
        "re",
        "struct",
        "tempfile",
        "pathlib",
        "typing",
        "numpy",
        "onnxruntime",
        "tokenizers",
    }
    assert modules <= allowed
