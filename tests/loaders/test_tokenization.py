"""Text in and out: the bundle's tokenizer, and text that comes token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_models import HYBRID, VOCAB, write_toy_bundle

from rowpack_loaders import RowpackError, load
from rowpack_loaders.tokenization import TextTokenizer


@pytest.fixture(scope="module")
def tokenizer(qwen_checkpoint: Path) -> TextTokenizer:
    return TextTokenizer((qwen_checkpoint / "tokenizer.json").read_bytes())


TEXTS = [
    "In the beginning God created the heaven and the earth.",
    " leading and trailing spaces ",
    "é ü ß — “quotes” …",
    "日本語のテキスト",
    "🙂🏽‍🚀 emoji with joiners 👩‍👩‍👧",
    "line\nbreaks\t and\r\n tabs",
    "a",
    "\N{REPLACEMENT CHARACTER} written on purpose \N{REPLACEMENT CHARACTER}",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(tokenizer: TextTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_pieces_join_to_the_text(tokenizer: TextTokenizer, text: str) -> None:
    stream = tokenizer.stream()
    ids = tokenizer.encode(text)
    pieces = [stream.feed(token_id) for token_id in ids]
    # No piece but the last may end in a character that is not finished, and nothing is said twice.
    assert "".join([*pieces, stream.finish()]) == text
    assert stream.finish() == ""


def test_a_character_over_several_tokens_comes_whole(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode("日")
    assert len(ids) > 1, "the test needs a character that the vocabulary lacks"
    stream = tokenizer.stream()
    assert [stream.feed(token_id) for token_id in ids] == [""] * (len(ids) - 1) + ["日"]


def test_an_unfinished_character_at_the_end_is_told_as_in_the_whole_text(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode("x日")[:-1]
    stream = tokenizer.stream()
    pieces = [stream.feed(token_id) for token_id in ids]
    assert pieces == ["x", *[""] * (len(ids) - 1)]
    assert "x" + stream.finish() == tokenizer.decode(ids)


@pytest.fixture(scope="module")
def metaspace() -> TextTokenizer:
    """A tokenizer that marks spaces and drops the one before the first token, and has a special token."""
    vocabulary = {"<s>": 0, "▁in": 1, "▁the": 2, "begin": 3, "ning": 4, "▁": 5}
    return TextTokenizer(json.dumps(_metaspace_json(vocabulary)).encode())


def _metaspace_json(vocabulary: dict[str, int]) -> dict[str, Any]:
    special = {
        "id": 0,
        "content": "<s>",
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [special],
        "normalizer": None,
        "pre_tokenizer": space,
        "post_processor": template,
        "decoder": space,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<s>"},
    }


def test_spaces_between_streamed_words_are_kept(metaspace: TextTokenizer) -> None:
    stream = metaspace.stream()
    pieces = [stream.feed(token_id) for token_id in (0, 1, 2, 0, 2, 1)]
    assert "".join(pieces) == metaspace.decode([0, 1, 2, 0, 2, 1]) == "in the the in"


def test_a_template_s_start_token_is_added_or_not(metaspace: TextTokenizer) -> None:
    assert metaspace.encode("in the") == [0, 1, 2]
    assert metaspace.encode("in the", add_special_tokens=False) == [1, 2]


def test_a_prompt_is_never_cut_to_the_tokenizer_s_training_length(metaspace: TextTokenizer) -> None:
    assert len(metaspace.encode(" ".join(["in the"] * 10))) == 21


def test_half_a_surrogate_pair_is_refused(tokenizer: TextTokenizer) -> None:
    with pytest.raises(RowpackError) as caught:
        tokenizer.encode("bad \udcff byte")
    assert caught.value.code == "text_not_unicode"


def test_a_broken_tokenizer_is_named() -> None:
    with pytest.raises(RowpackError) as caught:
        TextTokenizer(b'{"version": "1.0"}')
    assert caught.value.code == "tokenizer_invalid"


@pytest.fixture(scope="module")
def bundle_with_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vocabulary = {"<s>": 0, **{f"▁w{index}": index for index in range(1, VOCAB)}}
    section = json.dumps(_metaspace_json(vocabulary)).encode()
    path = tmp_path_factory.mktemp("text") / "text.bundle"
    return write_toy_bundle(path, HYBRID, {"tokenizer.json": section})


def test_text_is_generated_and_streamed(bundle_with_text: Path) -> None:
    with load(bundle_with_text, threads=1) as decoder:
        told: list[tuple[int, str]] = []
        result = decoder.generate("w3 w1 w4", 12, stop_token_ids=[], on_token=lambda *event: told.append(event))
        assert result.token_ids == decoder.generate([0, 3, 1, 4], 12, stop_token_ids=[]).token_ids
        assert result.text == decoder.tokenizer.decode(result.token_ids)
        assert "".join(text for _, text in told) == result.text
        assert [token_id for token_id, _ in told] == list(result.token_ids)


def test_a_stop_token_is_not_part_of_the_text(bundle_with_text: Path) -> None:
    with load(bundle_with_text, threads=1) as decoder:
        free = decoder.generate("w3 w1 w4", 8, stop_token_ids=[])
        told: list[str] = []
        stopped = decoder.generate(
            "w3 w1 w4", 8, stop_token_ids=[free.token_ids[4]], on_token=lambda _, text: told.append(text)
        )
        end = free.token_ids.index(free.token_ids[4])
        assert stopped.token_ids == free.token_ids[: end + 1]
        assert stopped.text == decoder.tokenizer.decode(free.token_ids[:end]) == "".join(told)


def test_an_empty_text_is_an_empty_prompt(tmp_path: Path, qwen_checkpoint: Path) -> None:
    section = (qwen_checkpoint / "tokenizer.json").read_bytes()
    path = write_toy_bundle(tmp_path / "text.bundle", HYBRID, {"tokenizer.json": section})
    with load(path, threads=1) as decoder, pytest.raises(RowpackError) as caught:
        decoder.generate("", 4)
    assert caught.value.code == "prompt_empty"


def test_a_changed_tokenizer_section_is_refused(bundle_with_text: Path, tmp_path: Path) -> None:
    data = bundle_with_text.read_bytes()
    assert data.count(b"w39") == 1
    path = tmp_path / "changed.bundle"
    path.write_bytes(data.replace(b"w39", b"w93"))
    with load(path, threads=1) as decoder, pytest.raises(RowpackError) as caught:
        decoder.generate("w1", 2)
    assert caught.value.code == "section_digest_mismatch"
