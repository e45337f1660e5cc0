"""Compare the files that turn text into ids: vocabularies token by token, other files by their values or bytes."""

from __future__ import annotations

from collections.abc import Iterator

from rowpack.comparison.difference import Difference, Pair, shortened
from rowpack.comparison.values import value_differences
from rowpack_loaders.bundle import Bundle
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.strict_json import parse_json

TOKENIZER_SECTION = "tokenizer.json"

_FILE_LIMIT_BYTES = 256 * 2**20
_MOST_NAMED = 5


def tokenizer_differences(pair: Pair) -> Iterator[Difference]:
    """Yield what differs between the tokenizer files that both bundles have."""
    for section in pair.common(sorted({*tokenizer_sections(pair.first), *tokenizer_sections(pair.second)})):
        if pair.same_section(section):
            continue
        found = list(_file_differences(section, *pair.read(section, _FILE_LIMIT_BYTES)))
        yield from found or [Difference("tokenizer", section, "the same values, written otherwise")]


def tokenizer_sections(bundle: Bundle) -> list[str]:
    """Return the sections that a bundle's manifest calls its tokenizer."""
    tokenizer = bundle.manifest.get("tokenizer")
    sections = tokenizer.get("sections") if isinstance(tokenizer, dict) else None
    return [name for name in sections if isinstance(name, str)] if isinstance(sections, list) else []


def _file_differences(section: str, first: bytes, second: bytes) -> Iterator[Difference]:
    try:
        values = [parse_json(data, where=section, max_values=10_000_000) for data in (first, second)]
    except RowpackError:
        yield Difference("tokenizer", section, "has other text", f"{len(first)} bytes", f"{len(second)} bytes")
        return
    if section == TOKENIZER_SECTION:
        vocabularies = [_vocabulary(value) for value in values]
        yield from _token_differences(section, *vocabularies)
        values = [_without_vocabulary(value) for value in values]
    yield from value_differences("tokenizer", f"{section}#", *values)


def _token_differences(section: str, first: dict[str, int], second: dict[str, int]) -> Iterator[Difference]:
    groups = {
        "tokens only the first has": [token for token in first if token not in second],
        "tokens only the second has": [token for token in second if token not in first],
        "tokens with another id": [token for token in first if token in second and first[token] != second[token]],
    }
    for words, tokens in groups.items():
        if tokens:
            named = ", ".join(repr(shortened(token, 20)) for token in tokens[:_MOST_NAMED])
            more = f" and {len(tokens) - _MOST_NAMED:,} more" if len(tokens) > _MOST_NAMED else ""
            yield Difference("tokenizer", section, f"{len(tokens):,} {words}: {named}{more}")


def _vocabulary(value: object) -> dict[str, int]:
    model = value.get("model") if isinstance(value, dict) else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    return dict(vocabulary) if isinstance(vocabulary, dict) else {}


def _without_vocabulary(value: object) -> object:
    if not isinstance(value, dict) or not isinstance(value.get("model"), dict):
        return value
    model = {key: member for key, member in value["model"].items() if not _is_vocabulary(key, member)}
    return {**value, "model": model}


def _is_vocabulary(key: str, member: object) -> bool:
    return key == "vocab" and isinstance(member, dict)
