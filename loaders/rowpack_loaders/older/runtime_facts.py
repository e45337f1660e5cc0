"""Check the facts that loaders before the manifest worked from: the keys of ``runtime.json`` of one family.

Those loaders counted the keys and took nothing else, so nothing else is taken here. Containers of August 2026 have no
``runtime.json``; their facts are brought into the same keys first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest_fields import Fields

ABSENT_TOKEN = -1

LARGEST_SIZE = 2**31 - 1
"""Loaders of that time held sizes in 32 bits."""

MOST_LAYERS = 256
"""More than any model has: a state table is made of the number, and the manifest must end in the first MiB."""

LAYOUT_KEY = "decoder_engine_layout"
PRECISION_KEY = "precision"
LAYOUTS = ("single", "split")
PRECISIONS = ("fp16", "fp32", "bf16")


@dataclass(frozen=True)
class RuntimeKeys:
    """The keys of one family's ``runtime.json``: sizes from 1, token ids from −1, and words."""

    sizes: tuple[str, ...]
    tokens: tuple[str, ...]
    words: Mapping[str, tuple[str, ...]]
    others: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """Every key."""
        return {*self.sizes, *self.tokens, *self.words, *self.others}

    def check(self, runtime: Fields) -> None:
        """Refuse a key too many or too few, and values that are no sizes, ids or words of the family."""
        found = set(runtime.raw)
        if found != self.names:
            raise RowpackError(
                "older_description_malformed",
                "The facts of an older bundle are not those of its family",
                where=runtime.where,
                found=", ".join(sorted(found ^ self.names))[:300] + ": too many or missing",
                expected=f"exactly {len(self.names)} keys",
                remedy="Build the bundle again from its checkpoint",
            )
        for key in self.sizes:
            if runtime.integer(key, minimum=1) > LARGEST_SIZE:
                raise runtime.wrong(key, f"at most {LARGEST_SIZE}")
        layer_count(runtime)
        for key in self.tokens:
            runtime.integer(key, minimum=ABSENT_TOKEN)
        for key, allowed in self.words.items():
            runtime.choice(key, allowed)


def layer_count(fields: Fields) -> int:
    """Return ``num_hidden_layers``, bounded."""
    count = fields.integer("num_hidden_layers", minimum=1)
    if count > MOST_LAYERS:
        raise fields.wrong("num_hidden_layers", f"at most {MOST_LAYERS}")
    return count


@contextmanager
def described_by(where: str) -> Iterator[None]:
    """Let what is wrong in the body count as a fault of the older bundle's description at ``where``."""
    try:
        yield
    except RowpackError as error:
        if error.code != "manifest_malformed":
            raise
        raise RowpackError(
            "older_description_malformed",
            "An older bundle describes its model in a way that cannot be used",
            where=error.problem.where or where,
            found=error.problem.found,
            expected=error.problem.expected,
            remedy="Build the bundle again from its checkpoint",
        ) from error
