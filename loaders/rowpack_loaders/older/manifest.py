"""Make a manifest of what an older bundle says, in which everything that nobody wrote down reads unknown.

A text that is not known is the word ``unknown``, a number or a digest is null, a list is empty; ``origin.unknown``
lists the places, so that none of them can be taken for a statement. ``origin.assumed`` lists what was not read but
follows from what loaders of that time bound to the engines.
"""

from __future__ import annotations

from typing import Any

from rowpack_loaders.container import Container
from rowpack_loaders.container_forms import FORMAT_1, UNKNOWN
from rowpack_loaders.container_header import SectionRange
from rowpack_loaders.manifest import MANIFEST_SECTION, SCHEMA_MAJOR, SCHEMA_MINOR
from rowpack_loaders.older.description import RUNTIME_JSON, OlderDescription, read_description
from rowpack_loaders.older.runtime_facts import ABSENT_TOKEN, LAYOUT_KEY, PRECISION_KEY
from rowpack_loaders.safetensors_header import LENGTH_BYTES, TensorEntry, data_start, parse_header

WEIGHTS_SECTION = "weights.safetensors"
PREFILL_ROWS = (1, 32, 64)
"""Fewest, best and most rows of a prefill call; engines of that time were built for these."""

HEADER_TEXT_LIMIT = 64 * 2**10

