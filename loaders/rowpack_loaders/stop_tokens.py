"""Decide which tokens end a generation.

Checkpoints name their end tokens in several places that often disagree; the manifest lists the union, each
with where it came from, and generation stops at any of them. Id 0 is a legal end token.
"""

from __future__ import annotations

from collections.abc import Iterable

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.integers import as_integer
from rowpack_loaders.manifest import Tokens


def resolve_stop_token_ids(tokens: Tokens, requested: Iterable[int] | None) -> frozenset[int]:
    """Return the ids that end a generation: ``requested`` when given (an empty list: none), else the
    manifest's.

    Raises :class:`RowpackError` ``stop_token_id_invalid`` for a requested id that is not a token of the
    model.
    """
    if requested is None:
        return frozenset(tokens.eos_ids)
    return frozenset(_checked(token_id, tokens.vocab_size) for token_id in requested)


def _checked(token_id: object, vocab_size: int) -> int:
    value = as_integer(token_id)
    if value is None or not 0 <= value < vocab_size:
        raise RowpackError(
            "stop_token_id_invalid",
            "A stop token is not a token of this model",
            where="stop_token_ids",
            found=repr(token_id)[:80],
            expected=f"an integer from 0 to {vocab_size - 1}",
        )
    return value
