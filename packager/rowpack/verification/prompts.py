"""The prompts of the smoke run: short, and each there for a fault that real engines have had."""

from __future__ import annotations

from collections.abc import Iterator


def smoke_prompts(vocab_size: int, prefill_rows: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return (kind, token ids): one row, fewer rows than the convolution, a chunk and a bit, one token repeated.

    Ids come from a fixed linear congruential sequence, so every build of a checkpoint runs the same prompts.
    """
    ids = _spread_ids(vocab_size)
    return [
        ("one row", tuple(next(ids) for _ in range(1))),
        ("shorter than the convolution", tuple(next(ids) for _ in range(3))),
        ("one chunk and a bit", tuple(next(ids) for _ in range(prefill_rows + 2))),
        ("one token repeated", (next(ids),) * prefill_rows),
    ]


def _spread_ids(vocab_size: int) -> Iterator[int]:
    """Yield ids over the whole vocabulary (multiplier and increment of Knuth's MMIX generator)."""
    state = 20260824
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield (state >> 33) % vocab_size
