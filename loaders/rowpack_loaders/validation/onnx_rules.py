"""Rules about ONNX sections: they have the inputs and outputs that the manifest declares, and no weights but ours.

An engine is read at the level of the wire format; what its nodes compute is not judged here.
"""

from __future__ import annotations

from collections.abc import Iterator

from rowpack_loaders.block_products import block_product_problems
from rowpack_loaders.errors import Problem, RowpackError
from rowpack_loaders.manifest import MANIFEST_SECTION, EngineRecord, TensorRecord
from rowpack_loaders.manifest_fields import Fields
from rowpack_loaders.onnx_interface import OnnxInterface, OnnxTensor, read_onnx_interface
from rowpack_loaders.validation.subject import Finding, Rule, Subject
from rowpack_loaders.weight_references import misplaced_problem, reference_problems

ONNX_SUFFIX = ".onnx"
ONNX_LIMIT_BYTES = 256 * 2**20
"""A graph of the largest published model without its weights has a few MB."""


def onnx_sections_are_read(subject: Subject) -> Iterator[Finding]:
    """The sections of ONNX engines are ONNX models, which can be read in one way only."""
    for use, engine in _onnx_engines(subject):
        try:
            data = subject.container.read_section(engine.section, limit_bytes=ONNX_LIMIT_BYTES)
            subject.onnx_interfaces[use] = read_onnx_interface(data, where=engine.section)
        except RowpackError as error:
            yield from error.problems


def onnx_digests_match_sections(subject: Subject) -> Iterator[Finding]:
    """An ONNX engine is the graph it came from, so both digests are one."""
    digests = {name: entry.optional_text("sha256") for name, entry in subject.manifest_fields.members("sections")}
    for use, engine in _onnx_engines(subject):
        told = subject.manifest_fields.child("engines").child(use).optional_text("onnx_sha256")
        if told is not None and told != digests.get(engine.section):
            yield Problem(
                "onnx_digest_mismatch",
                "The graph an engine came from is not the graph that its section holds",
                where=f"{MANIFEST_SECTION}#/engines/{use}/onnx_sha256",
                found=told[:80],
                expected=f"{digests.get(engine.section)}, the section's sha256",
            )


def onnx_tensors_match_manifest(subject: Subject) -> Iterator[Finding]:
    """The graph's inputs and outputs are those of the manifest, in its order, with its dtypes and shapes."""
    for use, engine, interface in _read_engines(subject):
        kinds = (("inputs", engine.inputs, interface.inputs), ("outputs", engine.outputs, interface.outputs))
        for kind, declared, found in kinds:
            yield from _compare_tensors(engine.section, f"/engines/{use}/{kind}", declared, found)


def onnx_versions_match_manifest(subject: Subject) -> Iterator[Finding]:
    """The graph has the operator set and the IR version that the manifest names."""
    for use, engine, interface in _read_engines(subject):
        record = subject.manifest_fields.child("engines").child(use)
        for key, found in (("opset", interface.opsets.get("", 0)), ("ir_version", interface.ir_version)):
            told = record.optional_integer(key)
            if told is not None and told != found:
                yield Problem(
                    "onnx_version_mismatch",
                    "An ONNX section follows another version than the manifest says",
                    where=f"{MANIFEST_SECTION}#/engines/{use}/{key}",
                    found=str(told),
                    expected=f"{found}, as in {engine.section}",
                )


def onnx_domains_are_announced(subject: Subject) -> Iterator[Finding]:
    """A graph with operators beyond the standard ones says so, or a loader could not tell that it cannot run it."""
    for use, engine, interface in _read_engines(subject):
        requires = _requirements(subject.manifest_fields.child("engines").child(use))
        beyond = interface.opsets.keys() - {""} - interface.function_domains
        if beyond and not requires:
            yield Problem(
                "onnx_domain_unannounced",
                "An engine uses operators beyond the standard ones and the manifest does not say so",
                where=f"{MANIFEST_SECTION}#/engines/{use}/requires",
                found=f"[], but {engine.section} imports {', '.join(sorted(beyond))}"[:200],
                expected="what a runtime must offer for them",
            )


def onnx_operators_match_requirements(subject: Subject) -> Iterator[Finding]:
    """What the manifest says a runtime must offer is what the graph uses: no operator more, none less."""
    for use, engine, interface in _read_engines(subject):
        requires = _requirements(subject.manifest_fields.child("engines").child(use))
        if requires and set(requires) != set(interface.custom_operators):
            yield Problem(
                "onnx_requirements_mismatch",
                f"The operators that the {use} engine requires are not those that its graph uses",
                where=f"{MANIFEST_SECTION}#/engines/{use}/requires",
                found=", ".join(requires)[:400],
                expected=f"{', '.join(interface.custom_operators) or 'none'}, as in {engine.section}"[:400],
            )


