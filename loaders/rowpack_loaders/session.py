"""One conversation with a model: prompts in chunks, single steps, snapshots.

Prompt rows are cut at absolute multiples of ``prefill_rows``, counted from the start of the sequence: a
prompt that is continued later is cut at the same places as one given at once, and so gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.integers import as_integer
from rowpack_loaders.model_description import ModelDescription
from rowpack_loaders.runtimes import Runtime

if TYPE_CHECKING:
    from rowpack_loaders.buffers import SequenceSnapshot
    from rowpack_loaders.runtimes import FloatArray, IntArray

PrefillMode = Literal["auto", "chunked", "token-loop"]
Overflow = Literal["error", "slide"]
Rows = TypeVar("Rows")
Result = TypeVar("Result")
PREFILL_MODES = ("auto", "chunked", "token-loop")
OVERFLOWS = ("error", "slide")


@dataclass(frozen=True)
class PrefillRun:
    """How prompt rows were run: ``chunked`` or ``token-loop``, and the rows of each engine call."""

    mode: str
    chunks: tuple[int, ...]


def chunk_lengths(position: int, token_count: int, prefill_rows: int) -> list[int]:
    """Return the rows of each chunk for ``token_count`` rows that follow ``position`` earlier ones.

    Chunks end at multiples of ``prefill_rows``, so only the first and the last may be shorter.
    """
    lengths = []
    end = position + token_count
    while position < end:
        stop = min(end, (position // prefill_rows + 1) * prefill_rows)
        lengths.append(stop - position)
        position = stop
    return lengths


class Session:
    """One sequence on a loaded model; sessions of one decoder are independent and may run in several threads.

    After an error inside an engine the session refuses everything but :meth:`reset` and :meth:`restore`;
    the model and its other sessions are not affected. A refused argument changes nothing. With
    ``overflow="slide"`` rows beyond the cache's capacity run one by one over a cache that drops its oldest
    row; :attr:`slid_rows` then counts the dropped rows, and output after the first is not the reference's.
    """

    def __init__(self, model: ModelDescription, runtime: Runtime, *, overflow: Overflow = "error") -> None:
        _check_choice("overflow_unknown", "overflow", overflow, OVERFLOWS)
        self.model = model
        self._runtime = runtime
        self._slide = overflow == "slide" and model.bounded_rows is not None
        self._sequence = runtime.open_sequence(slide=self._slide)
        self._usable = True
        self.prefill_run = PrefillRun("token-loop", ())

    @property
    def position(self) -> int:
        """The rows seen since the start."""
        return self._sequence.position

    @property
    def slid_rows(self) -> int:
        """The rows that a sliding cache has dropped."""
        return self._sequence.slid_rows

    @property
    def usable(self) -> bool:
        """False after an error inside an engine, until the session is reset or restored."""
        return self._usable

    def reset(self) -> None:
        """Go back to the start of a sequence."""
        self._sequence.reset()
        self._usable = True

    def prefill(self, token_ids: Sequence[int] | IntArray, *, mode: PrefillMode = "auto") -> FloatArray:
        """Start anew with the prompt ``token_ids``; return the logits [vocab] of its last row.

        ``auto`` runs chunks where the bundle has a prefill engine, a last one of a single row as a step, and single
        rows otherwise; :attr:`prefill_run` tells afterwards. Raises ``prompt_empty``, ``token_id_invalid``,
        ``sequence_too_long``, ``prefill_engine_missing``.
        """
        ids = self._checked_prompt(token_ids, mode, position=0)
        self.reset()
        return self._run_prompt(ids, mode)

    def extend(self, token_ids: Sequence[int] | IntArray, *, mode: PrefillMode = "auto") -> FloatArray:
        """Run further prompt rows after those already seen; otherwise as :meth:`prefill`."""
        self._require_usable()
        return self._run_prompt(self._checked_prompt(token_ids, mode, position=self.position), mode)

    def step(self, token_id: int) -> FloatArray:
        """Run one row; return its logits [vocab], a copy that later calls leave alone."""
        return self.advance(token_id).copy()

    def advance(self, token_id: int) -> FloatArray:
        """Run one row as :meth:`step`, but return a view of the logits that the next run overwrites."""
        self._require_usable()
        checked = _checked_id(token_id, self.model.vocab_size, index=0)
        self.check_room(self.position, 1)
        self._usable = False
        logits = self._guarded(self._sequence.run_step, checked)
        self._usable = True
        return logits

    def snapshot(self) -> SequenceSnapshot:
        """Return a copy of all states and filled cache rows, valid whatever the session does next."""
        self._require_usable()
        return self._sequence.capture()

    def restore(self, snapshot: SequenceSnapshot) -> None:
        """Go back to a snapshot taken in any session of the same model; raise ``snapshot_of_another_model``
        otherwise.
        """
        own, taken = _identity(self.model), (snapshot.model_id, snapshot.content_digest)
        if taken != own:
            raise RowpackError(
                "snapshot_of_another_model",
                "The snapshot was taken with another bundle",
                found=" ".join(filter(None, taken)),
                expected=" ".join(filter(None, own)),
            )
        self._sequence.restore(snapshot)
        self._usable = True

    def check_room(self, prompt_tokens: int, new_tokens: int) -> None:
        """Raise ``sequence_too_long`` when a prompt and the tokens to generate after it cannot fit in the
        cache.
        """
        capacity = self.model.bounded_rows
        if capacity is None or self._slide or prompt_tokens + new_tokens <= capacity:
            return
        raise RowpackError(
            "sequence_too_long",
            "The prompt and the new tokens do not fit in the key/value cache of this bundle",
            found=f"{prompt_tokens} prompt tokens + {new_tokens} new tokens = {prompt_tokens + new_tokens}",
            expected=f"at most {capacity}",
            remedy="Build with a larger --max-sequence-length, shorten the prompt, or use overflow='slide'",
        )

    def _run_prompt(self, ids: IntArray, mode: PrefillMode) -> FloatArray:
        chunked = mode != "token-loop" and self._runtime.has_prefill_engine
        lengths = chunk_lengths(self.position, len(ids), self.model.limits.prefill_rows if chunked else 1)
        logits: FloatArray | None = None
        done: list[int] = []
        # An interrupt between two chunks leaves half a prompt behind, as an error inside one does.
        self._usable = False
        for rows in lengths:
            chunk, ids = ids[:rows], ids[rows:]
            # A step does less for one row than a chunk does; a chunk that others follow needs no logits.
            is_step = mode == "auto" and rows == 1 and not len(ids)
            if chunked and not is_step and self._fits(rows):
                if len(ids):
                    self._guarded(self._sequence.run_leading_chunk, chunk)
                else:
                    logits = self._guarded(self._sequence.run_chunk, chunk)
                done.append(rows)
            else:
                for token_id in chunk.tolist():
                    logits = self._guarded(self._sequence.run_step, token_id)
                done.extend([1] * rows)
        self._usable = True
        self.prefill_run = PrefillRun("chunked" if chunked else "token-loop", tuple(done))
        assert logits is not None, "an empty prompt was refused"
        return logits.copy()

    def _fits(self, rows: int) -> bool:
        capacity = self.model.bounded_rows
        return capacity is None or self.position + rows <= capacity

    def _guarded(self, run: Callable[[Rows], Result], rows: Rows) -> Result:
        try:
            return run(rows)
        except Exception as error:
            raise RowpackError(
                "engine_run_failed",
                "An engine stopped with an error",
                where=f"row {self.position}",
                found=(str(error) or type(error).__name__).strip().splitlines()[0][:400],
                expected="a finished run",
                remedy="Reset the session before using it again",
            ) from error

    def _require_usable(self) -> None:
        if not self._usable:
            raise RowpackError(
                "session_unusable",
                "An earlier error left this session in the middle of a sequence",
                found="a session after a failed run",
                expected="reset() or restore() first",
                remedy="Call reset() on the session",
            )

    def _checked_prompt(self, token_ids: Sequence[int] | IntArray, mode: PrefillMode, *, position: int) -> IntArray:
        _check_choice("prefill_mode_unknown", "prefill mode", mode, PREFILL_MODES)
        if mode == "chunked" and not self._runtime.has_prefill_engine:
            raise RowpackError(
                "prefill_engine_missing",
                "Chunked prefill was asked for, but no prefill engine is loaded",
                found=f"decoder_engine_layout {self.model.decoder_engine_layout}",
                expected="a split bundle with both engines loaded",
                remedy="Use prefill mode auto, or build with --decoder-engine-layout split",
            )
        if len(token_ids) == 0:
            raise RowpackError("prompt_empty", "The prompt has no tokens", found="0 tokens", expected="at least 1")
        ids = _checked_ids(token_ids, self.model.vocab_size)
        self.check_room(position, len(ids))
        return ids


def _identity(model: ModelDescription) -> tuple[str, str | None]:
    return model.model_id, model.content_digest


def _checked_ids(token_ids: Sequence[int] | IntArray, vocab_size: int) -> IntArray:
    """Return the ids as int32, or raise ``token_id_invalid`` naming the first that is not a token of the
    model.
    """
    checked = [_checked_id(token_id, vocab_size, index) for index, token_id in enumerate(token_ids)]
    return np.array(checked, dtype=np.int32)


def _checked_id(token_id: object, vocab_size: int, index: int) -> int:
    value = token_id if type(token_id) is int else as_integer(token_id)
    if value is not None and 0 <= value < vocab_size:
        return value
    raise RowpackError(
        "token_id_invalid",
        "A token id is not in the vocabulary",
        where=f"token {index}",
        found=repr(token_id)[:80],
        expected=f"an integer from 0 to {vocab_size - 1}",
    )


def _check_choice(code: str, name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise RowpackError(code, f"The {name} is unknown", found=repr(value), expected=" or ".join(allowed))
