"""Give the parts of a manifest that loaders rely on as typed records.

The raw dictionary stays the truth (``Bundle.manifest``); these records are read from it and refuse what is
malformed with the JSON pointer of the place. ``docs/format.md`` explains every key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest_fields import Fields

MANIFEST_SECTION = "manifest.json"
SCHEMA_MAJOR = 1
SCHEMA_MINOR = 0
KNOWN_FEATURES = frozenset({"section_extents"})

MAX_PREFILL_ROWS = 4096
"""Most rows of a prefill call that a manifest may name.

What a loader makes for a call grows with the square of it: the mask among a call's rows is 64 MiB of float32 here. A
manifest is read before anything is trusted, so the number is bounded, well above what a backend builds for.
"""

DECODER_ENGINE_LAYOUTS = ("single", "split")
STATE_UPDATES = ("replace", "append_rows")
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "int8": 1, "uint8": 1, "bool": 1}


@dataclass(frozen=True)
class TensorRecord:
    """One input or output of an engine; a string in ``shape`` names a free dimension."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    role: str


@dataclass(frozen=True)
class RowRange:
    """How many prompt rows an engine takes a call."""

    min: int
    opt: int
    max: int


@dataclass(frozen=True)
class EngineRecord:
    """One engine: its section, what built it, and every input and output in the engine's order.

    ``serves_decode`` marks a prefill engine that takes one row at the decode engine's cost, so that a session of it can
    serve both roles.
    """

    name: str
    section: str
    backend: str
    backend_version: str
    rows: RowRange
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    serves_decode: bool = False

    def input(self, name: str) -> TensorRecord:
        """Return the input called ``name``; KeyError when the engine has none."""
        return {tensor.name: tensor for tensor in self.inputs}[name]

    def output(self, name: str) -> TensorRecord:
        """Return the output called ``name``; KeyError when the engine has none."""
        return {tensor.name: tensor for tensor in self.outputs}[name]

    @property
    def logits(self) -> str:
        """The name of the output that is the last row's logits."""
        (name,) = (tensor.name for tensor in self.outputs if tensor.role == "logits")
        return name


@dataclass(frozen=True)
class StateRecord:
    """One state of a sequence: the tensor it enters by, the tensor it leaves by, and how it is updated."""

    role: str
    layer: int
    input: str
    output: str
    dtype: str
    shape: tuple[int, ...]
    layout: str
    initial_value: float
    update: str
    rewindable: bool

    @property
    def fixed_bytes(self) -> int:
        """The bytes of a state that is replaced; 0 for one that grows, or of a dtype that no state has."""
        return DTYPE_BYTES.get(self.dtype, 0) * math.prod(self.shape) if self.update == "replace" else 0

    @property
    def bytes_per_token(self) -> int:
        """The bytes of the row that a token adds to a cache; 0 for a state that is replaced."""
        return DTYPE_BYTES.get(self.dtype, 0) * math.prod(self.shape[1:]) if self.update == "append_rows" else 0


@dataclass(frozen=True)
class Limits:
    """Bounds of a sequence and of one prefill call."""

    max_cache_length: int
    prefill_rows: int
    max_position_embeddings: int | None