def block_products_are_sound(subject: Subject) -> Iterator[Finding]:
    """Products with weights in blocks state their weights' sizes: a runtime packs as many bytes as they say."""
    for _, engine, _ in _read_engines(subject):
        data = subject.container.read_section(engine.section, limit_bytes=ONNX_LIMIT_BYTES)
        yield from block_product_problems(data, where=engine.section)


def initializers_are_no_inputs(subject: Subject) -> Iterator[Finding]:
    """No input has the name of a weight or constant: which of the two counts would be the runtime's choice."""
    for use, engine, interface in _read_engines(subject):
        for name in sorted({tensor.name for tensor in interface.inputs} & set(interface.initializer_names)):
            yield Problem(
                "onnx_initializer_shadowed",
                f"An input of the {use} engine has the name of one of its constants",
                where=f"{engine.section}: {name[:128]}",
                found="an input and an initializer",
                expected="different names",
            )


def weight_references_are_inside(subject: Subject) -> Iterator[Finding]:
    """Every external reference is one tensor of the weight section, and no tensor elsewhere has any."""
    section = _weights_section(subject)
    if section is not None and subject.weight_tensors is None:
        return  # the weights layer has told why they cannot be read
    for _, engine, interface in _read_engines(subject):
        tensors = subject.weight_tensors or {}
        yield from reference_problems(interface.weights, tensors, weights_section=section, where=engine.section)
        if interface.misplaced:
            yield misplaced_problem(interface.misplaced, engine.section)


def every_weight_is_used(subject: Subject) -> Iterator[Finding]:
    """Each tensor of the weight section is a weight of some engine; others would be bytes nobody reaches."""
    engines = subject.engines
    if subject.weight_tensors is None or subject.onnx_interfaces.keys() != engines.keys():
        return
    used = {weight.name for interface in subject.onnx_interfaces.values() for weight in interface.weights}
    for name in subject.weight_tensors:
        if name not in used:
            yield Problem(
                "weight_unreferenced",
                "The weight section holds a tensor that no engine uses",
                where=f"{_weights_section(subject)}: {name[:128]}",
                found=f"{subject.weight_tensors[name].byte_count} bytes",
                expected="weights of the engines only",
            )


def _onnx_engines(subject: Subject) -> Iterator[tuple[str, EngineRecord]]:
    for use, engine in subject.engines.items():
        if engine.section.endswith(ONNX_SUFFIX) and subject.section(engine.section) is not None:
            yield use, engine


def _read_engines(subject: Subject) -> Iterator[tuple[str, EngineRecord, OnnxInterface]]:
    for use, engine in _onnx_engines(subject):
        if use in subject.onnx_interfaces:
            yield use, engine, subject.onnx_interfaces[use]


def _weights_section(subject: Subject) -> str | None:
    weights = subject.manifest_fields.optional_child("weights")
    return None if weights is None else weights.text("section")


def _requirements(engine: Fields) -> tuple[str, ...]:
    return () if engine.raw.get("requires") is None else engine.texts("requires")


def _compare_tensors(
    section: str, pointer: str, declared: tuple[TensorRecord, ...], found: tuple[OnnxTensor, ...]
) -> Iterator[Finding]:
    if [tensor.name for tensor in declared] != [tensor.name for tensor in found]:
        yield Problem(
            "onnx_tensor_mismatch",
            f"{section} has other tensors than the manifest declares, or in another order",
            where=f"{MANIFEST_SECTION}#{pointer}",
            found=", ".join(tensor.name for tensor in declared)[:400],
            expected=f"{', '.join(tensor.name for tensor in found)}, as in the graph"[:400],
        )
        return
    for index, (told, real) in enumerate(zip(declared, found, strict=True)):
        if (told.dtype, told.shape) != (real.dtype, real.shape):
            shape = "no shape" if real.shape is None else str(list(real.shape))
            yield Problem(
                "onnx_tensor_mismatch",
                f"A tensor of {section} has another dtype or shape than the manifest declares",
                where=f"{MANIFEST_SECTION}#{pointer}/{index}",
                found=f"{told.name[:128]}: {told.dtype} {list(told.shape)}"[:300],
                expected=f"{real.dtype} {shape}, as in the graph"[:300],
            )


RULES: tuple[Rule, ...] = (
    onnx_sections_are_read,
    onnx_digests_match_sections,
    onnx_tensors_match_manifest,
    onnx_versions_match_manifest,
    onnx_domains_are_announced,
    onnx_operators_match_requirements,
    block_products_are_sound,
    initializers_are_no_inputs,
    weight_references_are_inside,
    every_weight_is_used,
)
