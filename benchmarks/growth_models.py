"""Measure models that differ in one thing: cache capacity, layers, rows of a WKV chunk."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from artifacts import ArtifactStore, Environments
from contender_process import ContenderProcess, prompt_of
from contenders import LoadRequest
from contenders.catalogue import Artifact
from growing_shapes import Config, wide_rwkv, with_layers, wkv_tensor_bytes, write_shape
from markdown_table import markdown_table, megabytes

CAPACITIES = (1024, 4096, 32768)
LAYER_COUNTS = (4, 8, 16, 32)
WKV_HIDDEN = 5120
WKV_ROWS = (16, 32, 64)
LAYERS_VOCABULARY = 8192
PROMPT_TOKENS = 142
STEPS = 8


@dataclass(frozen=True)
class ModelFigures:
    """One model: ``size`` is what grows; memory before and after a prompt."""

    size: int
    build_s: float
    load_s: float
    prefill_ms: float
    decode_ms: float
    loaded_anonymous_bytes: int
    anonymous_bytes: int
    mapped_bytes: int
    peak_bytes: int


def measure_model(
    size: int, store: ArtifactStore, threads: int, cache_rows: int, options: tuple[str, ...] = (), tokens: int = 142
) -> ModelFigures:
    """Build a model's bundle, load it, run a prompt and steps; the bundle is removed."""
    print(f"size {size}", file=sys.stderr)
    artifact = Artifact("bundle", options)
    store.prepare(Artifact("checkpoint"))
    built = store.make(artifact, store.path(artifact))
    prompt = prompt_of(tokens, store.vocabulary_size())
    request = LoadRequest(store.path(artifact), "chunked", threads, cache_rows)
    try:
        with ContenderProcess(sys.executable, "rowpack_bundle", request) as process:
            loaded = process.ask(do="memory")
            process.prefill_s(prompt)
            prefill_s = process.prefill_s(prompt)
            process.step_s(1)
            decode_s, after = process.step_s(STEPS), process.ask(do="memory")
    finally:
        store.remove(artifact)
    return ModelFigures(
        size=size,
        build_s=built.seconds,
        load_s=process.loading["load_s"],
        prefill_ms=1e3 * prefill_s,
        decode_ms=1e3 * decode_s,
        loaded_anonymous_bytes=loaded["anonymous_bytes"],
        **after,
    )


def measure_capacities(
    shape: str, folder: Path, environments: Environments, threads: int, longest: int
) -> list[ModelFigures]:
    """Measure one model with caches of growing capacity, filled by the same short prompt."""
    return [
        measure_model(rows, ArtifactStore(shape, folder, environments, rows), threads, rows)
        for rows in CAPACITIES
        if rows <= longest
    ]


def measure_layers(shape: str, folder: Path, environments: Environments, threads: int) -> list[ModelFigures]:
    """Measure a shape with growing layer counts and a small vocabulary, so that layers are what is measured."""
    figures = []
    for layers in LAYER_COUNTS:
        config = with_layers(config_of(shape), layers, LAYERS_VOCABULARY)
        path = write_shape(config, folder / "shapes" / f"{Path(shape).stem}-{layers}-layers.json")
        store = ArtifactStore(path, folder, environments, 4096)
        figures.append(measure_model(layers, store, threads, 4096))
        store.remove(Artifact("checkpoint"))
    return figures


def measure_wkv(folder: Path, environments: Environments, threads: int) -> list[ModelFigures]:
    """Measure one RWKV-4 layer of the 14b model's width with chunks of growing rows: what a chunk holds in memory."""
    path = write_shape(wide_rwkv(config_of("rwkv4-14b"), WKV_HIDDEN), folder / "shapes" / f"wkv-{WKV_HIDDEN}.json")
    store = ArtifactStore(path, folder, environments, 4096)
    figures = [
        measure_model(rows, store, threads, 4096, ("--prefill-rows", str(rows)), tokens=2 * rows) for rows in WKV_ROWS
    ]
    store.remove(Artifact("checkpoint"))
    return figures


def config_of(shape: str) -> Config:
    """Return the config of a published shape or of a file."""
    from rowpack.cli.commands.synth import read_config
    from rowpack.synthesis.published_shapes import published_config

    return read_config(Path(shape)) if shape.endswith(".json") else published_config(shape)


def capacity_table(figures: Sequence[ModelFigures]) -> str:
    """Return one row a capacity."""
    return _table("rows of cache", figures)


def layers_table(figures: Sequence[ModelFigures]) -> str:
    """Return one row a layer count."""
    return _table("layers", figures)


def _table(grows: str, figures: Sequence[ModelFigures]) -> str:
    rows = [
        [
            f"{entry.size:,}",
            f"{entry.build_s:.1f}",
            f"{entry.load_s:.2f}",
            f"{entry.prefill_ms:.1f}",
            f"{entry.decode_ms:.2f}",
            megabytes(entry.anonymous_bytes),
            megabytes(entry.mapped_bytes),
        ]
        for entry in figures
    ]
    columns = [
        grows,
        "build s",
        "load s",
        f"prefill {PROMPT_TOKENS} ms",
        "decode ms/token",
        "anonymous MB",
        "mapped MB",
    ]
    return markdown_table(columns, rows)


def wkv_table(figures: Sequence[ModelFigures]) -> str:
    """Return the memory that chunks took beside the size of the exponents [rows + 1, rows, hidden]."""
    rows = []
    for entry in figures:
        tensor = wkv_tensor_bytes(entry.size, WKV_HIDDEN)
        grown = entry.anonymous_bytes - entry.loaded_anonymous_bytes
        cells = [megabytes(tensor), megabytes(entry.loaded_anonymous_bytes), megabytes(grown)]
        rows.append([str(entry.size), *cells, f"{grown / tensor:.2f}", f"{entry.prefill_ms:.1f}"])
    columns = ["rows a chunk", "exponents MB", "anonymous after load MB", "more after a prompt MB", "× exponents"]
    return markdown_table([*columns, "prefill of two chunks ms"], rows)
