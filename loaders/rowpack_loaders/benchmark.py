"""Time prefill and decode apart, each to the same completion boundary: final state written, logits read.

The contenders (chunked and token by token) take turns, so that a machine that slows down slows both; figures
are medians after a warm-up. Two shared cores give medians that repeat within a few per cent when quiet.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Literal

import numpy as np

from rowpack_loaders.decoder import Decoder
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.host import processor_name
from rowpack_loaders.integers import as_integer
from rowpack_loaders.session import Session
from rowpack_loaders.version import __version__

Mode = Literal["chunked", "token-loop"]


@dataclass(frozen=True)
class PrefillFigure:
    """The time of one prompt in one mode: median and best of the repeats."""

    mode: str
    chunks: tuple[int, ...]
    median_ms: float
    best_ms: float
    tokens_per_second: float


@dataclass(frozen=True)
class DecodeFigure:
    """The time of one new token after the prompt: median over repeats of the mean over steps, and the best
    repeat.
    """

    steps: int
    median_ms_per_token: float
    best_ms_per_token: float
    tokens_per_second: float


@dataclass(frozen=True)
class BenchmarkReport:
    """What was measured, on what, and how often."""

    bundle: str
    model_id: str
    decoder_engine_layout: str
    precision: str
    backend: str
    backend_version: str
    rowpack_version: str
    python_version: str
    processor: str
    threads: int
    prompt_tokens: int
    repeats: int
    prefill: tuple[PrefillFigure, ...]
    decode: DecodeFigure

    @property
    def prefill_speedup(self) -> float | None:
        """How many times faster chunks are than single rows, None when only one way was measured."""
        medians = {figure.mode: figure.median_ms for figure in self.prefill}
        if len(medians) < 2:
            return None
        return round(medians["token-loop"] / medians["chunked"], 2)

    def as_json(self) -> dict[str, object]:
        """Return the object that ``rowpack bench --json`` prints."""
        prefill = [{**asdict(figure), "chunks": list(figure.chunks)} for figure in self.prefill]
        return {**asdict(self), "prefill": prefill, "prefill_speedup": self.prefill_speedup}


def run_benchmark(
    decoder: Decoder,
    *,
    prompt_tokens: int = 142,
    new_tokens: int = 32,
    repeats: int = 5,
    seed: int = 0,
    on_repeat: Callable[[int, int], None] | None = None,
) -> BenchmarkReport:
    """Time ``decoder`` with a random prompt of ``prompt_tokens`` and ``new_tokens`` single rows after it.

    ``on_repeat(done, total)`` tells progress. Raises ``benchmark_argument_invalid``, and
    ``sequence_too_long`` when the cache cannot hold the work.
    """
    for name, value in (("prompt_tokens", prompt_tokens), ("new_tokens", new_tokens), ("repeats", repeats)):
        if (as_integer(value) or 0) < 1:
            raise RowpackError(
                "benchmark_argument_invalid",
                f"The benchmark's {name} is not positive",
                where=name,
                found=str(value),
                expected="an integer from 1",
            )
    session = decoder.session()
    session.check_room(prompt_tokens, new_tokens)
    prompt = np.random.default_rng(seed).integers(decoder.model.vocab_size, size=prompt_tokens).tolist()
    modes: list[Mode] = ["chunked", "token-loop"] if decoder.runtime.has_prefill_engine else ["token-loop"]
    prefill_ms: dict[Mode, list[float]] = {mode: [] for mode in modes}
    chunks: dict[Mode, tuple[int, ...]] = {}
    decode_ms: list[float] = []
    for repeat in range(repeats + 1):
        times = {}
        for mode in modes:
            times[mode] = _time_prefill(session, prompt, mode)
            chunks[mode] = session.prefill_run.chunks
        step_ms = _time_steps(session, new_tokens)
        if repeat:  # the first round warms caches, thread pools and the processor's clock
            for mode in modes:
                prefill_ms[mode].append(times[mode])
            decode_ms.append(step_ms)
        if on_repeat is not None:
            on_repeat(repeat + 1, repeats + 1)
    return BenchmarkReport(
        bundle=str(decoder.bundle.path) if decoder.bundle else decoder.model.model_id,
        model_id=decoder.model.model_id,
        decoder_engine_layout=decoder.model.decoder_engine_layout,
        precision=decoder.model.precision,
        backend=decoder.runtime.backend,
        backend_version=decoder.runtime.backend_version,
        rowpack_version=__version__,
        python_version=platform.python_version(),
        processor=processor_name(),
        threads=decoder.runtime.thread_count,
        prompt_tokens=prompt_tokens,
        repeats=repeats,
        prefill=tuple(_prefill_figure(mode, chunks[mode], prefill_ms[mode], prompt_tokens) for mode in modes),
        decode=_decode_figure(new_tokens, decode_ms),
    )


def _time_prefill(session: Session, prompt: list[int], mode: Mode) -> float:
    started = perf_counter()
    logits = session.prefill(prompt, mode=mode)
    logits.argmax()
    return (perf_counter() - started) * 1e3


def _time_steps(session: Session, new_tokens: int) -> float:
    token_id = 0
    started = perf_counter()
    for _ in range(new_tokens):
        token_id = int(session.advance(token_id).argmax())
    return (perf_counter() - started) * 1e3 / new_tokens


def _prefill_figure(mode: str, chunks: tuple[int, ...], times_ms: list[float], tokens: int) -> PrefillFigure:
    middle = median(times_ms)
    return PrefillFigure(mode, chunks, round(middle, 3), round(min(times_ms), 3), round(tokens / middle * 1e3, 1))


def _decode_figure(steps: int, times_ms: list[float]) -> DecodeFigure:
    middle = median(times_ms)
    return DecodeFigure(steps, round(middle, 4), round(min(times_ms), 4), round(1e3 / middle, 1))
