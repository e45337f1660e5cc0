"""Compare the tensors a checkpoint has with those a family needs."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Protocol

from rowpack.checkpoint.tensors import READABLE_DTYPES, TensorInfo
from rowpack_loaders.errors import Problem

Shape = tuple[int, ...]


class HasTensors(Protocol):
    """Anything with a table of tensors; a ``Checkpoint`` is one."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Name → description of each tensor."""


def check_tensors(
    checkpoint: HasTensors,
    required: Mapping[str, Shape],
    *,
    optional: Mapping[str, Shape] | None = None,
    ignored_prefixes: Collection[str] = (),
) -> list[Problem]:
    """Return every difference between a checkpoint and what a family needs, sorted by tensor name.

    ``required`` and ``optional`` map tensor names to shapes; an optional tensor may be absent but not
    misshapen. Tensors whose name starts with one of ``ignored_prefixes`` may be there and are not looked
    at. Codes: ``tensor_missing``, ``tensor_shape``, ``unsupported_tensor_dtype`` and ``tensor_unexpected``;
    a missing tensor suggests the unexpected one with the nearest name.
    """
    known = {**(optional or {}), **required}
    prefixes = tuple(ignored_prefixes)
    unexpected = sorted(
        name for name in checkpoint.tensors if name not in known and not name.startswith(prefixes)
    )
    problems = [
        _missing(name, shape, unexpected)
        for name, shape in required.items()
        if name not in checkpoint.tensors
    ]
    problems += [_unexpected(checkpoint.tensors[name], list(known)) for name in unexpected]
    for name, shape in known.items():
        tensor = checkpoint.tensors.get(name)
        if tensor is None:
            continue
        if tensor.shape != tuple(shape):
            problems.append(_misshapen(tensor, shape))
        if tensor.dtype not in READABLE_DTYPES:
            problems.append(_unsupported(tensor))
    return sorted(problems, key=lambda problem: problem.where or "")


def _nearest(name: str, candidates: list[str]) -> str | None:
    """Return the candidate that is most like the name, comparing only those of similar length (names are
    many)."""
    similar = [other for other in candidates if abs(len(other) - len(name)) <= 8]
    matches = difflib.get_close_matches(name, similar, n=1, cutoff=0.85)
    return matches[0] if matches else None


def _missing(name: str, shape: Shape, unexpected: list[str]) -> Problem:
    nearest = _nearest(name, unexpected)
    return Problem(
        "tensor_missing",
        "the checkpoint lacks a tensor the model needs",
        where=name,
        found=f"{nearest} instead" if nearest else "no such tensor",
        expected=f"shape {list(shape)}",
        remedy=f"Did you mean {nearest}? Rename it"
        if nearest
        else "Check that config.json and weights belong together",
    )


def _unexpected(tensor: TensorInfo, known: list[str]) -> Problem:
    nearest = _nearest(tensor.name, known)
    return Problem(
        "tensor_unexpected",
        "the checkpoint holds a tensor that the model has no place for",
        where=tensor.name,
        found=f"shape {list(tensor.shape)} in {tensor.file}",
        expected="only tensors of the model that config.json describes",
        remedy=f"Did you mean {nearest}?"
        if nearest
        else "Check that config.json and weights belong together",
    )


def _misshapen(tensor: TensorInfo, shape: Shape) -> Problem:
    return Problem(
        "tensor_shape",
        "the tensor does not have the shape that config.json asks for",
        where=tensor.name,
        found=str(list(tensor.shape)),
        expected=str(list(shape)),
        remedy="Check that config.json and weights belong together",
    )


def _unsupported(tensor: TensorInfo) -> Problem:
    return Problem(
        "unsupported_tensor_dtype",
        "the tensor has a data type that weights are not read from",
        where=tensor.name,
        found=tensor.dtype,
        expected=", ".join(READABLE_DTYPES),
        remedy="Use a checkpoint that is not quantised",
    )
