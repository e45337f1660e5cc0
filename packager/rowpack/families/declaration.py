"""What a family declares: its tensors, its states, and the handful of facts the rest of the packager asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from rowpack_loaders.errors import Problem

Transform = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


@dataclass(frozen=True)
class WeightSource:
    """One checkpoint tensor whose rows (axis 0) go into a bundle tensor."""

    tensor: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WeightSpec:
    """One tensor of the bundle's weight section.

    Its rows are those of ``sources`` one after the other. ``transform`` maps float32 rows to float32 rows of the
    same count before the cast to ``dtype``; without one the values are only cast. ``quantizable`` marks the large
    projections whose values survive a coarse type: never gates, decays, convolutions, norms or embeddings.
    ``derived`` marks what is computed from a tensor that is stored besides, and holds no parameters of its own.
    ``part`` tells the token embedding and the output projection from the layers; ``stored_shape`` is the shape in the
    weight section where it is not ``shape``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    sources: tuple[WeightSource, ...]
    transform: Transform | None = None
    quantizable: bool = False
    derived: bool = False
    part: Literal["layers", "embedding", "head"] = "layers"
    stored_shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class StateSpec:
    """One state or cache tensor that passes from call to call.

    ``shape`` is what a loader allocates: for ``append_rows`` its first dimension is the cache's capacity.
    ``layer`` is the model's layer index; the number in the tensor's name counts layers of that kind.
    """

    role: str
    layer: int
    input_name: str
    output_name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str
    initial_value: float = 0.0
    update: str = "replace"

    @property
    def rewindable(self) -> bool:
        """A cache can be cut back to fewer rows; a recurrent state cannot."""
        return self.update == "append_rows"

    @property
    def byte_count(self) -> int:
        """Bytes of the whole tensor."""
        from rowpack.graph.dtypes import byte_width

        count = byte_width(self.dtype)
        for extent in self.shape:
            count *= extent
        return count

    def as_json(self) -> dict[str, object]:
        """Return the manifest's entry."""
        return {
            "role": self.role,
            "layer": self.layer,
            "input": self.input_name,
            "output": self.output_name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "layout": self.layout,
            "initial_value": self.initial_value,
            "update": self.update,
            "rewindable": self.rewindable,
        }


@dataclass(frozen=True)
class ModelDescription:
    """What a family read out of one checkpoint: everything later stages need, nothing of the checkpoint itself.

    ``head_name`` is the name that the output projection's tensor has where it is not the embedding.
    """

    family: str
    architecture: str
    hyper_parameters: Mapping[str, Any]
    vocab_size: int
    max_position_embeddings: int | None
    weights: tuple[WeightSpec, ...]
    states: tuple[StateSpec, ...]
    ignored_prefixes: tuple[str, ...] = ()
    head_name: str = ""
    warnings: tuple[Problem, ...] = field(default=())

    @property
    def parameter_count(self) -> int:
        """Number of values in the tensors the bundle holds; tied tensors once."""
        return sum(math.prod(spec.shape) for spec in self.weights if not spec.derived)

    @property
    def required_tensors(self) -> dict[str, tuple[int, ...]]:
        """Checkpoint tensors the bundle is made from, with their shapes."""
        return {source.tensor: source.shape for spec in self.weights for source in spec.sources}

    @property
    def state_bytes(self) -> int:
        """Bytes of all states that are replaced at each call."""
        return sum(state.byte_count for state in self.states if state.update == "replace")

    @property
    def key_value_bytes_per_token(self) -> int:
        """Bytes that one more cached position takes in all caches together."""
        return sum(state.byte_count // state.shape[0] for state in self.states if state.update == "append_rows")


class Family(Protocol):
    """A family of checkpoints: which configs it claims and how its model looks."""

    name: str
    model_types: tuple[str, ...]

    def claims(self, config: Mapping[str, Any]) -> bool:
        """Tell whether ``config`` (config.json) is of this family."""
        ...

    def text_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the part of ``config`` that describes the language model."""
        ...

    def describe(
        self,
        config: Mapping[str, Any],
        tensor_names: Sequence[str],
        precision: str,
        max_cache_length: int,
    ) -> ModelDescription:
        """Read the hyper-parameters and return the tables; raises RowpackError for a config it cannot build."""
        ...

    def emit(self, model: ModelDescription, precision: str, emitter: Any, weights: Mapping[str, Any]) -> None:
        """Emit the exported graph (any number of rows) with mixers as function calls."""
        ...

    def runtime_json(self, model: ModelDescription, facts: RuntimeFacts) -> dict[str, object]:
        """Return ``runtime.json`` for loaders that predate the manifest."""
        ...


@dataclass(frozen=True)
class RuntimeFacts:
    """The facts of a build that ``runtime.json`` repeats for older loaders; ids are −1 when absent."""

    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    precision: str
    max_cache_length: int
    decoder_engine_layout: str
