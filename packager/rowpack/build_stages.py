"""The order of a build: read, export, change, decide, write, verify, publish.

Each stage's insides live in their own room; here is only what follows what, and what is handed on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

from rowpack.build_report import BuildReport, HostMemoryUse
from rowpack.bundle.manifest import (
    RUNTIME_JSON_SECTION,
    ManifestFacts,
    SelfTestFacts,
    build_manifest,
)
from rowpack.bundle.provenance import slsa_provenance, source_date
from rowpack.bundle.writer import BundleWriter
from rowpack.checkpoint import Checkpoint, open_checkpoint
from rowpack.engine_stage import EngineGraphs, add_engines, counted, engine_graphs, engine_orders, scratch_file
from rowpack.engines import find_backend
from rowpack.engines.backend import Backend, BuiltEngine, EngineBuilder, FileRange
from rowpack.families.declaration import RuntimeFacts
from rowpack.gate import LayoutDecision
from rowpack.input_digests import InputDigests, input_record
from rowpack.layout_stage import (
    build_memory_need,
    check_promised_layout,
    check_target_gpu,
    decide,
    decide_as_built,
    longest_decision,
    memory_warning,
)
from rowpack.memory_sampler import MemorySampler
from rowpack.memory_stage import announce_needs
from rowpack.model_preparation import BuildRequest, PreparedModel, prepare_model
from rowpack.progress import Progress
from rowpack.quantization import stored_embedding, stored_head
from rowpack.reference_model import ReferenceModel, reference_model
from rowpack.weights import WEIGHTS_SECTION, stream_weights
from rowpack_loaders.compatibility.memory_need import memory_need
from rowpack_loaders.digests import canonical_json
from rowpack_loaders.golden import GOLDEN_SECTION, GoldenVectors, encode_golden
from rowpack_loaders.host_memory import available_host_memory
from rowpack_loaders.version import __version__

__all__ = ["BuildReport", "BuildRequest", "build", "export_onnx"]

GENERATION_CONFIG = "generation_config.json"

_UNKNOWN_DIGEST = "0" * 64
_SECTION_ENTRY_BYTES = 512
"""More than one section's entry in the manifest can take; the reserve is counted with it."""

Piece = TypeVar("Piece", bytes, memoryview, "bytes | memoryview")


def build(request: BuildRequest, progress: Progress | None = None) -> BuildReport:
    """Build one bundle; it appears at ``request.output`` whole and verified, or not at all.

    Raises RowpackError for everything the request, the checkpoint or the machine can do wrong.
    """
    progress = progress or Progress()
    backend = find_backend(request.backend)
    backend.check_precision(request.precision, request.quantization)
    source_date()  # refused now rather than after hours, if it is wrong
    builder = backend.open_builder(request.engine_options, request.quantization)
    with progress.stage("checkpoint", str(request.checkpoint)):
        checkpoint = open_checkpoint(request.checkpoint, allow_missing_tokenizer=request.allow_missing_tokenizer)
    with checkpoint:
        prepared = prepare_model(checkpoint, request)
        for problem in (*checkpoint.warnings, *prepared.model.warnings):
            progress.warning(problem)
        check_target_gpu(request, backend, builder.compute_capabilities)
        # Opened before the long stages, so that an output that cannot be written is reported at once.
        with (
            BundleWriter(
                request.output,
                family=prepared.model.family,
                backend=backend.name,
                manifest_reserve_bytes=_manifest_reserve(request, checkpoint, prepared, backend),
            ) as writer,
            InputDigests(checkpoint.input_files) as digests,
        ):
            return _build_into(writer, request, checkpoint, prepared, backend, builder, digests, progress)


def export_onnx(request: BuildRequest, output_folder: Path, progress: Progress | None = None) -> list[Path]:
    """Write exported, decode and prefill graphs and the weights they share into a new or empty folder.

    Every precision can be written, whatever runs here. Returns the paths; existing files are replaced whole.
    """
    from rowpack.graph.model import serialize
    from rowpack.onnx_folder import write_files

    progress = progress or Progress()
    backend = find_backend(request.backend)
    with progress.stage("checkpoint", str(request.checkpoint)):
        checkpoint = open_checkpoint(request.checkpoint, allow_missing_tokenizer=True)
    with checkpoint:
        prepared = prepare_model(checkpoint, request)
        engines = _graphs(prepared, request, backend, split=True, progress=progress)
        graphs = {
            "exported.onnx": engines.exported,
            **{f"{role}.onnx": graph for role, graph in engines.by_role.items()},
        }
        with progress.stage("weights", total_bytes=prepared.plan.section_bytes) as stage:
            return write_files(
                output_folder,
                {
                    WEIGHTS_SECTION: counted(stream_weights(prepared.plan, checkpoint), stage),
                    **{name: [serialize(graph)] for name, graph in graphs.items()},
                },
            )


