"""Name the values of config.json behind many tensors that do not fit it.

One wrong size gives a problem for nearly every tensor. What they have in common is told first: a number of layers, or
the value with which the tensors would agree, be it an extent of theirs or a factor of one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rowpack.checkpoint.config_search import Changes, ConfigSearch, Describe, Difference, Solution
from rowpack.checkpoint.requirements import HasTensors, check_tensors
from rowpack_loaders.errors import Problem

_LAYERS = "num_hidden_layers"
_LAYER = re.compile(r"^(.+?)\.(\d+)\.")
_REMEDY = "Correct config.json, or fetch config.json and weights of one revision"


@dataclass(frozen=True)
class ConfigPart:
    """The part of config.json that describes the language model, and where it lies (``config.json#/text_config``)."""

    values: Mapping[str, Any]
    pointer: str


def disagreements(part: ConfigPart, checkpoint: HasTensors, describe: Describe) -> list[Problem]:
    """Return ``config_tensors_disagree`` for each value that explains tensors missing, misshapen or too many."""
    search = ConfigSearch(part.values, checkpoint, describe)
    problems, layers = _layer_counts(part, checkpoint, search, {})
    solution = search.solve(layers)
    if solution is not None:
        problems += _in_words(part, checkpoint, search, solution, layers)
    return problems


def disagreements_beside(
    problems: Sequence[Problem], part: ConfigPart, checkpoint: HasTensors, describe: Describe
) -> list[Problem]:
    """Return ``problems`` of values that cannot be built together with what the tensors say of the config.

    The keys at fault are left out, or stand at one where they cannot be, and if with other values all tensors agree,
    these are told. A problem that is gone then, though its key is as it was, came from another value. Where nothing
    makes all tensors agree, ``problems`` are returned as they are: what the tensors should be is not known.
    """
    pointer = f"{part.pointer}/"
    keys = {problem: (problem.where or "").removeprefix(pointer).split("/")[0] for problem in problems}
    search = ConfigSearch(part.values, checkpoint, describe)
    at_fault: Changes = dict.fromkeys(keys.values())
    if search.needed(at_fault) is None:
        at_fault = dict.fromkeys(keys.values(), 1)
    told, layers = _layer_counts(part, checkpoint, search, at_fault)
    start = {**at_fault, **layers}
    solution = search.solve(start, stand_ins=at_fault)
    if solution is None or solution.remaining:
        return list(problems)
    told += _in_words(part, checkpoint, search, solution, start)
    told += [problem for problem in problems if keys[problem] in solution.changes]
    if at_fault.items() <= solution.changes.items():
        # Whatever these values should be, no tensor depends on them.
        needed = search.needed(at_fault)
        if needed is not None:
            told += check_tensors(checkpoint, needed.shapes, ignored_prefixes=needed.ignored_prefixes)
    return told


def _layer_counts(
    part: ConfigPart, checkpoint: HasTensors, search: ConfigSearch, start: Changes
) -> tuple[list[Problem], dict[str, int | None]]:
    """Return what is to be told of the number of layers, and the change of it with which a model is described."""
    needed = search.needed(start)
    problems: list[Problem] = []
    changes: dict[str, int | None] = {}
    there = _highest_layers(checkpoint.tensors)
    for prefix, count in _highest_layers({} if needed is None else needed.shapes).items():
        found = there.get(prefix, count)
        if part.values.get(_LAYERS) == count and found != count:
            expected = f"{found}, as there are tensors {prefix}.*"
            problems.append(_disagreement(f"{part.pointer}/{_LAYERS}", str(count), expected))
            if search.needed({**start, _LAYERS: found}) is not None:
                changes = {_LAYERS: found}
    return problems, changes


def _highest_layers(names: Iterable[str]) -> dict[str, int]:
    """Return for each prefix such as ``model.layers`` the number of layers below it, by the highest."""
    counts: dict[str, int] = {}
    for name in names:
        match = _LAYER.match(name)
        if match:
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    return counts


def _in_words(
    part: ConfigPart, checkpoint: HasTensors, search: ConfigSearch, solution: Solution, start: Changes
) -> list[Problem]:
    """Return a problem for each value that the search found from ``start``, the one of the most tensors first."""
    found: list[tuple[int, Problem]] = []
    for key, value in solution.changes.items():
        if value is None or start.get(key) == value:
            continue
        without = {other: kept for other, kept in solution.changes.items() if other != key}
        without |= {other: kept for other, kept in start.items() if other == key}
        before = search.differences(without)
        if before is None:
            before = search.differences(start) or frozenset()
        mended = before - solution.remaining
        choices = {key: value, **solution.alternatives[key]}
        problem = _disagreement(
            f"{part.pointer}/{' or '.join(choices)}",
            " or ".join(_found(part.values.get(choice)) for choice in choices),
            f"{' or '.join(map(str, choices.values()))}, {_evidence(mended, value, checkpoint)}",
        )
        found.append((-len({name for name, _ in mended}), problem))
    return [problem for _, problem in sorted(found, key=lambda entry: entry[0])]


def _evidence(mended: Collection[Difference], value: int, checkpoint: HasTensors) -> str:
    """Return what speaks for ``value``: tensors that have it as an extent, or would agree with it."""
    names = sorted({name for name, _ in mended})
    axes = [(checkpoint.tensors[name].shape, axis) for name, axis in mended if name in checkpoint.tensors]
    if all(axis >= 0 and shape[axis] == value for shape, axis in axes) and axes:
        return f"as {'1 tensor has' if len(names) == 1 else f'{len(names)} tensors have'} in its place"
    agree = "1 tensor agrees" if len(names) == 1 else f"{len(names)} tensors agree"
    examples = [checkpoint.tensors[name] for name in names if name in checkpoint.tensors]
    return f"with which {agree}" + (f", {examples[0].name} {list(examples[0].shape)} among them" if examples else "")


def _found(value: object) -> str:
    return "no value, so its default" if value is None else str(value)


def _disagreement(where: str, found: str, expected: str) -> Problem:
    return Problem("config_tensors_disagree", "config.json and the tensors disagree", where, found, expected, _REMEDY)