@dataclass(frozen=True)
class SpecialToken:
    """A token id and the checkpoint files that name it."""

    id: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Tokens:
    """Vocabulary size and special token ids."""

    vocab_size: int
    bos: SpecialToken | None
    pad: SpecialToken | None
    eos: tuple[SpecialToken, ...]

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a sequence."""
        return tuple(token.id for token in self.eos)


def check_version(manifest: dict[str, object], where: str) -> None:
    """Refuse a manifest of another schema major, or with a required feature this reader does not know."""
    fields = Fields(manifest, "", where)
    version = fields.text("schema_version")
    major, dot, minor = version.partition(".")
    if not (dot and _is_number(major) and _is_number(minor)):
        raise RowpackError(
            "manifest_malformed",
            "The schema version is not of the form major.minor",
            where=f"{where}#/schema_version",
            found=repr(version)[:80],
            expected=f"{SCHEMA_MAJOR}.{SCHEMA_MINOR}",
        )
    if int(major) != SCHEMA_MAJOR:
        raise RowpackError(
            "manifest_schema_unsupported",
            "The manifest follows a schema this program does not know",
            where=f"{where}#/schema_version",
            found=version,
            expected=f"{SCHEMA_MAJOR}.x",
            remedy="Use a version of this program that knows the schema",
        )
    unknown = [feature for feature in fields.texts("required_features") if feature not in KNOWN_FEATURES]
    if unknown:
        raise RowpackError(
            "manifest_feature_unsupported",
            "The bundle needs features this program does not have",
            where=f"{where}#/required_features",
            found=", ".join(unknown)[:400],
            expected=", ".join(sorted(KNOWN_FEATURES)) or "none",
            remedy="Use a newer version of this program",
        )


def read_layout(manifest: dict[str, object], where: str) -> str:
    """Return ``decoder_engine_layout``: ``single`` or ``split``."""
    return Fields(manifest, "", where).choice("decoder_engine_layout", DECODER_ENGINE_LAYOUTS)


def read_engines(manifest: dict[str, object], where: str) -> dict[str, EngineRecord]:
    """Return the engines by name (``decode``, and ``prefill`` in a split bundle)."""
    members = Fields(manifest, "", where).members("engines")
    return {name: _read_engine(name, fields) for name, fields in members}


def read_states(manifest: dict[str, object], where: str) -> tuple[StateRecord, ...]:
    """Return the state table in its order."""
    return tuple(_read_state(fields) for fields in Fields(manifest, "", where).children("states"))


def read_weights_shared(manifest: dict[str, object], where: str) -> bool:
    """Return whether the engines hold one copy of the weights together."""
    fields = Fields(manifest, "", where)
    for _, engine in fields.members("engines"):
        resident = engine.optional_child("resident_bytes")
        if resident is not None and "shared" in resident.raw:
            return resident.boolean("shared")
    return fields.optional_child("weights") is not None


def read_private_weights(manifest: dict[str, object], where: str, role: str) -> int:
    """Return the bytes of weights that an engine holds for itself although the engines share the others."""
    engine = dict(Fields(manifest, "", where).members("engines")).get(role)
    resident = None if engine is None else engine.optional_child("resident_bytes")
    if resident is None or "private" not in resident.raw:
        return 0
    return resident.integer("private")


def read_serves_decode(manifest: dict[str, object], where: str) -> bool:
    """Return whether one session of the prefill engine serves both roles."""
    engine = dict(Fields(manifest, "", where).members("engines")).get("prefill")
    return engine is not None and _serves_decode(engine)


def read_limits(manifest: dict[str, object], where: str) -> Limits:
    """Return the limits."""
    fields = Fields(manifest, "", where).child("limits")
    return Limits(
        max_cache_length=fields.integer("max_cache_length", minimum=1),
        prefill_rows=fields.integer("prefill_rows", minimum=1),
        max_position_embeddings=fields.optional_integer("max_position_embeddings"),
    )


def read_tokens(manifest: dict[str, object], where: str) -> Tokens:
    """Return the vocabulary size and the special tokens."""
    fields = Fields(manifest, "", where).child("tokens")
    bos, pad = fields.optional_child("bos"), fields.optional_child("pad")
    return Tokens(
        vocab_size=fields.integer("vocab_size", minimum=1),
        bos=_read_token(bos) if bos else None,
        pad=_read_token(pad) if pad else None,
        eos=tuple(_read_token(token) for token in fields.children("eos")),
    )


def _read_engine(name: str, fields: Fields) -> EngineRecord:
    rows = fields.child("rows")
    return EngineRecord(
        name=name,
        section=fields.text("section"),
        backend=fields.text("backend"),
        backend_version=fields.text("backend_version"),
        rows=RowRange(rows.integer("min", minimum=1), rows.integer("opt", minimum=1), rows.integer("max", minimum=1)),
        inputs=tuple(_read_tensor(tensor) for tensor in fields.children("inputs")),
        outputs=tuple(_read_tensor(tensor) for tensor in fields.children("outputs")),
        serves_decode=_serves_decode(fields),
    )


def _serves_decode(engine: Fields) -> bool:
    return "serves_decode" in engine.raw and engine.boolean("serves_decode")


def _read_tensor(fields: Fields) -> TensorRecord:
    return TensorRecord(fields.text("name"), fields.text("dtype"), fields.shape("shape"), fields.text("role"))


def _read_state(fields: Fields) -> StateRecord:
    return StateRecord(
        role=fields.text("role"),
        layer=fields.integer("layer"),
        input=fields.text("input"),
        output=fields.text("output"),
        dtype=fields.text("dtype"),
        shape=fields.sizes("shape"),
        layout=fields.text("layout"),
        initial_value=fields.number("initial_value"),
        update=fields.choice("update", STATE_UPDATES),
        rewindable=fields.boolean("rewindable"),
    )


def _read_token(fields: Fields) -> SpecialToken:
    return SpecialToken(fields.integer("id"), fields.texts("sources"))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
