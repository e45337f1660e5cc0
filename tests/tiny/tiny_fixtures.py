"""Tiny bundles of both families and layouts, built once a run for all tests that want them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The checkpoint of each family."""
    from tiny_models import CONFIGS, tiny_checkpoint

    folder = tmp_path_factory.mktemp("checkpoints")
    return {family: tiny_checkpoint(family, folder / family) for family in CONFIGS}


@pytest.fixture(scope="session")
def tiny_bundles(
    tiny_checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Path]:
    """A bundle for each family and layout."""
    from tiny_models import BUILD_OPTIONS

    from rowpack import BuildRequest, build

    folder = tmp_path_factory.mktemp("bundles")
    return {
        (family, layout): build(
            BuildRequest(
                checkpoint, folder / f"{family}-{layout}.bundle", decoder_engine_layout=layout, **BUILD_OPTIONS
            )
        ).path
        for family, checkpoint in tiny_checkpoints.items()
        for layout in ("single", "split")
    }


@pytest.fixture(scope="session")
def bundles_of_every_kind(
    tiny_checkpoints: dict[str, Path],
    tiny_bundles: dict[tuple[str, str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """Both families and layouts, half precision, fused mixers, and bundles that lack something: golden vectors, a
    tokenizer, the usual word in runtime.json.
    """
    from tiny_models import BUILD_OPTIONS

    from rowpack import BuildRequest, build

    folder = tmp_path_factory.mktemp("kinds")
    without_tokenizer = folder / "without tokenizer"
    without_tokenizer.mkdir()
    for path in tiny_checkpoints["rwkv"].iterdir():
        if path.name != "tokenizer.json":
            (without_tokenizer / path.name).write_bytes(path.read_bytes())
    kinds = {
        "half": (tiny_checkpoints["qwen3_5"], {"precision": "fp16"}),
        "half-rwkv": (tiny_checkpoints["rwkv"], {"precision": "fp16"}),
        "fused-mixers": (tiny_checkpoints["qwen3_5"], {"lowering": "fused"}),
        "unverified": (tiny_checkpoints["qwen3_5"], {"verify": False}),
        "no-tokenizer": (without_tokenizer, {"allow_missing_tokenizer": True, "verify": False}),
        "runtime-json-split": (tiny_checkpoints["rwkv"], {"runtime_json_layout": "split", "verify": False}),
    }
    bundles = {f"{family}-{layout}": path for (family, layout), path in tiny_bundles.items()}
    for name, (checkpoint, options) in kinds.items():
        request = BuildRequest(
            checkpoint, folder / f"{name}.bundle", decoder_engine_layout="split", **{**BUILD_OPTIONS, **options}
        )
        bundles[name] = build(request).path
    return bundles
