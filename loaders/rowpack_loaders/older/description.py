"""Read what an older container says of its model: one small adapter a form, one description for all.

What a form does not say is None here, and unknown in the manifest made from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType

from rowpack_loaders.container import Container
from rowpack_loaders.container_forms import AUGUST_2026, FORMAT_1, TRTFB
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest_fields import Fields
from rowpack_loaders.older import qwen3_5, rwkv
from rowpack_loaders.older.runtime_facts import (
    ABSENT_TOKEN,
    LARGEST_SIZE,
    LAYOUT_KEY,
    LAYOUTS,
    PRECISION_KEY,
    PRECISIONS,
    RuntimeKeys,
    described_by,
)
from rowpack_loaders.strict_json import parse_json_object

RUNTIME_JSON = "runtime.json"
CONFIG_JSON = "config.json"
GENERATION_CONFIG = "generation_config.json"
DESCRIPTION_LIMIT_BYTES = 4 * 2**20

FAMILIES: Mapping[str, ModuleType] = {"qwen3_5": qwen3_5, "rwkv": rwkv}


@dataclass(frozen=True)
class OlderDescription:
    """The facts of an older bundle.

    ``runtime`` holds the checked keys of ``runtime.json``; where that names no end token and a generation config does,
    the first of those. ``engine_sections`` maps ``decode`` and, in a split bundle,
    ``prefill`` to the section as it is called in this file.
    """

    family: str
    runtime: Fields
    engine_sections: Mapping[str, str]
    eos: Mapping[int, list[str]]
    backend: str | None = None
    backend_version: str | None = None
    model_id: str | None = None
    architecture: str | None = None
    max_position_embeddings: int | None = None
    quantization: str | None = None
    quantization_known: bool = False
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def layout(self) -> str:
        """``split`` when there is an engine for prompts, whatever the facts tell loaders that know one engine."""
        return "split" if "prefill" in self.engine_sections else "single"

    @property
    def states(self) -> list[dict[str, object]]:
        """The state table that loaders of the time allocated."""
        table: list[dict[str, object]] = FAMILIES[self.family].states(self.runtime)
        return table


def read_description(container: Container) -> OlderDescription:
    """Return what the older ``container`` says.

    Raises RowpackError: ``bundle_manifest_missing`` for a container that says nothing, ``older_family_unknown``,
    ``older_description_malformed``, and what reading sections raises.
    """
    if container.form is FORMAT_1 and RUNTIME_JSON not in container.sections:
        raise RowpackError(
            "bundle_manifest_missing",
            "The container says nothing of its model: it has neither a manifest nor a runtime.json",
            where=str(container.path),
            found=", ".join(list(container.sections)[:20]) or "no sections",
            expected="a section manifest.json",
            remedy="Build the bundle again from its checkpoint",
        )
    if container.family not in FAMILIES:
        raise RowpackError(
            "older_family_unknown",
            "This program does not know what engines of that family took and gave before there were manifests",
            where=str(container.path),
            found=container.family,
            expected=" or ".join(FAMILIES),
            remedy="Build the bundle again from its checkpoint",
        )
    with described_by(str(container.path)):
        return _READERS[container.form.name](container)


def _of_format_1(container: Container) -> OlderDescription:
    runtime = _section_fields(container, RUNTIME_JSON)
    FAMILIES[container.family].check(runtime)
    engines = _engine_sections(container, {"decode": "engine", "prefill": "prefill"}, runtime.text(LAYOUT_KEY))
    eos: dict[int, list[str]] = {}
    if runtime.integer("eos_token_id", minimum=ABSENT_TOKEN) != ABSENT_TOKEN:
        eos[runtime.integer("eos_token_id")] = [RUNTIME_JSON]
    if GENERATION_CONFIG in container.sections:
        for token_id in _token_ids(_section_fields(container, GENERATION_CONFIG), "eos_token_id"):
            eos.setdefault(token_id, []).append(GENERATION_CONFIG)
            if runtime.integer("eos_token_id", minimum=ABSENT_TOKEN) == ABSENT_TOKEN:
                runtime = Fields({**runtime.raw, "eos_token_id": token_id}, "", runtime.where)
    return _checked(
        OlderDescription(container.family, runtime, engines, eos, backend=container.backend),
    )


def _of_august_2026(container: Container) -> OlderDescription:
    header = Fields(dict(container.header.facts), "", f"{container.path}: header")
    if "io_map" in header.raw:
        raise header.wrong("io_map", "no such key: engines with tensor names of their own are not known")
    config = _section_fields(container, CONFIG_JSON)
    text = config.optional_child("text_config") or config
    bos, eos, pad = (_token_ids(config, f"{kind}_token_id", text) for kind in ("bos", "eos", "pad"))
    family = FAMILIES[container.family]
    words = {
        PRECISION_KEY: header.choice(PRECISION_KEY, PRECISIONS),
        LAYOUT_KEY: _layout(config, "prefill_engine_plan" in container.sections),
    }
    keys: RuntimeKeys = family.KEYS
    runtime_values = {
        **family.runtime_of_config(config),
        "max_cache_length": header.integer("max_cache_length", minimum=1),
        **{key: (ids or [ABSENT_TOKEN])[0] for key, ids in (("bos_token_id", bos), ("eos_token_id", eos))},
        **({"pad_token_id": (pad or [ABSENT_TOKEN])[0]} if "pad_token_id" in keys.tokens else {}),
        **words,
    }
    runtime = Fields(runtime_values, "", f"{container.path}: {CONFIG_JSON}")
    family.check(runtime)
    names = {"decode": "engine_plan", "prefill": "prefill_engine_plan"}
    engines = {role: name for role, name in names.items() if role == "decode" or words[LAYOUT_KEY] == "split"}
    for name in engines.values():
        container.section_range(name)
    return _checked(
        OlderDescription(
            container.family,
            runtime,
            engines,
            {token_id: [CONFIG_JSON] for token_id in eos},
            backend=_word(config, "engine_backend"),
            backend_version=header.optional_text("trt_version") or None,
            model_id=header.optional_text("model_id") or None,
            architecture=_architecture(config),
            max_position_embeddings=_positions(text),
            quantization=_word(header, "quantization"),
            quantization_known=True,
            facts=header.raw,
        )
    )


_READERS: Mapping[str, Callable[[Container], OlderDescription]] = {
    FORMAT_1.name: _of_format_1,
    AUGUST_2026.name: _of_august_2026,
    TRTFB.name: _of_august_2026,
}


def _section_fields(container: Container, name: str) -> Fields:
    where = f"{container.path}: {name}"
    stored = container.read_section(name, limit_bytes=DESCRIPTION_LIMIT_BYTES)
    return Fields(parse_json_object(stored, where=where), "", where)


def _engine_sections(container: Container, stems: Mapping[str, str], layout: str) -> dict[str, str]:
    """Return the section of each engine; a prefill engine is optional unless the layout word is ``split``."""
    sections = {}
    for role, stem in stems.items():
        found = next((f"{stem}.{kind}" for kind in ("plan", "onnx") if f"{stem}.{kind}" in container.sections), None)
        if found is not None:
            sections[role] = found
        elif role == "decode" or layout == "split":
            container.section_range(f"{stem}.plan")  # raises
    return sections


def _layout(config: Fields, has_prefill_engine: bool) -> str:
    """Return the layout word of a config; its oldest writers had none and one engine."""
    if config.raw.get(LAYOUT_KEY) is None:
        return "split" if has_prefill_engine else "single"
    return config.choice(LAYOUT_KEY, LAYOUTS)


def _token_ids(config: Fields, key: str, fallback: Fields | None = None) -> list[int]:
    """Return the ids of a config's ``key``: an id, a list of ids, or nothing."""
    value = config.raw.get(key)
    if value is None and fallback is not None:
        value = fallback.raw.get(key)
    ids = []
    for token_id in value if isinstance(value, list) else [value]:
        if token_id is None:
            continue
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise config.wrong(key, "a token id, a list of them, or null")
        ids.append(token_id)
    return list(dict.fromkeys(ids))


