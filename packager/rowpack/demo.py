"""The demo: from the small checkpoint that rowpack ships to a bundle, generated verses and measured times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from rowpack.progress import Progress

if TYPE_CHECKING:
    from rowpack_loaders.decoder import Decoder

PROMPTS = ("Ge12:1 Now the LORD", "Mt5:3 Blessed are", "Ps23:1 The LORD is")
MODEL_ID = "qwen3_5-kjv-4.4m"
VERSE_TOKENS = 64
TIMED_PROMPT_TOKENS = 142


@dataclass(frozen=True)
class Verse:
    """A prompt and what the model made of it."""

    prompt: str
    text: str


@dataclass(frozen=True)
class DemoReport:
    """What the demo built, generated and measured; times are medians in milliseconds."""

    path: Path
    file_bytes: int
    build_s: float
    verses: tuple[Verse, ...]
    prompt_tokens: int
    chunked_ms: float
    token_loop_ms: float
    decode_ms_per_token: float

    @property
    def speedup(self) -> float:
        """How many times faster the chunks are."""
        return self.token_loop_ms / self.chunked_ms

    def as_json(self) -> dict[str, object]:
        """Return the object that ``rowpack demo --json`` prints."""
        return {**asdict(self), "path": str(self.path), "speedup": round(self.speedup, 2)}


@contextmanager
def demo_checkpoint() -> Iterator[Path]:
    """Give the folder of the checkpoint in the package: a Qwen3.5 of 4.4 million parameters."""
    with as_file(files("rowpack") / "demo_checkpoint") as folder:
        yield folder


def make_verse(decoder: Decoder, prompt: str) -> Verse:
    """Continue ``prompt`` to the end of its line: the model was trained on one verse a line."""
    text = decoder.generate(prompt, VERSE_TOKENS).text or ""
    return Verse(prompt, text.split("\n")[0])


def run_demo(output: Path, progress: Progress) -> DemoReport:
    """Build ``output`` as a split bundle, generate a few verses with it, and time its two ways to read a prompt."""
    from rowpack import BuildRequest, build
    from rowpack_loaders import load
    from rowpack_loaders.benchmark import run_benchmark

    with demo_checkpoint() as checkpoint:
        request = BuildRequest(checkpoint=checkpoint, output=output, decoder_engine_layout="split", model_id=MODEL_ID)
        built = build(request, progress)
    with load(output) as decoder:
        with progress.stage("verses"):
            verses = tuple(make_verse(decoder, prompt) for prompt in PROMPTS)
        with progress.stage("times", detail=f"{TIMED_PROMPT_TOKENS} prompt tokens"):
            figures = run_benchmark(decoder, prompt_tokens=TIMED_PROMPT_TOKENS)
    medians_ms = {figure.mode: figure.median_ms for figure in figures.prefill}
    return DemoReport(
        path=built.path,
        file_bytes=built.file_bytes,
        build_s=sum(stage.elapsed_s for stage in built.stages),
        verses=verses,
        prompt_tokens=TIMED_PROMPT_TOKENS,
        chunked_ms=medians_ms["chunked"],
        token_loop_ms=medians_ms["token-loop"],
        decode_ms_per_token=figures.decode.median_ms_per_token,
    )
