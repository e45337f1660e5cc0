"""Rules about runtime.json: exactly the keys that old loaders count, with the values of the manifest."""

from __future__ import annotations

from collections.abc import Iterator

from rowpack_loaders.errors import Problem
from rowpack_loaders.manifest import SpecialToken
from rowpack_loaders.schema_data import schema_names
from rowpack_loaders.strict_json import parse_json_object
from rowpack_loaders.validation.schema_check import schema_problems
from rowpack_loaders.validation.subject import FIRST_READ_BYTES, Finding, Rule, Subject, Warned

RUNTIME_JSON_LIMIT_BYTES = 2**20
RUNTIME_JSON_VALUES_LIMIT = 20_000
ABSENT_TOKEN = -1

# Loaders of its time know fp16 and fp32; a bf16 engine shows them float32 inputs and outputs.
_PRECISION_WORDS = {"bf16": "fp32"}


def runtime_json_follows_schema(subject: Subject) -> Iterator[Finding]:
    """The section is strict JSON with exactly the keys of its family."""
    name, parsed = runtime_json_section(subject)
    if parsed is None:
        return
    schema = f"runtime.{subject.container.family}"
    if schema not in schema_names():
        yield Warned(
            Problem(
                "runtime_json_family_unknown",
                "The keys of runtime.json are not known for this family",
                where=name,
                found=subject.container.family,
                expected="a family with a published schema",
            )
        )
        return
    yield from schema_problems(parsed, schema, name)


def runtime_json_matches_manifest(subject: Subject) -> Iterator[Finding]:
    """What runtime.json and the manifest both say is the same."""
    name, parsed = runtime_json_section(subject)
    if parsed is None:
        return
    manifest = subject.manifest_fields
    tokens = subject.tokens
    precision = manifest.child("model").text("precision")
    hyper_parameters = manifest.child("model").child("hyper_parameters")
    wanted: dict[str, tuple[object, ...]] = {
        "vocab_size": (tokens.vocab_size,),
        "hidden_size": (hyper_parameters.integer("hidden_size"),),
        "precision": (_PRECISION_WORDS.get(precision, precision),),
        "max_cache_length": (subject.limits.max_cache_length,),
        "decoder_engine_layout": (manifest.child("runtime_json").text("decoder_engine_layout"),),
        "eos_token_id": tokens.eos_ids or (ABSENT_TOKEN,),
        "bos_token_id": _token_or_absent(tokens.bos),
        "pad_token_id": _token_or_absent(tokens.pad),
    }
    for key, values in wanted.items():
        if key in parsed and parsed[key] not in values:
            yield Problem(
                "runtime_json_mismatch",
                "runtime.json and the manifest contradict each other",
                where=f"{name}#/{key}",
                found=repr(parsed[key])[:80],
                expected=" or ".join(str(value) for value in values),
            )


def runtime_json_names_engines_that_are_there(subject: Subject) -> Iterator[Finding]:
    """The word that loaders before the manifest are told is ``split`` only for a bundle with two engines."""
    word = subject.manifest_fields.child("runtime_json").text("decoder_engine_layout")
    layout = subject.manifest_fields.text("decoder_engine_layout")
    if word == "split" and layout != "split":
        yield Problem(
            "runtime_json_layout_untrue",
            "runtime.json tells of a prefill engine that the bundle does not have",
            where="/runtime_json/decoder_engine_layout",
            found=word,
            expected=layout,
        )


def runtime_json_section(subject: Subject) -> tuple[str, dict[str, object] | None]:
    """Return the section's name and parsed content, read once; None when there is none to read.

    A header-only check reads it where it lies in the first MiB, as it does in a written bundle.
    """
    name = subject.manifest_fields.child("runtime_json").text("section")
    place = subject.section(name)
    if place is None or (subject.header_only and place.end_bytes > FIRST_READ_BYTES):
        return name, None  # references_are_declared has told a missing one
    if subject.runtime_json is None:
        stored = subject.container.read_section(name, limit_bytes=RUNTIME_JSON_LIMIT_BYTES)
        subject.runtime_json = parse_json_object(stored, where=name, max_values=RUNTIME_JSON_VALUES_LIMIT)
    return name, subject.runtime_json


def _token_or_absent(token: SpecialToken | None) -> tuple[int]:
    return (ABSENT_TOKEN if token is None else token.id,)


RULES: tuple[Rule, ...] = (
    runtime_json_follows_schema,
    runtime_json_matches_manifest,
    runtime_json_names_engines_that_are_there,
)
