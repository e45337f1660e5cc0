"""Generate tokens after a prompt, and report what was generated and how long it took."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.integers import as_integer
from rowpack_loaders.sampling import Sampler
from rowpack_loaders.session import PrefillMode, Session

if TYPE_CHECKING:
    from rowpack_loaders.runtimes import FloatArray, IntArray

STOP = "stop"
LENGTH = "length"


@dataclass(frozen=True)
class PrefillTiming:
    """How the prompt was run: mode, tokens, the rows of each engine call, and the time until its logits
    were read.
    """

    mode: str
    tokens: int
    chunks: tuple[int, ...]
    ms: float


@dataclass(frozen=True)
class DecodeTiming:
    """How many single rows were run after the prompt, and the mean time of one with its sampling.

    The first new token comes from the prompt's logits, so there is one step less than new tokens.
    """

    steps: int
    ms_per_token: float | None


@dataclass(frozen=True)
class TokenRun:
    """New tokens (a stop token that ended the run included), why the run ended, and its timings.

    ``slid_rows`` above 0 says that a sliding cache dropped rows, so the tokens are not the reference's.
    """

    token_ids: tuple[int, ...]
    finish_reason: str
    prefill: PrefillTiming
    decode: DecodeTiming
    slid_rows: int


@dataclass(frozen=True)
class Generation:
    """The result of a generation.

    ``token_ids`` are all new tokens; the stop token that ended the run is the last of them and is not part
    of ``text``. ``text`` is None when the bundle has no tokenizer. ``finish_reason`` is ``stop`` or
    ``length``.
    """

    token_ids: tuple[int, ...]
    text: str | None
    finish_reason: str
    decoder_engine_layout: str
    prefill: PrefillTiming
    decode: DecodeTiming
    slid_rows: int = 0

    @property
    def timings(self) -> dict[str, float | None]:
        """The two times in milliseconds: the whole prompt, and one new token."""
        return {"prefill_ms": self.prefill.ms, "decode_ms_per_token": self.decode.ms_per_token}

    def as_json(self) -> dict[str, object]:
        """Return the object that ``rowpack run --json`` prints."""
        return {
            "token_ids": list(self.token_ids),
            "text": self.text,
            "finish_reason": self.finish_reason,
            "decoder_engine_layout": self.decoder_engine_layout,
            "prefill": {**asdict(self.prefill), "chunks": list(self.prefill.chunks)},
            "decode": asdict(self.decode),
            "slid_rows": self.slid_rows,
        }


def generate_tokens(
    session: Session,
    prompt_ids: Sequence[int] | IntArray,
    *,
    max_new_tokens: int,
    sampler: Sampler,
    stop_token_ids: Set[int] = frozenset(),
    prefill: PrefillMode = "auto",
    on_token: Callable[[int, bool], None] | None = None,
) -> TokenRun:
    """Run ``prompt_ids`` from the start of ``session`` and choose up to ``max_new_tokens`` tokens after it.

    ``on_token(token_id, is_last)`` is called as soon as a token is chosen; its time is not counted. Raises
    what :meth:`Session.prefill` raises, and ``max_new_tokens_invalid``; a sequence that could not fit is
    refused before it starts.
    """
    if (as_integer(max_new_tokens) or 0) < 1:
        raise RowpackError(
            "max_new_tokens_invalid",
            "The number of new tokens is not positive",
            found=repr(max_new_tokens),
            expected="an integer from 1",
        )
    session.check_room(len(prompt_ids), max_new_tokens)
    started = perf_counter()
    logits = session.prefill(prompt_ids, mode=prefill)
    prefill_ms = (perf_counter() - started) * 1e3
    run = session.prefill_run
    token_ids, decode = choose_tokens(
        session,
        logits,
        max_new_tokens=max_new_tokens,
        sampler=sampler,
        stop_token_ids=stop_token_ids,
        on_token=on_token,
    )
    return TokenRun(
        token_ids=tuple(token_ids),
        finish_reason=STOP if token_ids[-1] in stop_token_ids else LENGTH,
        prefill=PrefillTiming(run.mode, len(prompt_ids), run.chunks, round(prefill_ms, 3)),
        decode=decode,
        slid_rows=session.slid_rows,
    )


def choose_tokens(
    session: Session,
    logits: FloatArray,
    *,
    max_new_tokens: int,
    sampler: Sampler,
    stop_token_ids: Set[int] = frozenset(),
    on_token: Callable[[int, bool], None] | None = None,
) -> tuple[list[int], DecodeTiming]:
    """Choose tokens from ``logits`` [vocab] of the session's last row on, running one row for each but the
    last.
    """
    token_ids: list[int] = []
    decode_s = 0.0
    token_id = sampler.choose(logits)
    while True:
        token_ids.append(token_id)
        last = token_id in stop_token_ids or len(token_ids) == max_new_tokens
        if on_token is not None:
            on_token(token_id, last)
        if last:
            break
        started = perf_counter()
        token_id = sampler.choose(session.advance(token_id))
        decode_s += perf_counter() - started
    steps = len(token_ids) - 1
    return token_ids, DecodeTiming(steps, round(decode_s * 1e3 / steps, 4) if steps else None)
