"""What ``rowpack inspect`` says of a bundle, from its header, manifest and trailer alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rowpack.cli.layout_words import layout_in_words
from rowpack.cli.text_table import count_of, format_facts, format_table
from rowpack.units import format_bytes
from rowpack_loaders.bundle import Bundle
from rowpack_loaders.manifest import SpecialToken, StateRecord
from rowpack_loaders.manifest_fields import Fields

PREFILL = "prefill"

FORMS_IN_WORDS = {
    "format_1": "format 1 without a manifest",
    "august_2026": "the form of August 2026",
    "trtfb": "the form before August 2026 (TRTFB)",
}
NOTHING = "–"


class Inspection:
    """Read what people and machines want to know of an open bundle; refuse one that is malformed."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._manifest = Fields(bundle.manifest, "", f"{bundle.path}: manifest.json")
        self._trailer = bundle.trailer() or {}

    def as_json(self) -> dict[str, object]:
        """Return path, sizes, header facts, digests, and the manifest as it stands in the bundle."""
        return {
            "path": str(self._bundle.path),
            "file_bytes": self._bundle.container.file_size,
            "family": self._bundle.family,
            "backend": self._bundle.backend,
            "decoder_engine_layout": self._bundle.decoder_engine_layout,
            "sections": {
                name: {"offset": section.offset_bytes, "length": section.length_bytes}
                for name, section in self._bundle.sections.items()
            },
            "sizes": self.sizes(),
            "content_digest": self._manifest.optional_text("content_digest"),
            "file_digest": self._trailer.get("file_digest"),
            "manifest": self._bundle.manifest,
        }

    def sizes(self) -> dict[str, dict[str, int | None]]:
        """Return file bytes and weight bytes in memory of this model as a single and as a split bundle.

        A single bundle does not know how large the prefill engine would be that it lacks: ``None``.
        """
        decision = self._decision()
        weight_bytes = None if decision is None else decision.integer("weight_bytes")
        both_weight_bytes = None if decision is None else _both_weight_bytes(decision)
        prefill_bytes = self._prefill_bytes()
        file_bytes = self._bundle.container.file_size
        return {
            "single": {"file_bytes": file_bytes - (prefill_bytes or 0), "weight_bytes": weight_bytes},
            "split": {
                "file_bytes": None if prefill_bytes is None else file_bytes,
                "weight_bytes": both_weight_bytes,
            },
        }

    def text(self) -> str:
        """Return the whole description for a reader."""
        parts = [
            format_facts(list(self._model_facts())),
            "engines\n" + self._engine_table(),
            "sections\n" + self._section_table(),
            "single or split\n" + self._size_table(),
            "states of one sequence\n" + self._state_table(),
            format_facts(list(self._limit_facts())),
            format_facts(list(self._digest_facts())),
        ]
        return "\n\n".join(parts)

    def _decision(self) -> Fields | None:
        """Return the layout decision; None where an older container did not say, an error where it is missing."""
        unknown = self._manifest.raw.get("layout_decision", "missing") is None
        return None if unknown else self._manifest.child("layout_decision")

    def _prefill_bytes(self) -> int | None:
        engine = self._bundle.engines.get(PREFILL)
        section = self._bundle.sections.get(engine.section) if engine else None
        return section.length_bytes if section else None

    def _model_facts(self) -> Iterator[tuple[str, str]]:
        model, producer = self._manifest.child("model"), self._manifest.child("producer")
        yield "bundle", f"{self._bundle.path} ({format_bytes(self._bundle.container.file_size)})"
        revision = model.optional_text("revision")
        yield "model", model.text("id") + (f" at {revision}" if revision else "")
        count = model.optional_integer("parameter_count")
        parameters = "parameters not counted" if count is None else count_of(count, "parameter")
        yield "family", f"{model.text('family')} ({model.text('architecture')}), {parameters}"
        quantization = model.optional_text("quantization")
        tables = [
            f"{word} {model.text(key)}"
            for key, word in (("head_quantization", "output projection"), ("embedding_quantization", "embedding"))
            if key in model.raw
        ]
        stored = f", {quantization}" if quantization else ""
        yield "precision", model.text("precision") + stored + (f" ({', '.join(tables)})" if tables else "")
        decision = self._decision()
        decided = f"{self._bundle.decoder_engine_layout}: how it was decided is not known"
        yield "layout", decided if decision is None else layout_in_words(decision)
        yield "made by", f"{producer.text('name')} {producer.text('version')}"
        origin = self._manifest.optional_child("origin")
        if origin is not None:
            form = FORMS_IN_WORDS.get(origin.text("form"), origin.text("form"))
            yield "form" if self._bundle.is_older else "converted from", form
            for name, key in (("not known", "unknown"), ("assumed", "assumed")):
                yield name, f"{count_of(len(origin.texts(key)), 'place')} of the manifest (--json lists them)"

    def _engine_table(self) -> str:
        rows = [("name", "section", "backend", "prompt rows", "runs on", "mixers by")]
        records = dict(self._manifest.members("engines"))
        for engine in self._bundle.engines.values():
            low, best, high = engine.rows.min, engine.rows.opt, engine.rows.max
            row_range = str(high) if low == high else f"{low} to {high}, best {best}"
            backend = f"{engine.backend} {engine.backend_version}"
            record = records[engine.name]
            target, mixers = target_in_words(record.child("target")), operators_in_words(record)
            rows.append((engine.name, engine.section, backend, row_range, target, mixers))
        return format_table(rows)

    def _section_table(self) -> str:
        rows = [("name", "offset", "bytes", "")]
        for name, section in self._bundle.sections.items():
            rows.append(
                (
                    name,
                    f"{section.offset_bytes:,}",
                    f"{section.length_bytes:,}",
                    format_bytes(section.length_bytes),
                )
            )
        return format_table(rows, right_aligned=(1, 2, 3))

    def _size_table(self) -> str:
        rows = [("", "file", "weights in memory")]
        for layout, sizes in self.sizes().items():
            file_bytes, weight_bytes = sizes["file_bytes"], sizes["weight_bytes"]
            name = f"{layout} (this bundle)" if layout == self._bundle.decoder_engine_layout else layout
            rows.append((name, _size_or_nothing(file_bytes), _size_or_nothing(weight_bytes)))
        return format_table(rows, right_aligned=(1, 2))

    def _state_table(self) -> str:
        groups: dict[tuple[str, str, str, str], list[StateRecord]] = defaultdict(list)
        for state in self._bundle.states:
            shape = " × ".join(map(str, state.shape))
            groups[state.role, state.dtype, shape, state.update].append(state)
        rows = [("role", "tensors", "layers", "dtype", "shape", "update", "starts at")]
        for (role, dtype, shape, update), states in groups.items():
            layers = ", ".join(str(layer) for layer in sorted({state.layer for state in states}))
            starts = ", ".join(sorted({f"{state.initial_value:g}" for state in states}))
            rows.append((role, str(len(states)), layers, dtype, shape, update.replace("_", " "), starts))
        return format_table(rows, right_aligned=(1,))

    def _limit_facts(self) -> Iterator[tuple[str, str]]:
        limits, tokens = self._bundle.limits, self._bundle.tokens
        bounded = any(state.update == "append_rows" for state in self._bundle.states)
        longest = count_of(limits.max_cache_length, "token")
        yield "sequence", f"up to {longest}" if bounded else "of any length (no state grows)"
        yield "prefill", f"chunks of up to {count_of(limits.prefill_rows, 'row')}"
        yield "vocabulary", count_of(tokens.vocab_size, "token")
        yield "starts with", _token_or_nothing(tokens.bos)
        yield "stops at", ", ".join(map(_token_or_nothing, tokens.eos)) or NOTHING
        yield "pads with", _token_or_nothing(tokens.pad)
        tokenizer = self._manifest.child("tokenizer")
        yield "tokenizer", ", ".join(tokenizer.texts("sections")) or "none: token ids only"

    def _digest_facts(self) -> Iterator[tuple[str, str]]:
        yield "content digest", self._manifest.optional_text("content_digest") or NOTHING
        file_digest = self._trailer.get("file_digest")
        yield "file digest", file_digest if isinstance(file_digest, str) else NOTHING
        for source in self._manifest.child("model").children("inputs"):
            yield f"from {source.text('file')}", f"sha256:{source.text('sha256')}"


