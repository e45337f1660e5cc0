"""The inputs and outputs that every engine must have, and the check of a graph against them.

One contract for every backend, no batch dimension: token ids, positions and an additive mask where the model has a
cache, all states and caches in; logits of the last row, all states and the new cache rows out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rowpack.families.declaration import ModelDescription
from rowpack_loaders.errors import Problem, RowpackError

if TYPE_CHECKING:
    import onnx

DECODE = "decode"
PREFILL = "prefill"


@dataclass(frozen=True)
class EngineTensor:
    """One input or output; free dimensions are names."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    role: str

    def as_json(self) -> dict[str, object]:
        """Return the manifest's entry."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "role": self.role}


@dataclass(frozen=True)
class EngineContract:
    """What one engine takes and gives."""

    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]


def expected_contract(model: ModelDescription, role: str, cache_capacity_rows: int | None = None) -> EngineContract:
    """Return the contract of engine ``role`` for ``model``: one row for decode, ``rows`` for prefill.

    An engine with ``cache_capacity_rows`` reads that many cache rows in every call, one without the filled ones.
    """
    rows: int | str = 1 if role == DECODE else "rows"
    cache_rows: int | str = "cache_rows" if cache_capacity_rows is None else cache_capacity_rows
    cached = any(state.update == "append_rows" for state in model.states)
    inputs = [EngineTensor("token_id", "int32", (rows,), "token_id")]
    if cached:
        inputs.append(EngineTensor("position_id", "int32", (rows,), "position_id"))
        columns = _mask_columns(cache_capacity_rows, rows)
        inputs.append(EngineTensor("attention_mask", "float32", (rows, columns), "attention_mask"))
    outputs = [EngineTensor("logits", "float32", (1, model.vocab_size), "logits")]
    for state in model.states:
        if state.update == "append_rows":
            inputs.append(EngineTensor(state.input_name, state.dtype, (cache_rows, state.shape[1]), "state"))
            outputs.append(EngineTensor(state.output_name, state.dtype, (rows, state.shape[1]), "state"))
        else:
            inputs.append(EngineTensor(state.input_name, state.dtype, state.shape, "state"))
            outputs.append(EngineTensor(state.output_name, state.dtype, state.shape, "state"))
    return EngineContract(tuple(inputs), tuple(outputs))


def _mask_columns(cache_capacity_rows: int | None, rows: int | str) -> int | str:
    """Return how many columns the mask has: all cache rows that are read, and the new rows."""
    if cache_capacity_rows is None:
        return f"cache_rows+{rows}"
    return cache_capacity_rows + rows if isinstance(rows, int) else f"max_cache_length+{rows}"


def check_contract(
    graph: onnx.ModelProto, model: ModelDescription, role: str, cache_capacity_rows: int | None = None
) -> EngineContract:
    """Compare the real inputs and outputs of ``graph`` with the contract; return them in the graph's order.

    Raises RowpackError ``engine_contract`` that lists every deviation.
    """
    expected = expected_contract(model, role, cache_capacity_rows)
    problems: list[Problem] = []
    inputs = _compare("input", graph.graph.input, expected.inputs, role, problems)
    outputs = _compare("output", graph.graph.output, expected.outputs, role, problems)
    if problems:
        raise RowpackError.from_problems(
            "engine_contract", f"the {role} engine does not have the inputs and outputs it must have", problems
        )
    return EngineContract(inputs, outputs)


def check_pair(decode: EngineContract, prefill: EngineContract) -> None:
    """Check that both engines take the same states and caches: they work on the same buffers.

    Raises RowpackError ``engine_pair_mismatch`` with every state that differs.
    """
    states = {tensor.name: tensor for tensor in decode.inputs if tensor.role == "state"}
    others = {tensor.name: tensor for tensor in prefill.inputs if tensor.role == "state"}
    problems = [
        Problem(
            "engine_pair_mismatch",
            "a state does not have one geometry in both engines",
            name,
            f"{_geometry(others.get(name))} in the prefill engine",
            f"{_geometry(states.get(name))}, as in the decode engine",
            "rowpack has a fault: please report it.",
        )
        for name in sorted(states.keys() | others.keys())
        if states.get(name) != others.get(name)
    ]
    if problems:
        raise RowpackError.from_problems(
            "engine_pair_mismatch", "the two engines cannot work on the same buffers", problems
        )


def _geometry(tensor: EngineTensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"


def _compare(
    kind: str, values: Any, expected: tuple[EngineTensor, ...], role: str, problems: list[Problem]
) -> tuple[EngineTensor, ...]:
    from rowpack.graph.dtypes import dtype_name

    wanted = {tensor.name: tensor for tensor in expected}
    found: list[EngineTensor] = []
    for value in values:
        tensor_type = value.type.tensor_type
        shape = tuple(
            dimension.dim_param or (dimension.dim_value if dimension.HasField("dim_value") else "?")
            for dimension in tensor_type.shape.dim
        )
        contract = wanted.pop(value.name, None)
        actual = EngineTensor(
            value.name, dtype_name(tensor_type.elem_type), shape, contract.role if contract else "unknown"
        )
        if actual != contract:
            problems.append(deviation(kind, role, actual, contract))
        found.append(actual)
    problems.extend(deviation(kind, role, None, missing) for missing in wanted.values())
    return tuple(found)


def deviation(kind: str, role: str, found: EngineTensor | None, expected: EngineTensor | None) -> Problem:
    """Return the problem of a tensor that is missing (``found`` None), superfluous, or another than expected."""
    name = (found or expected or EngineTensor("", "", (), "")).name
    return Problem(
        "engine_contract",
        f"an {kind} of the {role} engine is not what the contract says",
        name,
        _geometry(found),
        f"no such {kind}" if expected is None else _geometry(expected),
        "The graph was changed by hand, or rowpack has a fault: please report it.",
    )