def _build_into(
    writer: BundleWriter,
    request: BuildRequest,
    checkpoint: Checkpoint,
    prepared: PreparedModel,
    backend: Backend,
    builder: EngineBuilder,
    digests: InputDigests,
    progress: Progress,
) -> BuildReport:
    """Write every section, verify on the unpublished file, and publish."""
    may_split = request.decoder_engine_layout != "single" and backend.split_veto(request.quantization) is None
    graphs = _graphs(prepared, request, backend, split=may_split, progress=progress)
    decision = decide(request, prepared, backend, graphs)
    if decision.layout == "single":
        graphs = graphs.without_prefill()
    need = build_memory_need(request, prepared, backend, decision, graphs)
    available_bytes = available_host_memory()
    announce_needs(request, checkpoint, prepared, backend, decision, need, available_bytes, writer, progress)
    form = backend.graph_form(prepared.max_cache_length, prepared.precision)
    orders = engine_orders(prepared, graphs, request.prefill_rows, form)
    # Loaders that predate the manifest are told of a prefill engine only where there is one.
    told = request if decision.layout == "split" else replace(request, runtime_json_layout="single")
    _add_small_sections(writer, told, checkpoint, prepared)
    with ExitStack() as scratch, MemorySampler() as sampler:
        weights = _weight_pieces(prepared, checkpoint, progress)
        if backend.weights_in_bundle:
            engines = add_engines(writer, builder, orders, None, request.plan_encoding, progress)
            weights_range = _add_weights(writer, prepared, weights)
        else:
            kept = scratch_file(request.output, weights, prepared.plan.section_bytes)
            weights_range = scratch.enter_context(kept)
            engines = add_engines(writer, builder, orders, weights_range, request.plan_encoding, progress)
            decision = decide_as_built(decision, engines)
            if decision.layout == "single" and len(engines) > 1:
                check_promised_layout(told.runtime_json_layout)
                writer.drop_section(engines.pop().section)
        with progress.stage("inputs", "waiting for the digests of the checkpoint's files"):
            inputs = digests.records()
        facts = _manifest_facts(told, checkpoint, prepared, decision, backend, engines, inputs)
        worst_error: dict[str, float] = {}
        if request.verify:
            with reference_model(
                prepared, graphs.exported, weights_range, checkpoint, request.output, progress
            ) as reference:
                facts, worst_error = _verify(writer, facts, reference, weights_range, progress)
    manifest = build_manifest(facts)
    memory = memory_need(manifest)
    tight = memory_warning(decision, memory)
    if tight is not None and all(warning.code != tight.code for warning in progress.warnings):
        progress.warning(tight)
    with progress.stage("publish", str(request.output)):
        finished = writer.finish(manifest, _provenance(request, backend, engines, inputs))
    return BuildReport(
        path=finished.path,
        file_bytes=finished.file_size,
        decoder_engine_layout=decision.layout,
        layout_decision=dict(decision.as_json()),
        content_digest=finished.content_digest,
        file_digest=finished.file_digest,
        worst_relative_error=worst_error,
        engine_builds={
            engine.role: engine.measurement.as_json() for engine in engines if engine.measurement is not None
        },
        executed=None if facts.self_test is None else facts.self_test.executed,
        memory=memory,
        host_memory=HostMemoryUse(need, available_bytes, sampler.peak_anonymous_bytes),
        stages=tuple(progress.finished_stages),
        warnings=tuple(progress.warnings),
    )


def _graphs(
    prepared: PreparedModel, request: BuildRequest, backend: Backend, *, split: bool, progress: Progress
) -> EngineGraphs:
    """Return the exported graph and the engines' graphs."""
    with progress.stage("export", f"{prepared.model.family}, {len(prepared.plan.tensors)} tensors"):
        from rowpack.export import export_graph

        exported = export_graph(prepared.model, prepared.plan, prepared.precision)
    with progress.stage("surgery", "decode and prefill" if split else "decode"):
        fused = backend.fused_operators(request.mixer_lowering, exported)
        form = replace(backend.graph_form(prepared.max_cache_length, prepared.precision), fused=fused)
        return engine_graphs(exported, request.prefill_rows, form, split=split)


def _weight_pieces(prepared: PreparedModel, checkpoint: Checkpoint, progress: Progress) -> Iterator[bytes | memoryview]:
    """Yield the weight section, as a stage that begins with the first piece."""
    with progress.stage("weights", prepared.precision, prepared.plan.section_bytes) as stage:
        yield from counted(stream_weights(prepared.plan, checkpoint), stage)


def _add_weights(writer: BundleWriter, prepared: PreparedModel, pieces: Iterator[bytes | memoryview]) -> FileRange:
    """Write the weight section; return where it lies."""
    place = writer.add_section(
        WEIGHTS_SECTION, pieces, media_type="application/x-safetensors", length_bytes=prepared.plan.section_bytes
    )
    return FileRange(writer.temporary_path, place.offset_bytes, place.length_bytes)


