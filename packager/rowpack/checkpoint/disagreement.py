"""Name the value of config.json behind many tensors that do not fit it.

One wrong size gives a problem for nearly every tensor. What they have in common is told first: a number of layers, or
a size that the config has and the tensors do not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rowpack.checkpoint.requirements import HasTensors, Shape
from rowpack_loaders.errors import Problem

_SIZES = ("_size", "_dim", "_heads")
"""How the keys end that say how large a tensor is; lengths and token ids do not."""

_LAYER = re.compile(r"^(.+?)\.(\d+)\.")
_REMEDY = "Correct config.json, or fetch config.json and weights of one revision"


def disagreements(
    config: Mapping[str, Any], pointer: str, checkpoint: HasTensors, required: Mapping[str, Shape]
) -> list[Problem]:
    """Return ``config_tensors_disagree`` for each value of ``config`` that explains tensors missing or misshapen.

    ``config`` is the language model's part, ``pointer`` its place; ``required`` maps tensor names to shapes.
    """
    return [*_layers(config, pointer, checkpoint, required), *_sizes(config, pointer, checkpoint, required)]


def _layers(
    config: Mapping[str, Any], pointer: str, checkpoint: HasTensors, required: Mapping[str, Shape]
) -> Iterator[Problem]:
    wanted, there = _layer_counts(required), _layer_counts(checkpoint.tensors)
    for prefix, count in wanted.items():
        if config.get("num_hidden_layers") == count and there.get(prefix, count) != count:
            yield _disagreement(
                f"{pointer}/num_hidden_layers", str(count), f"{there[prefix]}, as there are tensors {prefix}.*"
            )


def _layer_counts(names: Iterable[str]) -> dict[str, int]:
    """Return for each prefix such as ``model.layers`` the number of layers below it, by the highest."""
    counts: dict[str, int] = {}
    for name in names:
        match = _LAYER.match(name)
        if match:
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    return counts


def _sizes(
    config: Mapping[str, Any], pointer: str, checkpoint: HasTensors, required: Mapping[str, Shape]
) -> Iterator[Problem]:
    pairs: Counter[tuple[int, int]] = Counter()
    for name, shape in required.items():
        tensor = checkpoint.tensors.get(name)
        if tensor is not None and len(tensor.shape) == len(shape):
            pairs.update({pair for pair in zip(shape, tensor.shape, strict=True) if pair[0] != pair[1]})
    for (wanted, found), count in pairs.most_common():
        keys = [key for key, value in config.items() if key.endswith(_SIZES) and value == wanted]
        if keys:
            tensors = "1 tensor has" if count == 1 else f"{count} tensors have"
            yield _disagreement(f"{pointer}/{' or '.join(keys)}", str(wanted), f"{found}, as {tensors} in its place")


def _disagreement(where: str, found: str, expected: str) -> Problem:
    return Problem("config_tensors_disagree", "config.json and the tensors disagree", where, found, expected, _REMEDY)
