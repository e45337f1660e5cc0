"""Rules about engines: layout, row ranges, and the inputs and outputs every engine has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rowpack_loaders.block_products import DOMAIN, OPERATOR
from rowpack_loaders.errors import Problem
from rowpack_loaders.manifest import MANIFEST_SECTION, MAX_PREFILL_ROWS, TensorRecord
from rowpack_loaders.validation.subject import Finding, Rule, Subject

ENGINES_OF_LAYOUT = {"single": ["decode"], "split": ["decode", "prefill"]}

BLOCK_PRODUCT = f"{DOMAIN}.{OPERATOR}"

# How often each role occurs in an engine: (fewest, most, dtype); states are counted by the state rules.
INPUT_ROLES = {
    "token_id": (1, 1, "int32"),
    "position_id": (0, 1, "int32"),
    "attention_mask": (0, 1, "float32"),
}
OUTPUT_ROLES = {"logits": (1, 1, "float32")}


def layout_matches_engines(subject: Subject) -> Iterator[Finding]:
    """A single bundle has a decode engine, a split one a prefill engine too, in sections named after them."""
    layout = subject.layout
    engines = subject.engines
    wanted = ENGINES_OF_LAYOUT[layout]
    if sorted(engines) != wanted:
        yield Problem(
            "layout_engines_mismatch",
            "The engines are not those of the layout",
            where=f"{MANIFEST_SECTION}#/engines",
            found=", ".join(sorted(engines)) or "no engines",
            expected=f"{', '.join(wanted)} ({layout})",
        )
    for stem in ("engine", "prefill"):
        use = "decode" if stem == "engine" else "prefill"
        for name in subject.container.sections:
            if name.startswith(f"{stem}.") and (use not in engines or engines[use].section != name):
                yield Problem(
                    "engine_section_unused",
                    "The file has an engine section that no engine names",
                    where=f"{MANIFEST_SECTION}#/engines",
                    found=repr(name),
                    expected=f"the section of the {use} engine" if use in engines else "no such section",
                )


def engine_sections_have_their_names(subject: Subject) -> Iterator[Finding]:
    """Old loaders find the decode engine by its name; prefill engines stand beside it."""
    for use, engine in subject.engines.items():
        stem = "engine" if use == "decode" else use
        if engine.section not in (f"{stem}.onnx", f"{stem}.plan"):
            yield Problem(
                "engine_section_unexpected",
                "An engine is not in the section where loaders look for it",
                where=f"{MANIFEST_SECTION}#/engines/{use}/section",
                found=repr(engine.section[:128]),
                expected=f"{stem}.onnx or {stem}.plan",
            )


def row_ranges_fit(subject: Subject) -> Iterator[Finding]:
    """The decode engine takes one row, the prefill engine 1 to ``prefill_rows``, tuned for some number between."""
    limits = subject.limits
    for use, engine in subject.engines.items():
        rows = engine.rows
        most = 1 if use == "decode" else limits.prefill_rows
        if not (rows.min == 1 <= rows.opt <= rows.max == most <= MAX_PREFILL_ROWS):
            yield Problem(
                "engine_rows_invalid",
                "An engine's row range is not the one of its use",
                where=f"{MANIFEST_SECTION}#/engines/{use}/rows",
                found=f"min {rows.min}, opt {rows.opt}, max {rows.max}",
                expected=f"min 1, opt between, max {min(most, MAX_PREFILL_ROWS)}",
            )


def only_prefill_serves_decode(subject: Subject) -> Iterator[Finding]:
    """A prefill engine with weights in blocks, and no other engine, may say that it serves decode."""
    for use, engine in subject.engines.items():
        fields = subject.manifest_fields.child("engines").child(use)
        requires = () if fields.raw.get("requires") is None else fields.texts("requires")
        if engine.serves_decode and (use != "prefill" or BLOCK_PRODUCT not in requires):
            yield Problem(
                "engine_serves_decode_invalid",
                "An engine is said to serve decode, and is no prefill engine with weights that each session packs",
                where=f"{MANIFEST_SECTION}#/engines/{use}/serves_decode",
                found=f"{use}, requires {', '.join(requires) or 'nothing'}"[:400],
                expected=f"prefill, requires {BLOCK_PRODUCT}",
            )


def tensor_names_are_unique(subject: Subject) -> Iterator[Finding]:
    """No two inputs and no two outputs of an engine share a name."""
    for use, engine in subject.engines.items():
        for kind, tensors in (("inputs", engine.inputs), ("outputs", engine.outputs)):
            for name, count in Counter(tensor.name for tensor in tensors).items():
                if count > 1:
                    yield Problem(
                        "engine_tensor_duplicate",
                        f"An engine lists one of its {kind} more than once",
                        where=f"{MANIFEST_SECTION}#/engines/{use}/{kind}",
                        found=f"{name[:128]!r} {count} times",
                        expected="each once",
                    )


def roles_are_complete(subject: Subject) -> Iterator[Finding]:
    """Each engine has one token input and one logits output, at most one position and mask, of the right dtype."""
    for use, engine in subject.engines.items():
        yield from _check_roles(engine.inputs, INPUT_ROLES, f"{MANIFEST_SECTION}#/engines/{use}/inputs")
        yield from _check_roles(engine.outputs, OUTPUT_ROLES, f"{MANIFEST_SECTION}#/engines/{use}/outputs")


def row_inputs_have_row_shapes(subject: Subject) -> Iterator[Finding]:
    """Token, position and mask have one entry a row."""
    for use, engine in subject.engines.items():
        wanted = _rows_of(use)
        for index, tensor in enumerate(engine.inputs):
            dimensions = {"token_id": 1, "position_id": 1, "attention_mask": 2}.get(tensor.role)
            if dimensions is None:
                continue
            if len(tensor.shape) != dimensions or tensor.shape[0] != wanted:
                yield Problem(
                    "engine_shape_invalid",
                    f"The {tensor.role} of an engine does not have one entry a row",
                    where=f"{MANIFEST_SECTION}#/engines/{use}/inputs/{index}/shape",
                    found=str(list(tensor.shape)),
                    expected=f"{dimensions} dimensions, the first {wanted}",
                )


def logits_are_one_vocabulary_row(subject: Subject) -> Iterator[Finding]:
    """Logits are those of the last row, one for each token id."""
    vocab_size = subject.tokens.vocab_size
    for use, engine in subject.engines.items():
        for index, tensor in enumerate(engine.outputs):
            if tensor.role == "logits" and tensor.shape != (1, vocab_size):
                yield Problem(
                    "engine_shape_invalid",
                    "The logits of an engine are not one row of the vocabulary",
                    where=f"{MANIFEST_SECTION}#/engines/{use}/outputs/{index}/shape",
                    found=str(list(tensor.shape)),
                    expected=f"[1, {vocab_size}]",
                )


def _rows_of(use: str) -> int | str:
    return 1 if use == "decode" else "rows"


def _check_roles(
    tensors: tuple[TensorRecord, ...], wanted: dict[str, tuple[int, int, str]], where: str
) -> Iterator[Finding]:
    for role, (fewest, most, dtype) in wanted.items():
        found = [tensor for tensor in tensors if tensor.role == role]
        if not fewest <= len(found) <= most:
            yield Problem(
                "engine_role_count",
                f"An engine does not have the right number of tensors in the role {role}",
                where=where,
                found=str(len(found)),
                expected=str(fewest) if fewest == most else f"{fewest} or {most}",
            )
        for tensor in found:
            if tensor.dtype != dtype:
                yield Problem(
                    "engine_dtype_invalid",
                    f"The {role} of an engine has the wrong dtype",
                    where=where,
                    found=f"{tensor.name[:128]}: {tensor.dtype}",
                    expected=dtype,
                )


RULES: tuple[Rule, ...] = (
    layout_matches_engines,
    engine_sections_have_their_names,
    row_ranges_fit,
    only_prefill_serves_decode,
    tensor_names_are_unique,
    roles_are_complete,
    row_inputs_have_row_shapes,
    logits_are_one_vocabulary_row,
)
