"""Count the memory that a bundle takes while it runs one sequence of full length, as far as its manifest says."""

from __future__ import annotations

from dataclasses import dataclass

from rowpack_loaders.manifest import (
    MANIFEST_SECTION,
    StateRecord,
    read_private_weights,
    read_serves_decode,
    read_states,
    read_weights_shared,
)
from rowpack_loaders.manifest_fields import Fields

DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

STATE_BUFFERS = 2
"""A state of fixed size has a buffer that is read and one that is written."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes by what they are for. What a manifest does not say counts as nothing and is listed in ``unknown``."""

    decode_weights: int
    prefill_weights: int
    decode_context: int
    prefill_context: int
    states: int
    key_value: int
    unknown: tuple[str, ...]

    @property
    def decode_bytes(self) -> int:
        """Bytes of a loader that runs the decode engine alone."""
        return self.decode_weights + self.decode_context + self.states + self.key_value

    @property
    def pair_bytes(self) -> int:
        """Bytes of a loader that runs both engines; they share states and caches."""
        return self.decode_bytes + self.prefill_weights + self.prefill_context

    def as_json(self) -> dict[str, object]:
        """Return the report's object."""
        return {
            "decode_weights": self.decode_weights,
            "prefill_weights": self.prefill_weights,
            "decode_context": self.decode_context,
            "prefill_context": self.prefill_context,
            "states": self.states,
            "key_value": self.key_value,
            "decode_bytes": self.decode_bytes,
            "pair_bytes": self.pair_bytes,
            "unknown": list(self.unknown),
        }


def memory_need(manifest: dict[str, object]) -> MemoryNeed:
    """Return what the bundle of this manifest needs; raises ``manifest_malformed``.

    Weights that the engines share count once, what each packs for itself each time, unless one session serves both.
    Caches count with all their rows.
    """
    fields = Fields(manifest, "", MANIFEST_SECTION)
    engines = dict(fields.members("engines"))
    unknown: list[str] = []

    def resident(role: str, key: str) -> int:
        if role not in engines:
            return 0
        part = engines[role].optional_child("resident_bytes")
        value = None if part is None else part.optional_integer(key)
        if value is None:
            unknown.append(f"/engines/{role}/resident_bytes/{key}")
        return value or 0

    shared = read_weights_shared(manifest, MANIFEST_SECTION)
    decode_weights = resident("decode", "weights")
    if read_serves_decode(manifest, MANIFEST_SECTION):
        prefill_weights = 0
    elif shared:
        prefill_weights = read_private_weights(manifest, MANIFEST_SECTION, "prefill")
    else:
        prefill_weights = resident("prefill", "weights")
    states = read_states(manifest, MANIFEST_SECTION)
    return MemoryNeed(
        decode_weights=decode_weights,
        prefill_weights=prefill_weights,
        decode_context=resident("decode", "context"),
        prefill_context=resident("prefill", "context"),
        states=STATE_BUFFERS * sum(_byte_count(state) for state in states if state.update == "replace"),
        key_value=sum(_byte_count(state) for state in states if state.update == "append_rows"),
        unknown=tuple(unknown),
    )


def _byte_count(state: StateRecord) -> int:
    count = DTYPE_BYTES.get(state.dtype, 4)
    for extent in state.shape:
        count *= extent
    return count