def _add_small_sections(
    writer: BundleWriter, request: BuildRequest, checkpoint: Checkpoint, prepared: PreparedModel
) -> None:
    """Write runtime.json and the tokenizer's files, verbatim."""
    facts = RuntimeFacts(
        bos_token_id=prepared.tokens.first("bos"),
        eos_token_id=prepared.tokens.first("eos"),
        pad_token_id=prepared.tokens.first("pad"),
        # Loaders of 2026 know two words; a bfloat16 engine has float32 inputs and outputs but for its caches.
        precision="fp16" if request.precision == "fp16" else "fp32",
        max_cache_length=prepared.max_cache_length,
        decoder_engine_layout=request.runtime_json_layout,
    )
    runtime_json = prepared.family.runtime_json(prepared.model, facts)
    text = json.dumps(runtime_json, ensure_ascii=False).encode("utf-8")
    writer.add_section(RUNTIME_JSON_SECTION, text, media_type="application/json")
    for name, path in sorted(checkpoint.tokenizer_files.items()):
        kind = "application/json" if name.endswith(".json") else "text/plain"
        writer.add_section(name, path.read_bytes(), media_type=kind, required=name == "tokenizer.json")


def _verify(
    writer: BundleWriter,
    facts: ManifestFacts,
    reference: ReferenceModel,
    weights_range: FileRange,
    progress: Progress,
) -> tuple[ManifestFacts, dict[str, float]]:
    """Run the engines, or the graphs they were compiled from, on the unpublished file; add the golden vectors."""
    from rowpack.verification import tolerance, verify_engines
    from rowpack.verification.resident_pages import mapped_section

    with (
        progress.stage("verify", "token loop and chunks against the exported graph") as stage,
        mapped_section(weights_range.path, weights_range.offset_bytes, weights_range.length_bytes) as weights,
        reference.mapped_weights(weights_range, weights) as reference_weights,
    ):
        result = verify_engines(
            build_manifest(facts),
            {engine.role: engine.onnx for engine in facts.engines},
            reference.graph,
            weights,
            lambda kind: stage.describe(f"prompt {kind!r}"),
            quantization=facts.quantization,
            reference_weights=reference_weights,
        )
    vectors = GoldenVectors("rowpack exported graph", __version__, result.cases)
    writer.add_section(
        GOLDEN_SECTION, encode_golden(vectors), media_type="application/msgpack", encoding="zstd", required=False
    )
    self_test = SelfTestFacts(len(result.cases), tolerance(facts.precision, facts.quantization), result.executed)
    return replace(facts, self_test=self_test), dict(result.worst_error)


def _manifest_facts(
    request: BuildRequest,
    checkpoint: Checkpoint,
    prepared: PreparedModel,
    decision: LayoutDecision,
    backend: Backend,
    engines: Sequence[BuiltEngine],
    inputs: Sequence[Mapping[str, object]],
) -> ManifestFacts:
    return ManifestFacts(
        model_id=request.model_id or request.checkpoint.absolute().name,
        revision=request.revision,
        precision=request.precision,
        quantization=request.quantization,
        head_quantization=stored_head(request.quantization, request.head_quantization),
        embedding_quantization=stored_embedding(request.embedding_quantization),
        model=prepared.model,
        inputs=inputs,
        decision=decision,
        backend=backend.name,
        engines=engines,
        plan=prepared.plan,
        max_cache_length=prepared.max_cache_length,
        prefill_rows=request.prefill_rows,
        tokens=prepared.tokens,
        tokenizer_sections=[name for name in checkpoint.tokenizer_files if name != GENERATION_CONFIG],
        runtime_json_layout=request.runtime_json_layout,
        weights_in_bundle=backend.weights_in_bundle,
        self_test=None,
    )


def _manifest_reserve(
    request: BuildRequest,
    checkpoint: Checkpoint,
    prepared: PreparedModel,
    backend: Backend,
) -> int:
    """Return an upper bound of the manifest's length, from a draft without engines and section table."""
    unhashed = [input_record(file, _UNKNOWN_DIGEST) for file in checkpoint.input_files]
    facts = _manifest_facts(request, checkpoint, prepared, longest_decision(prepared), backend, [], unhashed)
    draft = build_manifest(facts)
    # Each engine repeats every state as an input and an output; a state's own entry is longer than both together.
    states = len(canonical_json(draft["states"]))
    sections = len(checkpoint.tokenizer_files) + 8
    return len(canonical_json(draft)) + 2 * states + (sections + 16) * _SECTION_ENTRY_BYTES


def _provenance(
    request: BuildRequest,
    backend: Backend,
    engines: Sequence[BuiltEngine],
    inputs: Sequence[Mapping[str, object]],
) -> dict[str, object]:
    """Return what the trailer says of the build; where files lay does not belong to it."""
    parameters = {
        field.name: getattr(request, field.name)
        for field in fields(request)
        if field.name not in ("checkpoint", "output", "engine_options", "ignore_host_memory")
    }
    parameters |= {"lowering": request.mixer_lowering, **request.engine_options.as_json()}
    return slsa_provenance(parameters, inputs, {"rowpack": __version__, backend.name: engines[0].backend_version})
