"""Rules about the state table: each state enters and leaves every engine, with one geometry in all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rowpack_loaders.errors import Problem
from rowpack_loaders.manifest import MANIFEST_SECTION, EngineRecord, StateRecord, TensorRecord
from rowpack_loaders.validation.subject import Finding, Rule, Subject

APPENDED_ROLES = ("key", "value")


def state_tensors_are_unique(subject: Subject) -> Iterator[Finding]:
    """No two states share an input or an output."""
    states = subject.states
    for kind, names in (("input", [s.input for s in states]), ("output", [s.output for s in states])):
        for name, count in Counter(names).items():
            if count > 1:
                yield Problem(
                    "state_duplicate",
                    f"Two states name the same {kind}",
                    where=f"{MANIFEST_SECTION}#/states",
                    found=f"{name[:128]!r} {count} times",
                    expected="each once",
                )


def states_are_engine_tensors(subject: Subject) -> Iterator[Finding]:
    """Each state is an input and an output of every engine, in the role state."""
    for use, engine in subject.engines.items():
        inputs, outputs = _state_tensors(engine)
        for index, state in enumerate(subject.states):
            for kind, name, tensors in (("input", state.input, inputs), ("output", state.output, outputs)):
                if name not in tensors:
                    yield Problem(
                        "state_tensor_missing",
                        f"A state's {kind} is not among the {kind}s of the {use} engine in the role state",
                        where=f"{MANIFEST_SECTION}#/states/{index}/{kind}",
                        found=repr(name[:128]),
                        expected=", ".join(tensors)[:200] or "a tensor in the role state",
                    )


def engine_states_are_listed(subject: Subject) -> Iterator[Finding]:
    """Each engine tensor in the role state belongs to a state of the table."""
    states = subject.states
    listed = ({state.input for state in states}, {state.output for state in states})
    for use, engine in subject.engines.items():
        for kind, tensors, names in zip(("inputs", "outputs"), (engine.inputs, engine.outputs), listed, strict=True):
            for index, tensor in enumerate(tensors):
                if tensor.role == "state" and tensor.name not in names:
                    yield Problem(
                        "state_unlisted",
                        "An engine carries a state that the state table does not list",
                        where=f"{MANIFEST_SECTION}#/engines/{use}/{kind}/{index}",
                        found=repr(tensor.name[:128]),
                        expected="an entry of /states",
                    )


def state_dtypes_agree(subject: Subject) -> Iterator[Finding]:
    """A state has one dtype in the table and in every engine."""
    for state, index, use, kind, tensor in _state_uses(subject):
        if tensor.dtype != state.dtype:
            yield Problem(
                "state_dtype_mismatch",
                f"A state has another dtype as {kind} of the {use} engine",
                where=f"{MANIFEST_SECTION}#/states/{index}/dtype",
                found=f"{tensor.name[:128]}: {tensor.dtype}",
                expected=state.dtype,
            )


def state_shapes_agree(subject: Subject) -> Iterator[Finding]:
    """A state has one geometry in the table and in every engine.

    A replaced state is as large going in as coming out. An appended one goes in with all its rows or with the
    filled ones, and comes out with the new rows alone.
    """
    for state, index, use, kind, tensor in _state_uses(subject):
        if not state.shape or not tensor.shape:
            agrees, wanted = False, "at least one dimension"
        elif state.update == "replace":
            agrees, wanted = tensor.shape == state.shape, str(list(state.shape))
        else:
            rows: tuple[int | str, ...] = (state.shape[0], "cache_rows")
            if kind == "output":
                rows = (1,) if use == "decode" else ("rows",)
            agrees = tensor.shape[0] in rows and tensor.shape[1:] == state.shape[1:]
            wanted = " or ".join(str([row, *state.shape[1:]]) for row in rows)
        if not agrees:
            yield Problem(
                "state_shape_mismatch",
                f"A state has another shape as {kind} of the {use} engine",
                where=f"{MANIFEST_SECTION}#/states/{index}/shape",
                found=f"{tensor.name[:128]}: {list(tensor.shape)}",
                expected=wanted,
            )


def appended_states_hold_the_cache(subject: Subject) -> Iterator[Finding]:
    """An appended state has one row for each token a sequence may have."""
    most = subject.limits.max_cache_length
    for index, state in enumerate(subject.states):
        if state.update == "append_rows" and state.shape[:1] != (most,):
            yield Problem(
                "state_rows_mismatch",
                "A cache does not have max_cache_length rows",
                where=f"{MANIFEST_SECTION}#/states/{index}/shape",
                found=str(list(state.shape)),
                expected=f"{most} rows",
            )


def updates_fit_roles(subject: Subject) -> Iterator[Finding]:
    """Keys and values are appended and can be rewound; every other state is replaced and cannot."""
    for index, state in enumerate(subject.states):
        appended = state.role in APPENDED_ROLES
        if (state.update == "append_rows", state.rewindable) != (appended, appended):
            yield Problem(
                "state_update_invalid",
                "A state is not updated as its role demands",
                where=f"{MANIFEST_SECTION}#/states/{index}",
                found=f"{state.role}: {state.update}, {'' if state.rewindable else 'not '}rewindable",
                expected="append_rows, rewindable" if appended else "replace, not rewindable",
            )


def layers_have_each_state_once(subject: Subject) -> Iterator[Finding]:
    """A layer has one state of a role; time and channel mixing of a layer shift by one each."""
    for (layer, role), count in Counter((state.layer, state.role) for state in subject.states).items():
        most = 2 if role == "shift" else 1
        if count > most:
            yield Problem(
                "state_role_repeated",
                "A layer has more states of one role than any layer needs",
                where=f"{MANIFEST_SECTION}#/states",
                found=f"{role} of layer {layer} {count} times",
                expected="once" if most == 1 else "at most twice",
            )


def caches_come_in_pairs(subject: Subject) -> Iterator[Finding]:
    """A layer with keys has values, of the same number of rows and the same dtype."""
    states = subject.states
    keys, values = (
        {state.layer: (state.shape[:1], state.dtype) for state in states if state.role == role}
        for role in APPENDED_ROLES
    )
    for layer in sorted(keys.keys() | values.keys()):
        if keys.get(layer) != values.get(layer):
            yield Problem(
                "state_cache_unpaired",
                "A layer's keys and values are not two caches of one length and dtype",
                where=f"{MANIFEST_SECTION}#/states",
                found=f"layer {layer}: keys {keys.get(layer)}, values {values.get(layer)}",
                expected="a key and a value of the same rows and dtype",
            )


def _state_tensors(engine: EngineRecord) -> tuple[dict[str, TensorRecord], dict[str, TensorRecord]]:
    inputs = {tensor.name: tensor for tensor in engine.inputs if tensor.role == "state"}
    outputs = {tensor.name: tensor for tensor in engine.outputs if tensor.role == "state"}
    return inputs, outputs


def _state_uses(subject: Subject) -> Iterator[tuple[StateRecord, int, str, str, TensorRecord]]:
    """Yield each state with its index, and each engine tensor that carries it with the engine and its kind."""
    states = subject.states
    for use, engine in subject.engines.items():
        inputs, outputs = _state_tensors(engine)
        for index, state in enumerate(states):
            if state.input in inputs:
                yield state, index, use, "input", inputs[state.input]
            if state.output in outputs:
                yield state, index, use, "output", outputs[state.output]


RULES: tuple[Rule, ...] = (
    state_tensors_are_unique,
    states_are_engine_tensors,
    engine_states_are_listed,
    state_dtypes_agree,
    state_shapes_agree,
    appended_states_hold_the_cache,
    updates_fit_roles,
    layers_have_each_state_once,
    caches_come_in_pairs,
)
