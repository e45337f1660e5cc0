"""Search for the values of a config that describe the tensors there are, where its own do not.

The family is asked to describe its tensors again with other values, so nothing is known here of what a size is made
of: every extent of a tensor is a straight line over each single value (2 · heads · head_dim over heads), of which two
descriptions give slope and start, and the tensor gives the value. A value is named only if no tensor contradicts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from types import MappingProxyType

from rowpack.checkpoint.requirements import HasTensors, Shape

Changes = Mapping[str, int | None]
"""Keys of a config and their new values; None leaves the key out."""

Difference = tuple[str, int]
"""A tensor, and the axis on which it differs, or one of the numbers below."""

_MISSING, _UNEXPECTED, _OTHER_RANK = -1, -2, -3

MOST_DESCRIPTIONS = 300
"""Descriptions take 1 to 4 ms each."""

_MOST_PAIRS = 50
_TRIED_VALUES: tuple[int, ...] = (1, 2, 3, 4, 8, 64, 128)
"""Values for a key that has none, of which two must go with the rest of the config."""


@dataclass(frozen=True)
class NeededTensors:
    """The tensors that a config describes, and how the names of those start that may be there and are not looked at.

    ``defaults`` are keys that the config lacks, and that would have been read.
    """

    shapes: Mapping[str, Shape]
    ignored_prefixes: tuple[str, ...] = ()
    defaults: frozenset[str] = frozenset()


Describe = Callable[[Changes], NeededTensors | None]
"""Return what a config with changes describes; None where its values contradict each other."""


@dataclass(frozen=True)
class Solution:
    """Changes of a config after which ``remaining`` differences are left, none of them new.

    ``alternatives`` holds for each changed key the other keys, with their values, that would do in its place.
    """

    changes: Changes
    remaining: frozenset[Difference]
    alternatives: Mapping[str, Changes]


@dataclass(frozen=True)
class _Extent:
    """One axis of a tensor: its extent by the config, and the one that was found."""

    name: str
    axis: int
    wanted: int
    found: int


class ConfigSearch:
    """Descriptions of one config with changes, and how each differs from a checkpoint's tensors."""

    def __init__(self, values: Mapping[str, object], checkpoint: HasTensors, describe: Describe) -> None:
        self._values = {key: value for key, value in values.items() if type(value) is int}
        self._tensors = checkpoint.tensors
        self._describe = describe
        self._idle: set[str] = set()
        self._stand_ins: Changes = {}
        self._described: dict[frozenset[tuple[str, int | None]], NeededTensors | None] = {}

    def needed(self, changes: Changes) -> NeededTensors | None:
        """Return what the config with ``changes`` describes; None also where too much was asked already."""
        key = frozenset(changes.items())
        if key not in self._described:
            if len(self._described) >= MOST_DESCRIPTIONS:
                return None
            self._described[key] = self._describe(changes)
        return self._described[key]

    def differences(self, changes: Changes) -> frozenset[Difference] | None:
        """Return where the config with ``changes`` and the tensors differ; None where it describes nothing."""
        needed = self.needed(changes)
        if needed is None:
            return None
        found: set[Difference] = set()
        for name, shape in needed.shapes.items():
            tensor = self._tensors.get(name)
            if tensor is None:
                found.add((name, _MISSING))
            elif len(tensor.shape) != len(shape):
                found.add((name, _OTHER_RANK))
            else:
                found.update((name, axis) for axis, extent in enumerate(shape) if extent != tensor.shape[axis])
        for name in self._tensors:
            if name not in needed.shapes and not name.startswith(needed.ignored_prefixes):
                found.add((name, _UNEXPECTED))
        return frozenset(found)

    def solve(self, start: Changes, *, stand_ins: Changes = MappingProxyType({})) -> Solution | None:
        """Return changes, those of ``start`` among them where needed, that leave the fewest differences.

        ``stand_ins`` are those of ``start`` that only let something be described, until a value is found for them.
        None where ``start`` describes nothing, or there are differences and no change helps.

        Steps on the way may make new differences as long as there are fewer in all; the changes that are returned
        make none.
        """
        self._stand_ins = stand_ins
        first = self.differences(start)
        if first is None:
            return None
        frontier: list[tuple[int, int, Changes]] = [(len(first), len(start), start)]
        seen: set[frozenset[tuple[str, int | None]]] = set()
        best, least = start, first
        while frontier and least:
            frontier.sort(key=lambda entry: entry[:2])
            count, _, changes = frontier.pop(0)
            for further in self._steps(changes):
                key = frozenset(further.items())
                left = self.differences(further)
                if key in seen or left is None or len(left) >= count:
                    continue
                seen.add(key)
                frontier.append((len(left), len(further), further))
                if left < first and (len(left), len(further)) < (len(least), len(best)):
                    best, least = further, left
        if best is start and first:
            return None
        best = self._without_needless(best, least)
        return Solution(best, least, {key: self._in_place_of(key, best, least) for key in best})

    def _without_needless(self, changes: Changes, left: frozenset[Difference]) -> Changes:
        """Return ``changes`` without those that make no difference."""
        for key in list(changes):
            fewer = {other: value for other, value in changes.items() if other != key}
            if self.differences(fewer) == left:
                changes = fewer
        return changes

    def _in_place_of(self, key: str, changes: Changes, left: frozenset[Difference]) -> Changes:
        others = {other: value for other, value in changes.items() if other != key}
        found: dict[str, int | None] = {}
        for further in self._steps(others):
            added = {other: value for other, value in further.items() if other not in others}
            if len(added) == 1 and key not in added and self.differences(further) == left:
                found |= added
        return found

    def _steps(self, changes: Changes) -> Iterator[Changes]:
        """Yield ``changes`` with one value more that a tensor suggests, or with two that need each other."""
        needed = self.needed(changes)
        if needed is None:
            return
        contradicting: list[tuple[str, int]] = []
        differing = list(self._differing(needed))
        if not differing:
            return
        keys = [key for key in self._values if key not in changes]
        keys += [key for key, value in changes.items() if value is None or self._stand_ins.get(key) == value]
        keys += sorted(needed.defaults - changes.keys())
        for key in keys:
            if key in self._idle:
                continue
            for value in sorted(self._suggested(key, changes, needed, differing)):
                further = {**changes, key: value}
                if self.needed(further) is None:
                    contradicting.append((key, value))
                else:
                    yield further
        for (key, value), (other, other_value) in list(combinations(contradicting, 2))[:_MOST_PAIRS]:
            if key != other:
                yield {**changes, key: value, other: other_value}

    def _differing(self, needed: NeededTensors) -> Iterator[_Extent]:
        """Yield each axis on which a tensor differs from what is needed, though it has as many."""
        for name, shape in needed.shapes.items():
            tensor = self._tensors.get(name)
            if tensor is not None and len(tensor.shape) == len(shape):
                for axis, (wanted, found) in enumerate(zip(shape, tensor.shape, strict=True)):
                    if wanted != found:
                        yield _Extent(name, axis, wanted, found)

    def _suggested(self, key: str, changes: Changes, needed: NeededTensors, differing: Sequence[_Extent]) -> set[int]:
        """Return the values of ``key`` with which an extent that differs would be the tensor's.

        Where the config allows no second value, extents that are multiples of the value are taken to grow with it.
        """
        current = self._values.get(key) if key not in changes else changes[key]
        described = self._two_descriptions(key, current, changes, needed)
        is_moved = any(further.shapes != described[0][1].shapes for _, further in described)
        if current is None and not is_moved and len(described) != 1:
            # A switch, a word, or a number that no tensor depends on.
            self._idle.add(key)
        # Of the same few extents in every layer.
        extents: set[tuple[int, int, int]] = set()
        suggested: set[Fraction] = set()
        for extent in differing:
            if len(described) < 2:
                if current is not None and extent.wanted % current == 0:
                    suggested.add(Fraction(extent.found * current, extent.wanted))
                continue
            near, far = (needed.shapes.get(extent.name) for _, needed in described)
            if near is not None and far is not None and near[extent.axis] != far[extent.axis]:
                extents.add((near[extent.axis], far[extent.axis], extent.found))
        if len(described) == 2:
            (value, _), (other, _) = described
            suggested |= {value + Fraction((found - at) * (other - value), to - at) for at, to, found in extents}
        return {int(exact) for exact in suggested if exact.denominator == 1 and exact >= 1} - {current or 0}

    def _two_descriptions(
        self, key: str, current: int | None, changes: Changes, needed: NeededTensors
    ) -> list[tuple[int, NeededTensors]]:
        """Return two values of ``key`` with what they describe, or fewer where the config allows no two."""
        found: list[tuple[int, NeededTensors]] = []
        tried = _TRIED_VALUES
        if current is not None:
            found.append((current, needed))
            tried = (2 * current, current // 2, current + 1, 1)
        for value in tried:
            described = self.needed({**changes, key: value}) if value >= 1 and value != current else None
            if described is not None:
                found.append((value, described))
            if len(found) == 2:
                break
        return found