_TOKENIZER_SECTIONS = (
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
_CHAT_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_MEDIA_TYPES = {"json": "application/json", "jinja": "text/plain", "txt": "text/plain", "onnx": "application/onnx"}


def is_older(container: Container) -> bool:
    """Tell whether ``container`` was written before there were manifests."""
    return container.form is not FORMAT_1 or MANIFEST_SECTION not in container.sections


def describe_older(container: Container) -> dict[str, object]:
    """Return the manifest of an older container, with sections under the names they have in it.

    Raises what :func:`read_description` raises.
    """
    return _OlderManifest(container, read_description(container)).build()


class _OlderManifest:
    """Assemble the manifest and note on the way what is unknown and what is assumed."""

    def __init__(self, container: Container, description: OlderDescription) -> None:
        self._container = container
        self._description = description
        self._unknown: list[str] = []
        self._assumed: list[str] = []

    def build(self) -> dict[str, object]:
        description, runtime = self._description, self._description.runtime
        if description.layout != runtime.text(LAYOUT_KEY):
            self._assumed.append("/decoder_engine_layout")
        weights = self._weights()
        manifest: dict[str, object] = {
            "schema_version": f"{SCHEMA_MAJOR}.{SCHEMA_MINOR}",
            "required_features": [],
            "producer": {"name": self._text(None, "/producer/name"), "version": self._text(None, "/producer/version")},
            "model": self._model(weights),
            "decoder_engine_layout": description.layout,
            "layout_decision": self._nothing("/layout_decision"),
            "engines": {role: self._engine(role, name) for role, name in description.engine_sections.items()},
            "weights": self._weight_facts(weights),
            "states": self._assume(description.states, "/states"),
            "limits": {
                "max_cache_length": runtime.integer("max_cache_length"),
                "prefill_rows": self._assume(PREFILL_ROWS[2], "/limits/prefill_rows"),
                "max_position_embeddings": self._positions(),
            },
            "tokens": self._tokens(),
            "tokenizer": self._tokenizer(),
            "runtime_json": {"section": RUNTIME_JSON, "decoder_engine_layout": runtime.text(LAYOUT_KEY)},
            "self_test": None,
            "sections": {name: self._section(name, place) for name, place in self._container.sections.items()},
        }
        manifest["origin"] = self._origin()
        return manifest

    def _text(self, value: str | None, pointer: str) -> str:
        if value is None:
            self._unknown.append(pointer)
        return UNKNOWN if value is None else value

    def _nothing(self, pointer: str, value: Any = None) -> Any:
        self._unknown.append(pointer)
        return value

    def _assume(self, value: Any, pointer: str) -> Any:
        self._assumed.append(pointer)
        return value

    def _model(self, weights: dict[str, TensorEntry] | None) -> dict[str, object]:
        description = self._description
        words = (PRECISION_KEY, LAYOUT_KEY, "tensor_parallel_mode")
        hyper_parameters = {
            key: value
            for key, value in description.runtime.raw.items()
            if key not in words and not key.endswith("_token_id")
        }
        if not description.quantization_known:
            self._unknown.append("/model/quantization")
        return {
            "id": self._text(description.model_id, "/model/id"),
            "revision": self._nothing("/model/revision"),
            "family": description.family,
            "architecture": self._text(description.architecture, "/model/architecture"),
            "parameter_count": self._nothing("/model/parameter_count")
            if weights is None
            else sum(_element_count(entry) for entry in weights.values()),
            "precision": description.runtime.text(PRECISION_KEY),
            "quantization": description.quantization,
            "hyper_parameters": hyper_parameters,
            "inputs": self._nothing("/model/inputs", []),
        }

    def _engine(self, role: str, section: str) -> dict[str, object]:
        description, at = self._description, f"/engines/{role}"
        portable = section.endswith(".onnx")
        place = ["any"] if portable else [UNKNOWN]
        if not portable:
            self._unknown += [f"{at}/target/{key}" for key in ("os", "arch", "sm", "minimum_driver")]
            self._unknown.append(f"{at}/builder_flags")
        if role == "prefill":
            self._assumed.append(f"{at}/rows")
        fewest, best, most = PREFILL_ROWS if role == "prefill" else (1, 1, 1)
        return {
            "section": section,
            "backend": self._text(description.backend, f"{at}/backend"),
            "backend_version": self._text(description.backend_version, f"{at}/backend_version"),
            "requires": self._nothing(f"{at}/requires", []),
            "lowering": self._text(None, f"{at}/lowering"),
            "target": {"os": place, "arch": list(place), "cpu_features": [], "sm": [], "minimum_driver": None},
            "opset": self._nothing(f"{at}/opset"),
            "ir_version": self._nothing(f"{at}/ir_version"),
            "rows": {"min": fewest, "opt": best, "max": most},
            "builder_flags": {},
            "onnx_sha256": self._nothing(f"{at}/onnx_sha256"),
            "resident_bytes": {"weights": self._nothing(f"{at}/resident_bytes/weights"), "context": None},
            "inputs": self._assume(self._engine_inputs(role, portable), f"{at}/inputs"),
            "outputs": self._assume(self._engine_outputs(role), f"{at}/outputs"),
        }

    def _engine_inputs(self, role: str, portable: bool) -> list[dict[str, object]]:
        """Return what loaders bound; plans read every row of the cache in each call, graphs the filled ones."""
        rows: int | str = "rows" if role == "prefill" else 1
        states = self._description.states
        inputs = [_tensor("token_id", "int32", [rows], "token_id")]
        caches = [state for state in states if state["update"] == "append_rows"]
        if caches:
            capacity = self._description.runtime.integer("max_cache_length")
            whole = capacity + 1 if rows == 1 else "max_cache_length+rows"
            columns = f"cache_rows+{rows}" if portable else whole
            inputs.append(_tensor("position_id", "int32", [rows], "position_id"))
            inputs.append(_tensor("attention_mask", "float32", [rows, columns], "attention_mask"))
        for state in states:
            shape = _sizes(state)
            if portable and state in caches:
                shape[0] = "cache_rows"
            inputs.append(_tensor(str(state["input"]), str(state["dtype"]), shape, "state"))
        return inputs

    def _engine_outputs(self, role: str) -> list[dict[str, object]]:
        rows: int | str = "rows" if role == "prefill" else 1
        vocab_size = self._description.runtime.integer("vocab_size")
        outputs = [_tensor("logits", "float32", [1, vocab_size], "logits")]
        for state in self._description.states:
            shape = _sizes(state)
            if state["update"] == "append_rows":
                shape[0] = rows
            outputs.append(_tensor(str(state["output"]), str(state["dtype"]), shape, "state"))
        return outputs

    def _weights(self) -> dict[str, TensorEntry] | None:
        place = self._container.sections.get(WEIGHTS_SECTION)
        if place is None:
            return None
        prefix = self._container.read_at(place.offset_bytes, min(LENGTH_BYTES, place.length_bytes))
        length = data_start(prefix, place.length_bytes, WEIGHTS_SECTION)
        header = self._container.read_at(place.offset_bytes, length)
        return parse_header(header, total_bytes=place.length_bytes, where=WEIGHTS_SECTION) or None

    def _weight_facts(self, weights: dict[str, TensorEntry] | None) -> dict[str, object] | None:
        if weights is None:
            return None
        return {
            "section": WEIGHTS_SECTION,
            "tensor_count": len(weights),
            "tensor_bytes": sum(entry.byte_count for entry in weights.values()),
        }

    def _positions(self) -> int | None:
        # A model without a cache has no positions, so nothing is missing there.
        cached = any(state["update"] == "append_rows" for state in self._description.states)
        if cached and self._description.max_position_embeddings is None:
            self._unknown.append("/limits/max_position_embeddings")
        return self._description.max_position_embeddings

    def _tokens(self) -> dict[str, object]:
        runtime = self._description.runtime
        source = RUNTIME_JSON if RUNTIME_JSON in self._container.sections else "config.json"

        def single(key: str) -> dict[str, object] | None:
            token_id = runtime.raw.get(key, ABSENT_TOKEN)
            return None if token_id == ABSENT_TOKEN else {"id": token_id, "sources": [source]}

        if "pad_token_id" not in runtime.raw:
            self._unknown.append("/tokens/pad")
        return {
            "vocab_size": runtime.integer("vocab_size"),
            "bos": single("bos_token_id"),
            "pad": single("pad_token_id"),
            "eos": [{"id": token_id, "sources": sources} for token_id, sources in self._description.eos.items()],
        }

    def _tokenizer(self) -> dict[str, object]:
        template = next((name for name in _CHAT_TEMPLATES if name in self._container.sections), None)
        files = sorted(self._container.sections.keys() & {*_TOKENIZER_SECTIONS, *_CHAT_TEMPLATES})
        return {"sections": files, "chat_template_section": template, "missing": not files}

    def _section(self, name: str, place: SectionRange) -> dict[str, object]:
        needed = {*self._description.engine_sections.values(), RUNTIME_JSON, WEIGHTS_SECTION, "tokenizer.json"}
        return {
            "media_type": _MEDIA_TYPES.get(name.rpartition(".")[2], "application/octet-stream"),
            "length": place.length_bytes,
            "sha256": None,
            "encoding": "zstd" if name.endswith(".zst") else "raw",
            "required": name in needed,
        }

    def _origin(self) -> dict[str, object]:
        text = None
        if self._container.form is not FORMAT_1 and len(self._container.header_bytes) <= HEADER_TEXT_LIMIT:
            text = self._container.header_bytes.decode("utf-8")
        return {
            "form": self._container.form.name,
            "length": self._container.file_size,
            "sha256": None,
            "header": text,
            "unknown": sorted(self._unknown),
            "assumed": sorted(self._assumed),
        }


def _tensor(name: str, dtype: str, shape: list[int | str], role: str) -> dict[str, object]:
    return {"name": name, "dtype": dtype, "shape": shape, "role": role}


def _sizes(state: dict[str, object]) -> list[int | str]:
    shape = state["shape"]
    return list(shape) if isinstance(shape, list) else []


def _element_count(entry: TensorEntry) -> int:
    count = 1
    for size in entry.shape:
        count *= size
    return count