def _positions(text: Fields) -> int | None:
    positions = text.optional_integer("max_position_embeddings")
    if positions is not None and not 1 <= positions <= LARGEST_SIZE:
        raise text.wrong("max_position_embeddings", f"1 to {LARGEST_SIZE}")
    return positions


def _word(fields: Fields, key: str) -> str | None:
    """Return a name as an identifier of the manifest; None where there is none, or the word for nothing."""
    named = fields.optional_text(key)
    if named in (None, "", "none"):
        return None
    identifier = re.sub(r"[^a-z0-9]+", "_", str(named).lower()).strip("_")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,127}", identifier):
        raise fields.wrong(key, "a word")
    return identifier


def _architecture(config: Fields) -> str | None:
    named = config.texts("architectures") if config.raw.get("architectures") is not None else ()
    return next((name for name in named if name), None)


def _checked(description: OlderDescription) -> OlderDescription:
    """Refuse token ids outside the vocabulary."""
    vocab_size = description.runtime.integer("vocab_size")
    keys: RuntimeKeys = FAMILIES[description.family].KEYS
    beyond = [token_id for token_id in description.eos if token_id >= vocab_size]
    for key in keys.tokens:
        if description.runtime.integer(key, minimum=ABSENT_TOKEN) >= vocab_size or (key == "eos_token_id" and beyond):
            raise description.runtime.wrong(key, f"below {vocab_size}")
    return description
