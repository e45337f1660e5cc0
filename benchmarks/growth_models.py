"""Measure models that differ in one thing: the capacity of the cache, or the number of layers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from artifacts import ArtifactStore, Environments
from contender_process import ContenderProcess, prompt_of
from contenders import LoadRequest
from contenders.catalogue import Artifact
from growing_shapes import config_of, text_part, with_layers, write_shape
from markdown_table import markdown_table, megabytes

CAPACITIES = (1024, 4096, 32768)
LAYER_COUNTS = (4, 8, 16, 32)
LAYERS_VOCABULARY = 8192
PROMPT_TOKENS = 142
STEPS = 8
USED_ROWS = 4096 - 64
"""How far caches of 4,096 rows and more are filled, to be compared: all but what the steps need."""


@dataclass(frozen=True)
class ModelFigures:
    """One model after one prompt: ``size`` is what grows."""

    size: int
    prompt_tokens: int
    build_s: float
    load_s: float
    prefill_ms: float
    decode_ms: float
    loaded_anonymous_bytes: int
    anonymous_bytes: int
    mapped_bytes: int
    peak_bytes: int


def measure_model(
    size: int, store: ArtifactStore, threads: int, cache_rows: int, prompt_lengths: Sequence[int] = (PROMPT_TOKENS,)
) -> list[ModelFigures]:
    """Build a model's bundle, load it, run each prompt and steps after it; the bundle is removed."""
    artifact = Artifact("bundle")
    print(f"size {size:,}: building", file=sys.stderr)
    store.prepare(Artifact("checkpoint"))
    built = store.make(artifact, store.path(artifact))
    request = LoadRequest(store.path(artifact), "chunked", threads, cache_rows)
    figures = []
    try:
        with ContenderProcess(sys.executable, "rowpack_bundle", request) as process:
            loaded = process.ask(do="memory")
            process.prefill_s(prompt_of(PROMPT_TOKENS, store.vocabulary_size()))
            for tokens in prompt_lengths:
                print(f"size {size:,}: prompt of {tokens:,}", file=sys.stderr)
                prefill_s = process.prefill_s(prompt_of(tokens, store.vocabulary_size()))
                process.step_s(1)
                decode_s, after = process.step_s(STEPS), process.ask(do="memory")
                figures.append(
                    ModelFigures(
                        size=size,
                        prompt_tokens=tokens,
                        build_s=built.seconds,
                        load_s=process.loading["load_s"],
                        prefill_ms=1e3 * prefill_s,
                        decode_ms=1e3 * decode_s,
                        loaded_anonymous_bytes=loaded["anonymous_bytes"],
                        **after,
                    )
                )
    finally:
        store.remove(artifact)
    return figures


def thinned(shape: str, layers: int, folder: Path) -> str:
    """Return the path of a shape with fewer layers and a small vocabulary, so that layers are what is measured."""
    config = with_layers(config_of(shape), layers, LAYERS_VOCABULARY)
    return write_shape(config, folder / "shapes" / f"{Path(shape).stem}-{layers}-layers.json")


def layer_count(shape: str) -> int:
    """Return how many layers a shape has."""
    return int(text_part(config_of(shape))["num_hidden_layers"])


def measure_capacities(
    shape: str, folder: Path, environments: Environments, threads: int, longest: int
) -> list[ModelFigures]:
    """Measure one model with caches of growing capacity, after a short prompt and filled to ``USED_ROWS`` rows."""
    figures = []
    for rows in CAPACITIES:
        if rows <= longest:
            store = ArtifactStore(shape, folder, environments, rows)
            figures += measure_model(rows, store, threads, rows, (PROMPT_TOKENS, min(rows - 64, USED_ROWS)))
    store.remove(Artifact("checkpoint"))
    return figures


def measure_layers(shape: str, folder: Path, environments: Environments, threads: int) -> list[ModelFigures]:
    """Measure a shape with growing layer counts and a small vocabulary."""
    figures = []
    for layers in LAYER_COUNTS:
        store = ArtifactStore(thinned(shape, layers, folder), folder, environments, 4096)
        figures += measure_model(layers, store, threads, 4096)
        store.remove(Artifact("checkpoint"))
    return figures


def capacity_table(figures: Sequence[ModelFigures]) -> str:
    """Return two rows a capacity: unused but for a short prompt, and used."""
    return _table("rows of cache", figures)


def layers_table(figures: Sequence[ModelFigures]) -> str:
    """Return one row a layer count."""
    return _table("layers", figures)


def _table(grows: str, figures: Sequence[ModelFigures]) -> str:
    rows = [
        [
            f"{entry.size:,}",
            f"{entry.prompt_tokens:,}",
            f"{entry.build_s:.1f}",
            f"{entry.load_s:.2f}",
            f"{entry.prefill_ms:,.1f}",
            f"{entry.decode_ms:.2f}",
            megabytes(entry.loaded_anonymous_bytes),
            megabytes(entry.anonymous_bytes),
            megabytes(entry.mapped_bytes),
            megabytes(entry.peak_bytes),
        ]
        for entry in figures
    ]
    times = ["build s", "load s", "prompt ms", "next step ms"]
    memory = ["own after load MB", "own MB", "mapped MB", "peak MB"]
    return markdown_table([grows, "prompt tokens", *times, *memory], rows)
