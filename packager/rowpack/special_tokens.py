"""Token ids with a meaning, from every place a checkpoint names them.

Checkpoints disagree with themselves: the config names one end token, the generation config another, the tokenizer a
third. The stop set is the union, each id with where it came from. Id 0 is a legal id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowpack_loaders.errors import RowpackError


@dataclass(frozen=True)
class SpecialTokens:
    """Begin, pad and end tokens; each id maps to the files that name it, in the order they were found."""

    bos: dict[int, list[str]]
    pad: dict[int, list[str]]
    eos: dict[int, list[str]]

    def first(self, kind: str) -> int:
        """Return the first id of ``kind`` (``bos``, ``pad``, ``eos``), or −1 when there is none."""
        ids: dict[int, list[str]] = getattr(self, kind)
        return next(iter(ids), -1)

    def as_json(self, vocab_size: int) -> dict[str, object]:
        """Return the manifest's ``tokens``."""
        return {
            "vocab_size": vocab_size,
            "bos": _single(self.bos),
            "pad": _single(self.pad),
            "eos": [{"id": token_id, "sources": sources} for token_id, sources in self.eos.items()],
        }


def read_special_tokens(
    config: Mapping[str, Any],
    text_config: Mapping[str, Any],
    generation_config: Mapping[str, Any] | None,
    tokenizer_config: Mapping[str, Any] | None,
    tokenizer_json: Path | None,
    vocab_size: int,
) -> SpecialTokens:
    """Collect the special tokens; raises RowpackError ``special_token_id`` for an id outside the vocabulary."""
    # The generation config is what its authors chose for generating, so its ids come first.
    places: list[tuple[str, Mapping[str, Any]]] = [("generation_config.json", generation_config or {})]
    places.append(("config.json", config))
    if text_config is not config:
        places.append(("config.json#/text_config", text_config))
    found: dict[str, dict[int, list[str]]] = {"bos": {}, "pad": {}, "eos": {}}
    for kind, ids in found.items():
        for place, values in places:
            for token_id in _ids(values.get(f"{kind}_token_id"), kind, place, vocab_size):
                ids.setdefault(token_id, []).append(place)
    for kind, token_id in _named_tokens(tokenizer_config or {}, tokenizer_json):
        if token_id < vocab_size:
            found[kind].setdefault(token_id, []).append("tokenizer_config.json")
    return SpecialTokens(**found)


def _ids(value: object, kind: str, place: str, vocab_size: int) -> Iterator[int]:
    """Yield the ids in a config value, which may be an id, a list of ids, or null."""
    for entry in value if isinstance(value, list) else [value]:
        if entry is None:
            continue
        if isinstance(entry, bool) or not isinstance(entry, int) or not 0 <= entry < vocab_size:
            raise RowpackError(
                "special_token_id",
                f"the {kind} token is not a token of this model",
                where=f"{place}#/{kind}_token_id",
                found=repr(entry),
                expected=f"an integer from 0 to {vocab_size - 1}, or null",
                remedy="Correct the file; the vocabulary size comes from config.json.",
            )
        yield entry


def _named_tokens(tokenizer_config: Mapping[str, Any], tokenizer_json: Path | None) -> Iterator[tuple[str, int]]:
    """Yield (kind, id) for the tokens that the tokenizer config names by their text."""
    if tokenizer_json is None:
        return
    contents: dict[str, int] = {}
    for kind in ("bos", "pad", "eos"):
        named = tokenizer_config.get(f"{kind}_token")
        text = named.get("content") if isinstance(named, Mapping) else named
        if not isinstance(text, str):
            continue
        contents = contents or _added_tokens(tokenizer_json)
        if text in contents:
            yield kind, contents[text]


def _added_tokens(tokenizer_json: Path) -> dict[str, int]:
    """Return text → id of a tokenizer's added and vocabulary tokens."""
    tokenizer = json.loads(tokenizer_json.read_text(encoding="utf-8"))
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    ids: dict[str, int] = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    for token in tokenizer.get("added_tokens", []):
        ids[token["content"]] = token["id"]
    return ids


def _single(ids: Mapping[int, list[str]]) -> dict[str, object] | None:
    for token_id, sources in ids.items():
        return {"id": token_id, "sources": sources}
    return None
