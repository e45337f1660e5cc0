"""What a decoder of a trained checkpoint must do, whichever runtime executes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rowpack_loaders.decoder import Decoder
from rowpack_loaders.selftest import replay_case

TOLERANCE = 1e-4
# A prompt on each side of every edge: the convolution's width, one chunk, two chunks, and the odd ones.
FEW = (0, 2, 3, 8, 9, 10, 14, 15, 21, 22, 23)


def check_cases(decoder: Decoder, cases: Sequence[Any], mode: Any) -> None:
    """Check that the cases' prompts give the reference's logits and tokens."""
    session = decoder.session()
    for case in cases:
        result = replay_case(session, case, mode, TOLERANCE)
        assert result.relative_logit_error < TOLERANCE, result
        assert result.tokens_equal, result


def check_prompt_in_pieces(decoder: Decoder, prompt: list[int], cuts: tuple[int, ...]) -> None:
    """Check that a prompt cut into pieces gives what it gives whole: the same bits where chunks end at the cuts."""
    whole, pieces = decoder.session(), decoder.session()
    expected = whole.prefill(prompt).copy()
    logits = pieces.prefill(prompt[: cuts[0]])
    for begin, end in zip(cuts, (*cuts[1:], len(prompt)), strict=True):
        logits = pieces.extend(prompt[begin:end])
    if all(cut % 64 == 0 for cut in cuts):
        assert np.array_equal(logits, expected)
    assert np.abs(logits - expected).max() < TOLERANCE * np.abs(expected).max()
    assert logits.argmax() == expected.argmax()


def check_snapshot_in_the_middle(decoder: Decoder, prompt: list[int]) -> None:
    """Check that a prompt goes on from a restored snapshot, whatever was run meanwhile, with the same bits."""
    session, fresh = decoder.session(), decoder.session()
    expected = fresh.prefill(prompt).copy()
    session.prefill(prompt[:64])
    snapshot = session.snapshot()
    session.extend([9] * 100)
    session.restore(snapshot)
    assert np.array_equal(session.extend(prompt[64:]), expected)
    assert np.array_equal(session.step(11), fresh.step(11))


def check_garbage_in_the_buffers(decoder: Decoder, prompt: list[int], mode: Any) -> None:
    """Check that what lies in buffers that are not the sequence's past changes nothing."""
    clean, dirty = decoder.session(), decoder.session()
    buffers = dirty._sequence.buffers
    for state in buffers.fixed:
        state.pair[1][...] = np.nan
    for cache in buffers.caches:
        cache.rows[...] = np.nan
    assert np.array_equal(dirty.prefill(prompt, mode=mode), clean.prefill(prompt, mode=mode))
    for token_id in (1, 2, 3):
        assert np.array_equal(dirty.step(token_id), clean.step(token_id))
