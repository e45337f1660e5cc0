"""The dimensions of a delta rule, read from the shapes of its call's inputs."""

from __future__ import annotations

from dataclasses import dataclass

from rowpack.graph.emitter import Tensor, static_shape


@dataclass(frozen=True)
class DeltaRuleGeometry:
    """Heads and widths; ``group`` value heads share one key head."""

    key_heads: int
    group: int
    key_dim: int
    value_dim: int

    @staticmethod
    def of(q: Tensor, state: Tensor) -> DeltaRuleGeometry:
        """Read q ``[S, key_heads · key_dim]`` and state ``[value_heads, key_dim, value_dim]``."""
        value_heads, key_dim, value_dim = (int(extent) for extent in static_shape(state))
        key_heads = int(static_shape(q)[1]) // key_dim
        return DeltaRuleGeometry(key_heads, value_heads // key_heads, key_dim, value_dim)
