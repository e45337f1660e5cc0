"""Compare the tensors a checkpoint has with those a family needs."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Protocol

from rowpack.checkpoint.tensors import READABLE_DTYPES, TensorInfo
from rowpack_loaders.errors import Problem

Shape = tuple[int, ...]

_MOST_COMPARISONS = 1000


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
    a missing tensor suggests the unexpected one with the nearest name, and the other way round.
    """
    known = {**(optional or {}), **required}
    prefixes = tuple(ignored_prefixes)
    missing = sorted(name for name in required if name not in checkpoint.tensors)
    unexpected = sorted(name for name in checkpoint.tensors if name not in known and not name.startswith(prefixes))
    problems = [_missing(name, required[name], _nearest(name, missing, unexpected)) for name in missing]
    problems += [_unexpected(checkpoint.tensors[name], _nearest(name, unexpected, missing)) for name in unexpected]
    for name, shape in known.items():
        tensor = checkpoint.tensors.get(name)
        if tensor is None:
            continue
        if tensor.shape != tuple(shape):
            problems.append(_misshapen(tensor, shape))
        if tensor.dtype not in READABLE_DTYPES:
            problems.append(_unsupported(tensor))
    return sorted(problems, key=lambda problem: problem.where or "")


def _nearest(name: str, names: list[str], candidates: list[str]) -> str | None:
    """Return the candidate most like the name, or ``None`` when none is or all names are different.

    Comparing two names takes some 0.2 ms; where hundreds differ it is another model, not slips of the pen.
    """
    if len(names) * len(candidates) > _MOST_COMPARISONS:
        return None
    matches = difflib.get_close_matches(name, candidates, n=1, cutoff=0.85)
    return matches[0] if matches else None


def _missing(name: str, shape: Shape, nearest: str | None) -> Problem:
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


def _unexpected(tensor: TensorInfo, nearest: str | None) -> Problem:
    return Problem(
        "tensor_unexpected",
        "the checkpoint holds a tensor that the model has no place for",
        where=tensor.name,
        found=f"shape {list(tensor.shape)} in {tensor.file}",
        expected="only tensors of the model that config.json describes",
        remedy=f"Did you mean {nearest}?" if nearest else "Check that config.json and weights belong together",
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
