"""Gather from a manifest what running needs, and check what execution relies on.

The validator checks a whole manifest against its schema; here only those contradictions are refused that
would make a runtime read or write the wrong memory: inputs of unknown role, states that are not inputs and
outputs of every engine with one geometry, caches that are not one row a position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rowpack_loaders import manifest as records
from rowpack_loaders.compatibility.engine_needs import EngineNeeds, read_engine_needs
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest import MANIFEST_SECTION, EngineRecord, Limits, StateRecord, TensorRecord, Tokens
from rowpack_loaders.manifest_fields import Fields

DECODE = "decode"
PREFILL = "prefill"
REPLACE = "replace"
APPEND_ROWS = "append_rows"
INPUT_ROLES = ("token_id", "position_id", "attention_mask", "state")
OUTPUT_ROLES = ("logits", "state")
DTYPES = ("float32", "float16", "bfloat16", "int32")


@dataclass(frozen=True)
class ResidentBytes:
    """The memory an engine takes by itself: its weights, and its working memory as far as it is known.

    ``private`` is the part of the weights that it packs for itself where the engines share the others.
    """

    weights: int
    context: int
    private: int = 0


@dataclass(frozen=True)
class ModelDescription:
    """What a runtime needs to know of a bundle."""

    model_id: str
    family: str
    precision: str
    decoder_engine_layout: str
    engines: Mapping[str, EngineRecord]
    states: tuple[StateRecord, ...]
    limits: Limits
    tokens: Tokens
    weights_section: str | None
    resident_bytes: Mapping[str, ResidentBytes]
    weights_shared: bool
    needs: Mapping[str, EngineNeeds]
    content_digest: str | None

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return self.tokens.vocab_size

    @property
    def prefill_serves_decode(self) -> bool:
        """Whether one session of the prefill engine may run the steps too, so that one copy of the weights is held."""
        return PREFILL in self.engines and self.engines[PREFILL].serves_decode

    @property
    def bounded_rows(self) -> int | None:
        """The longest sequence in rows, or None for a model whose states all have a fixed size."""
        bounded = any(state.update == APPEND_ROWS for state in self.states)
        return self.limits.max_cache_length if bounded else None


def describe_model(manifest: dict[str, object], *, where: str = MANIFEST_SECTION) -> ModelDescription:
    """Return the description of a parsed ``manifest.json``; ``where`` names it in errors.

    Raises :class:`RowpackError` ``manifest_malformed`` for a value of the wrong form and
    ``manifest_not_runnable`` for values that contradict each other.
    """
    fields = Fields(manifest, "", where)
    model_fields, weights = fields.child("model"), fields.optional_child("weights")
    model = ModelDescription(
        model_id=model_fields.text("id"),
        family=model_fields.text("family"),
        precision=model_fields.text("precision"),
        decoder_engine_layout=records.read_layout(manifest, where),
        engines=records.read_engines(manifest, where),
        states=records.read_states(manifest, where),
        limits=records.read_limits(manifest, where),
        tokens=records.read_tokens(manifest, where),
        weights_section=None if weights is None else weights.text("section"),
        resident_bytes={name: _resident_bytes(engine) for name, engine in fields.members("engines")},
        weights_shared=records.read_weights_shared(manifest, where),
        needs={need.role: need for need in read_engine_needs(manifest)},
        content_digest=fields.optional_text("content_digest"),
    )
    for engine in model.engines.values():
        _check_roles(engine, where)
        _check_states(engine, model.states, where)
    _check_caches(model, where)
    _check_prefill_rows(model, where)
    _check_layout(model, where)
    return model


def _resident_bytes(engine: Fields) -> ResidentBytes:
    resident = engine.optional_child("resident_bytes")
    if resident is None:
        return ResidentBytes(0, 0)
    private = resident.integer("private") if "private" in resident.raw else 0
    return ResidentBytes(resident.optional_integer("weights") or 0, resident.optional_integer("context") or 0, private)


def _check_roles(engine: EngineRecord, where: str) -> None:
    for kind, tensors, roles in (
        ("inputs", engine.inputs, INPUT_ROLES),
        ("outputs", engine.outputs, OUTPUT_ROLES),
    ):
        for index, tensor in enumerate(tensors):
            place = f"{where}#/engines/{engine.name}/{kind}/{index}"
            if tensor.role not in roles:
                raise _refusal(f"{place}/role", tensor.role, " or ".join(roles))
            if tensor.dtype not in DTYPES:
                raise _refusal(f"{place}/dtype", tensor.dtype, " or ".join(DTYPES))
    for role, tensors, dtype in (("token_id", engine.inputs, "int32"), ("logits", engine.outputs, "float32")):
        dtypes = [tensor.dtype for tensor in tensors if tensor.role == role]
        if dtypes != [dtype]:
            raise _refusal(f"{where}#/engines/{engine.name}", f"{role}: {dtypes}", f"one {role} of {dtype}")


def _check_states(engine: EngineRecord, states: tuple[StateRecord, ...], where: str) -> None:
    inputs = {tensor.name: tensor for tensor in engine.inputs if tensor.role == "state"}
    outputs = {tensor.name: tensor for tensor in engine.outputs if tensor.role == "state"}
    for kind, tensors, listed in (
        ("inputs", inputs, {state.input for state in states}),
        ("outputs", outputs, {state.output for state in states}),
    ):
        if tensors.keys() != listed:
            odd = ", ".join(sorted(tensors.keys() ^ listed)[:8])
            raise _refusal(f"{where}#/engines/{engine.name}/{kind}", odd, "the tensors of /states, no others")
    for state in states:
        _check_geometry(engine, state, inputs[state.input], where)
        _check_geometry(engine, state, outputs[state.output], where)


def _check_geometry(engine: EngineRecord, state: StateRecord, tensor: TensorRecord, where: str) -> None:
    # The first dimension of a cache is its capacity in /states and a number of rows in the engine.
    first = 1 if state.update == APPEND_ROWS else 0
    if tensor.dtype != state.dtype or tensor.shape[first:] != state.shape[first:]:
        raise _refusal(
            f"{where}#/engines/{engine.name}: {tensor.name}",
            f"{tensor.dtype} {list(tensor.shape)}",
            f"{state.dtype} {list(state.shape)}, as in /states",
        )


def _check_caches(model: ModelDescription, where: str) -> None:
    for index, state in enumerate(model.states):
        place, capacity = f"{where}#/states/{index}/shape", model.limits.max_cache_length
        if state.update == APPEND_ROWS and (len(state.shape) != 2 or state.shape[0] != capacity):
            raise _refusal(place, str(list(state.shape)), f"[{capacity}, width], by /limits/max_cache_length")


def _check_prefill_rows(model: ModelDescription, where: str) -> None:
    rows = model.limits.prefill_rows
    if rows > records.MAX_PREFILL_ROWS:
        raise _refusal(f"{where}#/limits/prefill_rows", str(rows), f"at most {records.MAX_PREFILL_ROWS}")


def _check_layout(model: ModelDescription, where: str) -> None:
    expected = {DECODE, PREFILL} if model.decoder_engine_layout == "split" else {DECODE}
    if model.engines.keys() != expected:
        raise _refusal(
            f"{where}#/engines",
            ", ".join(model.engines) or "none",
            f"{' and '.join(sorted(expected))}, by the layout {model.decoder_engine_layout}",
        )
    sections = [engine.section for engine in model.engines.values()]
    if len(set(sections)) < len(sections):
        raise _refusal(f"{where}#/engines", f"{sections[0]} twice", "a section for each engine")
    for engine in model.engines.values():
        needed = model.limits.prefill_rows if engine.name == PREFILL else 1
        if not engine.rows.min <= 1 <= needed <= engine.rows.max:
            raise _refusal(
                f"{where}#/engines/{engine.name}/rows",
                f"{engine.rows.min} to {engine.rows.max}",
                f"1 to {needed}",
            )


def _refusal(place: str, found: str, expected: str) -> RowpackError:
    return RowpackError(
        "manifest_not_runnable",
        "The manifest describes engines that cannot be run",
        where=place,
        found=found[:300],
        expected=expected[:300],
        remedy="Run rowpack validate on the bundle, or build it again",
    )
