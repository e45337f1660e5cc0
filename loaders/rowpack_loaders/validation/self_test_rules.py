"""Rules about the golden vectors: they unpack within bounds, follow their schema and fit the model."""

from __future__ import annotations

from collections.abc import Iterator

from rowpack_loaders.errors import Problem
from rowpack_loaders.golden import DECODED_LIMIT_BYTES, unpack_golden
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.manifest_fields import Fields
from rowpack_loaders.validation.schema_check import schema_problems
from rowpack_loaders.validation.subject import Finding, Rule, Subject


def golden_vectors_follow_schema(subject: Subject) -> Iterator[Finding]:
    """The section unpacks and follows the schema."""
    self_test = _self_test(subject)
    if self_test is not None:
        name = self_test.text("section")
        stored = subject.container.read_section(name, limit_bytes=DECODED_LIMIT_BYTES)
        subject.golden = unpack_golden(stored, where=name)
        yield from schema_problems(subject.golden, "golden", name)


def golden_vectors_match_manifest(subject: Subject) -> Iterator[Finding]:
    """There are as many cases as the manifest says."""
    self_test = _self_test(subject)
    golden = subject.golden
    if self_test is None or not isinstance(golden, dict) or not isinstance(golden.get("cases"), list):
        return
    if self_test.integer("cases") != len(golden["cases"]):
        yield Problem(
            "golden_manifest_mismatch",
            "The manifest and the golden vectors contradict each other",
            where=f"{MANIFEST_SECTION}#/self_test/cases",
            found=str(self_test.integer("cases")),
            expected=f"{len(golden['cases'])}, as in the section",
        )


def golden_tokens_fit_model(subject: Subject) -> Iterator[Finding]:
    """Every token is in the vocabulary and every case fits the cache."""
    self_test = _self_test(subject)
    golden = subject.golden
    if self_test is None or not isinstance(golden, dict) or not isinstance(golden.get("cases"), list):
        return
    vocab_size = subject.tokens.vocab_size
    bounded = any(state.update == "append_rows" for state in subject.states)
    most = subject.limits.max_cache_length
    for index, case in enumerate(golden["cases"]):
        where = f"{self_test.text('section')}#/cases/{index}"
        prompt, greedy = _ids(case, "prompt_ids"), _ids(case, "greedy_ids")
        beyond = [token_id for token_id in (*prompt, *greedy) if token_id >= vocab_size]
        if beyond:
            yield Problem(
                "token_id_beyond_vocabulary",
                "A golden case has a token outside the vocabulary",
                where=where,
                found=str(beyond[0]),
                expected=f"below {vocab_size}",
            )
        if bounded and len(prompt) + len(greedy) > most:
            yield Problem(
                "golden_case_too_long",
                "A golden case is longer than the cache",
                where=where,
                found=f"{len(prompt)} + {len(greedy)} tokens",
                expected=f"at most {most}",
            )


def _self_test(subject: Subject) -> Fields | None:
    self_test = subject.manifest_fields.optional_child("self_test")
    if self_test is None or subject.section(self_test.text("section")) is None:
        return None
    return self_test


def _ids(case: object, key: str) -> list[int]:
    values = case.get(key) if isinstance(case, dict) else None
    return [value for value in values if isinstance(value, int)] if isinstance(values, list) else []


RULES: tuple[Rule, ...] = (
    golden_vectors_follow_schema,
    golden_vectors_match_manifest,
    golden_tokens_fit_model,
)