def operators_in_words(engine: Fields) -> str:
    """Return an engine's form of the mixers, the operators it needs beyond the standard ones, and if it runs steps."""
    lowering = engine.optional_text("lowering") or "unknown"
    names = [str(name) for name in _array(engine, "requires")]
    serves_decode = "; serves decode" if engine.raw.get("serves_decode") is True else ""
    return f"{lowering} operators" + (f"; needs {', '.join(names)}" if names else "") + serves_decode


def _both_weight_bytes(decision: Fields) -> int:
    """Return what a pair holds of weights: what was counted, where engines pack a part of them each for itself."""
    needed = decision.optional_integer("needed_bytes") if "needed_bytes" in decision.raw else None
    copies = decision.integer("copies") * decision.integer("weight_bytes")
    return copies if needed is None else min(needed, copies)


def target_in_words(target: Fields) -> str:
    """Return what an engine's target demands of a machine, ``any machine`` when it demands nothing."""
    demands = []
    for key, prefix in (("os", ""), ("arch", ""), ("cpu_features", ""), ("sm", "sm ")):
        values = [str(value) for value in _array(target, key) if value != "any"]
        if values:
            demands.append(prefix + "/".join(values))
    driver = target.optional_text("minimum_driver")
    if driver:
        demands.append(f"driver {driver} or newer")
    return ", ".join(demands) or "any machine"


def _array(fields: Fields, key: str) -> list[object]:
    value = fields.raw.get(key)
    return value if isinstance(value, list) else []


def _size_or_nothing(byte_count: int | None) -> str:
    return "not known" if byte_count is None else format_bytes(byte_count)


def _token_or_nothing(token: SpecialToken | None) -> str:
    return NOTHING if token is None else f"{token.id} ({', '.join(token.sources)})"
