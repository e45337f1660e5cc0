"""Read typed hyper-parameters from a config and collect every problem instead of stopping at the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rowpack_loaders.errors import Problem, RowpackError


def architecture_name(config: Mapping[str, Any], usual: str) -> str:
    """Return the first entry of ``architectures``; ``usual`` when the key holds no list of names."""
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else usual


MOST_LAYERS = 4096


class ConfigReader:
    """Typed access to one config object; problems are collected and raised together by :meth:`finish`.

    ``where`` is the JSON pointer of the object, file name first.
    """

    def __init__(self, config: Mapping[str, Any], where: str = "config.json#") -> None:
        self._config = config
        self.where = where
        self.problems: list[Problem] = []

    def layer_count(self) -> int:
        """Return ``num_hidden_layers``; a number that no model has is refused before a table is made for it."""
        count = self.positive_int("num_hidden_layers")
        if count > MOST_LAYERS:
            self.wrong("num_hidden_layers", count, f"at most {MOST_LAYERS}")
            return 1
        return count

    def positive_int(self, key: str, default: int | None = None) -> int:
        """Return ``config[key]`` as an int ≥ 1; ``default`` when the key is absent or null."""
        value = self._config.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.wrong(key, value, "an integer of at least 1")
            return 1
        return value

    def non_negative_int(self, key: str, default: int) -> int:
        """Return ``config[key]`` as an int ≥ 0; ``default`` when the key is absent or null."""
        value = self._config.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.wrong(key, value, "an integer of at least 0")
            return default
        return value

    def positive_float(self, key: str, default: float | None = None) -> float:
        """Return ``config[key]`` as a float > 0; ``default`` when the key is absent or null."""
        value = self._config.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            self.wrong(key, value, "a number above 0")
            return 1.0
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """Return ``config[key]`` as a bool; ``default`` when the key is absent or null."""
        value = self._config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(key, value, "true or false")
            return default
        return value

    def require(self, condition: bool, key: str, found: object, expected: str) -> None:
        """Record a problem for ``key`` unless ``condition`` holds."""
        if not condition:
            self.wrong(key, found, expected)

    def wrong(self, key: str, found: object, expected: str) -> None:
        """Record that ``key`` has a value the family cannot build."""
        self.problems.append(
            Problem(
                "config_value",
                f"{key} has a value this family cannot build",
                f"{self.where}/{key}",
                repr(found),
                expected,
                "Check that the config belongs to these weights and to a supported family.",
            )
        )

    def finish(self) -> None:
        """Raise one error with everything that was wrong."""
        if self.problems:
            raise RowpackError.from_problems("config_invalid", "the checkpoint's config cannot be built", self.problems)
