"""Measure one sequence as it gets longer: prompt time, time of a step after it, and memory."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from artifacts import ArtifactStore
from contender_process import ContenderError, ContenderProcess, prompt_of
from contenders import LoadRequest
from contenders.catalogue import Artifact
from markdown_table import markdown_table, megabytes

SHORT_S = 1.0
"""Prompts shorter than this are timed three times after a warm-up."""
STEPS = 4


@dataclass(frozen=True)
class GrowingContender:
    """What is measured: ``python`` runs ``module`` with ``choice`` on an artifact."""

    name: str
    python: str
    module: str
    choice: str
    artifact: Artifact


@dataclass(frozen=True)
class PromptFigures:
    """One contender at one length. Memory is what the process held after it, peaks included."""

    contender: str
    tokens: int
    prefill_ms: float
    step_ms: float
    anonymous_bytes: int
    mapped_bytes: int
    peak_bytes: int


def measure_prompts(
    contenders: Sequence[GrowingContender],
    store: ArtifactStore,
    lengths: Sequence[int],
    *,
    threads: int,
    cache_rows: int,
    most_seconds: float,
) -> tuple[list[PromptFigures], dict[str, str]]:
    """Measure each contender from short to long, until one more length would take longer than ``most_seconds``.

    Returns the figures, and why a contender was left out or where it stopped.
    """
    figures: list[PromptFigures] = []
    remarks: dict[str, str] = {}
    vocabulary = store.vocabulary_size()
    for contender in contenders:
        print(f"{contender.name}: growing prompts", file=sys.stderr)
        request = LoadRequest(store.prepare(contender.artifact), contender.choice, threads, cache_rows)
        try:
            with ContenderProcess(contender.python, contender.module, request) as process:
                for tokens in lengths:
                    if expected_seconds(figures, contender.name, tokens) > most_seconds:
                        remarks[contender.name] = f"{tokens} tokens would have taken more than {most_seconds:.0f} s"
                        break
                    figures.append(measure_length(process, contender.name, prompt_of(tokens, vocabulary)))
        except ContenderError as error:
            remarks[contender.name] = str(error)
    return figures, remarks


def expected_seconds(figures: Sequence[PromptFigures], contender: str, tokens: int) -> float:
    """Return how long a prompt will take at least: as the longest that was run, and as much more for each further token
    as between the last two; what is read once a prompt does not grow."""
    known = [entry for entry in figures if entry.contender == contender]
    if not known:
        return 0.0
    last = known[-1]
    slope_ms = 0.0
    if len(known) > 1:
        slope_ms = max(0.0, (last.prefill_ms - known[-2].prefill_ms) / (last.tokens - known[-2].tokens))
    return (last.prefill_ms + slope_ms * (tokens - last.tokens)) / 1e3


def measure_length(process: ContenderProcess, name: str, prompt: list[int]) -> PromptFigures:
    """Time one prompt, steps after it, and read the memory."""
    seconds = [process.prefill_s(prompt)]
    if seconds[0] < SHORT_S:
        seconds = [process.prefill_s(prompt) for _ in range(3)]
    process.step_s(1)
    step_s = process.step_s(STEPS)
    memory = process.ask(do="memory")
    return PromptFigures(
        name, len(prompt), 1e3 * statistics.median(seconds), 1e3 * step_s, **{key: memory[key] for key in memory}
    )


def prompt_tables(figures: Sequence[PromptFigures]) -> str:
    """Return a row for each length and a group of columns for each contender: times, then memory."""
    names = list(dict.fromkeys(entry.contender for entry in figures))
    by_place = {(entry.contender, entry.tokens): entry for entry in figures}
    lengths = sorted({entry.tokens for entry in figures})
    times, memory = [], []
    for tokens in lengths:
        entries = [by_place.get((name, tokens)) for name in names]
        cells = [str(tokens)]
        for entry in entries:
            cells += [f"{entry.prefill_ms:,.1f}", f"{entry.prefill_ms / tokens:.2f}"] if entry else ["", ""]
            cells.append(f"{entry.step_ms:.1f}" if entry else "")
        times.append(cells)
        memory.append([str(tokens), *(memory_cell(entry) for entry in entries)])
    columns = ["tokens"]
    for name in names:
        columns += [f"{name}: prompt ms", "ms/token", "next step ms"]
    sizes = markdown_table(["tokens", *(f"{name}: anonymous + mapped (peak) MB" for name in names)], memory)
    return f"{markdown_table(columns, times)}\n\n{sizes}"


def memory_cell(entry: PromptFigures | None) -> str:
    """Return what a process held, empty where nothing was measured."""
    if entry is None:
        return ""
    return f"{megabytes(entry.anonymous_bytes)} + {megabytes(entry.mapped_bytes)} ({megabytes(entry.peak_bytes)})"


def growing_contenders(
    python: str, peers_python: str | None, bundle_options: tuple[str, ...] = ()
) -> list[GrowingContender]:
    """Return this project's two ways to run a prompt, and transformers where its environment is named."""
    bundle = Artifact("bundle", bundle_options)
    found = [
        GrowingContender("rowpack chunked", python, "rowpack_bundle", "chunked", bundle),
        GrowingContender("rowpack token loop", python, "rowpack_bundle", "token-loop", bundle),
    ]
    if peers_python is not None:
        checkpoint = Artifact("checkpoint")
        found.append(GrowingContender("transformers", peers_python, "hugging_face", "float32", checkpoint))
    return found
