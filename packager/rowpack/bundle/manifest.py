"""Assemble ``manifest.json`` from what the stages of a build found; the writer adds digests and section table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rowpack.engines.backend import BuiltEngine, Executed
from rowpack.families.declaration import ModelDescription
from rowpack.gate import LayoutDecision
from rowpack.special_tokens import SpecialTokens
from rowpack.weights import WEIGHTS_SECTION, WeightPlan
from rowpack_loaders.golden import GOLDEN_SECTION
from rowpack_loaders.version import __version__

SCHEMA_VERSION = "1.0"

RUNTIME_JSON_SECTION = "runtime.json"


@dataclass(frozen=True)
class SelfTestFacts:
    """What the manifest says of the golden vectors, and of what was executed to hold the bundle to them."""

    case_count: int
    relative_tolerance: float
    executed: Executed


@dataclass(frozen=True)
class ManifestFacts:
    """Everything the manifest is made from."""

    model_id: str
    revision: str | None
    precision: str
    quantization: str | None
    head_quantization: str | None
    embedding_quantization: str | None
    model: ModelDescription
    inputs: Sequence[Mapping[str, object]]
    decision: LayoutDecision
    backend: str
    engines: Sequence[BuiltEngine]
    plan: WeightPlan
    max_cache_length: int
    prefill_rows: int
    tokens: SpecialTokens
    tokenizer_sections: Sequence[str]
    runtime_json_layout: str
    weights_in_bundle: bool
    self_test: SelfTestFacts | None


def build_manifest(facts: ManifestFacts) -> dict[str, object]:
    """Return the manifest without ``sections`` and ``content_digest``, which only the finished file has."""
    model = facts.model
    chat_template = "chat_template.jinja"
    return {
        "schema_version": SCHEMA_VERSION,
        "required_features": [],
        "producer": {"name": "rowpack", "version": __version__},
        "model": {
            "id": facts.model_id,
            "revision": facts.revision,
            "family": model.family,
            "architecture": model.architecture,
            "parameter_count": model.parameter_count,
            "precision": facts.precision,
            "quantization": facts.quantization,
            **({} if facts.head_quantization is None else {"head_quantization": facts.head_quantization}),
            **(
                {} if facts.embedding_quantization is None else {"embedding_quantization": facts.embedding_quantization}
            ),
            "hyper_parameters": dict(model.hyper_parameters),
            "inputs": [dict(entry) for entry in facts.inputs],
        },
        "decoder_engine_layout": facts.decision.layout,
        "layout_decision": facts.decision.as_json(),
        "engines": {engine.role: engine.as_json(facts.backend) for engine in facts.engines},
        "weights": {
            "section": WEIGHTS_SECTION,
            "tensor_count": len(facts.plan.tensors),
            "tensor_bytes": facts.plan.tensor_bytes,
        }
        if facts.weights_in_bundle
        else None,
        "states": [state.as_json() for state in model.states],
        "limits": {
            "max_cache_length": facts.max_cache_length,
            "prefill_rows": facts.prefill_rows,
            "max_position_embeddings": model.max_position_embeddings,
        },
        "tokens": facts.tokens.as_json(model.vocab_size),
        "tokenizer": {
            "sections": sorted(facts.tokenizer_sections),
            "chat_template_section": chat_template if chat_template in facts.tokenizer_sections else None,
            "missing": "tokenizer.json" not in facts.tokenizer_sections,
        },
        "runtime_json": {
            "section": RUNTIME_JSON_SECTION,
            "decoder_engine_layout": facts.runtime_json_layout,
        },
        "self_test": None
        if facts.self_test is None
        else {
            "section": GOLDEN_SECTION,
            "cases": facts.self_test.case_count,
            "last_row_relative_tolerance": facts.self_test.relative_tolerance,
            "executed": facts.self_test.executed,
        },
    }
