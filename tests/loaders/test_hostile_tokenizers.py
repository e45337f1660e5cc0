"""Tokenizers at which the library panics, which is no ordinary exception, are refused like any other."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from rowpack_loaders import RowpackError
from rowpack_loaders.tokenization import TextTokenizer


def tokenizer_json(**changes: Any) -> bytes:
    """Return a tokenizer of one word, with changes."""
    whole = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    }
    return json.dumps(whole | changes).encode()


REFUSED_AT_ONCE: dict[str, dict[str, Any]] = {
    "a character map that is none": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff" * 4).decode()}
    },
    "a merge of no token": {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}},
    "an unknown token beyond the vocabulary": {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 9}},
    "a pattern that is none": {"normalizer": {"type": "Replace", "pattern": {"Regex": "["}, "content": "x"}},
}


@pytest.mark.parametrize("name", REFUSED_AT_ONCE)
def test_a_tokenizer_that_cannot_be_read_is_refused(name: str) -> None:
    with pytest.raises(RowpackError, match="tokenizer_invalid"):
        TextTokenizer(tokenizer_json(**REFUSED_AT_ONCE[name]))


def test_a_template_with_an_unknown_token_is_refused_when_it_is_used() -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }
    tokenizer = TextTokenizer(tokenizer_json(post_processor=template))
    with pytest.raises(RowpackError, match="tokenizer_invalid"):
        tokenizer.encode("a")


def test_padding_to_a_million_million_tokens_is_not_done() -> None:
    padding = {
        "strategy": {"Fixed": 2**40},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "a",
    }
    assert TextTokenizer(tokenizer_json(padding=padding)).encode("a") == [0]


def test_an_interruption_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TextTokenizer(tokenizer_json())

    class Interrupted:
        def encode(self, *_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(tokenizer, "_tokenizer", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode("a")
