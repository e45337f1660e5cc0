"""Rules about limits and tokens: every id inside the vocabulary, every bound inside the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rowpack_loaders.errors import Problem
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.validation.subject import Finding, Rule, Subject, Warned


def token_ids_are_in_vocabulary(subject: Subject) -> Iterator[Finding]:
    """Special tokens have ids that the engine can take and give."""
    tokens = subject.tokens
    places = {f"/tokens/eos/{index}": token for index, token in enumerate(tokens.eos)}
    if tokens.bos is not None:
        places["/tokens/bos"] = tokens.bos
    if tokens.pad is not None:
        places["/tokens/pad"] = tokens.pad
    for pointer, token in places.items():
        if token.id >= tokens.vocab_size:
            yield Problem(
                "token_id_beyond_vocabulary",
                "A special token is outside the vocabulary",
                where=f"{MANIFEST_SECTION}#{pointer}/id",
                found=str(token.id),
                expected=f"below {tokens.vocab_size}",
            )


def eos_ids_are_listed_once(subject: Subject) -> Iterator[Finding]:
    """Ids that end a sequence are listed once each, with all their sources."""
    for token_id, count in Counter(subject.tokens.eos_ids).items():
        if count > 1:
            yield Problem(
                "token_id_duplicate",
                "An end token is listed more than once",
                where=f"{MANIFEST_SECTION}#/tokens/eos",
                found=f"{token_id} {count} times",
                expected="once, with every source",
            )


def vocabulary_sizes_agree(subject: Subject) -> Iterator[Finding]:
    """The vocabulary of the tokens is that of the model."""
    of_tokens = subject.tokens.vocab_size
    of_model = subject.manifest_fields.child("model").child("hyper_parameters").integer("vocab_size")
    if of_tokens != of_model:
        yield Problem(
            "vocabulary_size_mismatch",
            "Tokens and model have vocabularies of different size",
            where=f"{MANIFEST_SECTION}#/tokens/vocab_size",
            found=str(of_tokens),
            expected=f"{of_model}, as in /model/hyper_parameters",
        )


def cache_fits_positions(subject: Subject) -> Iterator[Finding]:
    """A cache longer than what the model was trained for works, but its end is untried."""
    limits = subject.limits
    bounded = any(state.update == "append_rows" for state in subject.states)
    most = limits.max_position_embeddings
    if bounded and most is not None and limits.max_cache_length > most:
        yield Warned(
            Problem(
                "cache_longer_than_positions",
                "The cache is longer than the sequences the model was trained for",
                where=f"{MANIFEST_SECTION}#/limits/max_cache_length",
                found=str(limits.max_cache_length),
                expected=f"at most {most}",
            )
        )


def tokenizer_is_told_truly(subject: Subject) -> Iterator[Finding]:
    """The tokenizer is missing exactly when no section holds it."""
    tokenizer = subject.manifest_fields.child("tokenizer")
    if tokenizer.boolean("missing") != (not tokenizer.texts("sections")):
        yield Problem(
            "tokenizer_missing_mismatch",
            "The manifest contradicts itself about the tokenizer",
            where=f"{MANIFEST_SECTION}#/tokenizer",
            found=f"missing {str(tokenizer.boolean('missing')).lower()}, {len(tokenizer.texts('sections'))} sections",
            expected="missing exactly when there are no sections",
        )


RULES: tuple[Rule, ...] = (
    token_ids_are_in_vocabulary,
    eos_ids_are_listed_once,
    vocabulary_sizes_agree,
    cache_fits_positions,
    tokenizer_is_told_truly,
)
