"""Ask a family for the model of a checkpoint, and report together what config and tensors have against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rowpack.checkpoint import (
    Changes,
    Checkpoint,
    ConfigPart,
    NeededTensors,
    check_tensors,
    disagreements,
    disagreements_beside,
    raise_problems,
)
from rowpack.families.declaration import Family, ModelDescription
from rowpack_loaders.errors import RowpackError


def describe_model(family: Family, checkpoint: Checkpoint, precision: str, max_cache_length: int) -> ModelDescription:
    """Return the family's description of the checkpoint.

    Raises ``config_invalid`` with every value that cannot be built, and with what the tensors say of other values
    where that is certain.
    """
    try:
        return family.describe(checkpoint.config, list(checkpoint.tensors), precision, max_cache_length)
    except RowpackError as error:
        if error.code != "config_invalid":
            raise
        part, describe = _text_part(checkpoint, family), _description(checkpoint, family)
        problems = disagreements_beside(error.problems, part, checkpoint, describe)
        raise RowpackError.from_problems("config_invalid", error.problem.message, problems) from None


def check_model_tensors(family: Family, checkpoint: Checkpoint, model: ModelDescription) -> None:
    """Raise one RowpackError with every missing, misshapen or unexpected tensor, and first with what explains them."""
    problems = check_tensors(checkpoint, model.required_tensors, ignored_prefixes=model.ignored_prefixes)
    if problems:
        part, describe = _text_part(checkpoint, family), _description(checkpoint, family)
        problems = [*disagreements(part, checkpoint, describe), *problems]
    raise_problems(problems, checkpoint.path)


def _text_part(checkpoint: Checkpoint, family: Family) -> ConfigPart:
    """Return the part of the config that describes the language model."""
    text = family.text_config(checkpoint.config)
    return ConfigPart(text, "config.json#" if text is checkpoint.config else "config.json#/text_config")


def _description(checkpoint: Checkpoint, family: Family) -> Callable[[Changes], NeededTensors | None]:
    """Return what tells which tensors the config with changes in its text part needs."""
    names = list(checkpoint.tensors)

    def describe(changes: Changes) -> NeededTensors | None:
        text = family.text_config(checkpoint.config)
        left_out = {key for key, value in changes.items() if value is None}
        changed = _Consulted({key: value for key, value in {**text, **changes}.items() if key not in left_out})
        config = changed if text is checkpoint.config else {**checkpoint.config, "text_config": changed}
        try:
            model = family.describe(config, names, "fp32", 1)
        except RowpackError:
            return None
        defaults = {key for key in changed.consulted if changed.get(key) is None}
        return NeededTensors(model.required_tensors, model.ignored_prefixes, frozenset(defaults))

    return describe


class _Consulted(dict[str, Any]):
    """A config that remembers which keys it was asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.consulted: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``, and remember that it plays a part."""
        self.consulted.add(key)
        return super().get(key, default)
