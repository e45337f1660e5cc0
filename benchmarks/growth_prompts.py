"""Measure one sequence as it gets longer: prompt time, time of a step after it, and memory."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from artifacts import ArtifactStore, Environments
from contender_process import ContenderError, ContenderProcess, prompt_of
from contenders import LoadRequest
from contenders.catalogue import Artifact
from markdown_table import markdown_table, megabytes
from measured_process import CommandError

SHORT_S = 1.0
"""Prompts shorter than this are timed three times after a warm-up."""
STEPS = 4
PEERS = {
    "transformers": ("hugging_face", "float32", Artifact("checkpoint")),
    "ONNX Runtime GenAI": ("genai_folder", "", Artifact("genai", ("fp32",))),
    "llama.cpp": ("llama_cpp_file", "", Artifact("gguf", ("f32",))),
}
"""Who else runs growing prompts, in float32: module, choice, what it loads."""


@dataclass(frozen=True)
class GrowingContender:
    """What is measured: ``python`` runs ``module`` with ``choice`` on an artifact, prompts that are expected to take no
    more than ``most_seconds``; ``import_path`` stands in for ``PYTHONPATH`` where it is not None."""

    name: str
    python: str
    module: str
    choice: str
    artifact: Artifact
    most_seconds: float
    import_path: str | None = None


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
) -> tuple[list[PromptFigures], dict[str, str]]:
    """Measure each contender from short to long, until one more length would take longer than its ``most_seconds``.

    Returns the figures, and why a contender was left out or where it stopped.
    """
    figures: list[PromptFigures] = []
    remarks: dict[str, str] = {}
    vocabulary = store.vocabulary_size()
    for contender in contenders:
        print(f"{contender.name}: preparing", file=sys.stderr)
        try:
            source = store.prepare(contender.artifact)
            library = store.llama_cpp() if contender.artifact.kind == "gguf" else None
            request = LoadRequest(source, contender.choice, threads, cache_rows, library)
            with ContenderProcess(
                contender.python, contender.module, request, import_path=contender.import_path
            ) as process:
                for tokens in lengths:
                    seconds = expected_seconds(figures, contender.name, tokens)
                    if seconds > contender.most_seconds:
                        remarks[contender.name] = (
                            f"{tokens:,} tokens would have taken more than {contender.most_seconds:.0f} s"
                        )
                        break
                    print(f"{contender.name}: {tokens:,} tokens, about {seconds:.0f} s", file=sys.stderr)
                    figures.append(measure_length(process, contender.name, prompt_of(tokens, vocabulary)))
        except (CommandError, ContenderError) as error:
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
        cells = [f"{tokens:,}"]
        for entry in entries:
            cells += [f"{entry.prefill_ms:,.1f}", f"{entry.prefill_ms / tokens:.2f}"] if entry else ["", ""]
            cells.append(f"{entry.step_ms:.1f}" if entry else "")
        times.append(cells)
        memory.append([f"{tokens:,}", *(memory_cell(entry) for entry in entries)])
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
    peers: Collection[str], environments: Environments, most_seconds: float, most_seconds_chunked: float
) -> list[GrowingContender]:
    """Return this project's two ways to run a prompt, and peers (names of ``PEERS``).

    ``most_seconds_chunked`` is for the chunks, ``most_seconds`` for the others, which reach the long prompts later.
    """
    own, bundle = environments.rowpack_python, Artifact("bundle")
    found = [
        GrowingContender("rowpack chunked", own, "rowpack_bundle", "chunked", bundle, most_seconds_chunked),
        GrowingContender("rowpack token loop", own, "rowpack_bundle", "token-loop", bundle, most_seconds),
    ]
    for name in peers:
        module, choice, artifact = PEERS[name]
        if artifact.kind == "gguf":
            found.append(GrowingContender(name, own, module, choice, artifact, most_seconds))
        else:
            python = environments.peers_python or own
            path = environments.peers_path
            found.append(GrowingContender(name, python, module, choice, artifact, most_seconds, path))
    return found
