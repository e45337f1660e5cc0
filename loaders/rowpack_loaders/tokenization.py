"""Turn text into token ids and back with the tokenizer that the bundle carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rowpack_loaders.errors import RowpackError

TOKENIZER_SECTION = "tokenizer.json"
_PANIC = "PanicException"  # of the library's Rust code; its class cannot be imported
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@contextmanager
def _failures_told(message: str) -> Iterator[None]:
    """Turn what the library makes of a malformed file into ``tokenizer_invalid``.

    It raises plain Exception for most faults, and panics at others, which is no Exception.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        raise RowpackError(
            "tokenizer_invalid",
            message,
            where=TOKENIZER_SECTION,
            found=str(error)[:200],
            expected="a tokenizer.json of the tokenizers library",
        ) from error


class TextTokenizer:
    """The checkpoint's own tokenizer, read from the bytes of ``tokenizer.json``.

    Raises :class:`RowpackError` ``tokenizer_library_missing`` or ``tokenizer_invalid``.
    """

    def __init__(self, tokenizer_json: bytes) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise RowpackError(
                "tokenizer_library_missing",
                "Text needs the tokenizers library, which cannot be imported",
                found=str(error),
                expected="the Python package tokenizers",
                remedy="Install tokenizers, or give token ids instead of text",
            ) from error
        with _failures_told("The bundle's tokenizer cannot be read"):
            self._tokenizer: Any = Tokenizer.from_buffer(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of ``text``, with the special tokens that the tokenizer's own template adds.

        Raises ``text_not_unicode`` for half of a surrogate pair, which undecodable command line bytes turn
        into.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RowpackError(
                "text_not_unicode",
                "The text holds something that is not a Unicode character",
                where=f"character {error.start}",
                found=ascii(text[error.start : error.end]),
                expected="text that can be written as UTF-8",
            ) from error
        with _failures_told("The bundle's tokenizer cannot encode the text"):
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of ``token_ids`` without special tokens."""
        with _failures_told("The bundle's tokenizer cannot decode the tokens"):
            text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def stream(self) -> TextStream:
        """Return a decoder that is fed one token at a time."""
        return TextStream(self)


class TextStream:
    """Decodes a growing list of tokens into pieces that join to the text of the whole list.

    A character may be spread over several tokens, and some tokenizers write the first token of a text
    differently, so each piece is the difference of two decodings that share a context of earlier tokens; a
    piece is held back while it ends in an unfinished character. (Bytes that never become valid UTF-8 may come
    out as a different number of U+FFFD than in the whole text.)
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context_start = 0
        self._emitted_end = 0

    def feed(self, token_id: int) -> str:
        """Take one more token; return the text that is now certain, "" while a character is unfinished."""
        self._ids.append(token_id)
        before, after = self._context_texts()
        if len(after) <= len(before) or after.endswith(_REPLACEMENT):
            return ""
        self._context_start = self._emitted_end
        self._emitted_end = len(self._ids)
        return after[len(before) :]

    def finish(self) -> str:
        """Return what was held back; an unfinished character becomes U+FFFD as in the whole text."""
        before, after = self._context_texts()
        self._context_start = self._emitted_end = len(self._ids)
        return after[len(before) :]

    def _context_texts(self) -> tuple[str, str]:
        context = self._ids[self._context_start : self._emitted_end]
        return self._tokenizer.decode(context), self._tokenizer.decode(self._ids[self._context_start :])
