"""Compare the tensors of a parsed network, or of a loaded engine, with the inputs and outputs an engine must have.

The ONNX file was checked before; what the library made of it is checked again, because a parser may change a shape
or an element type without a word (a ``Slice`` that leaves one row becomes a free row count, float64 becomes float32).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rowpack.engines.backend import RowProfile
from rowpack.engines.io_contract import EngineContract, EngineTensor, deviation
from rowpack_loaders.errors import Problem, RowpackError

DTYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT32": "int32", "INT64": "int64"}
"""The library's names of element types; any other is shown as it is."""

FREE = -1
CAPACITY = "max_cache_length"

Profile = dict[str, list[list[int]]]
"""Input name → its shapes with the fewest, the usual and the most rows."""


def row_profile(contract: EngineContract, rows: RowProfile, capacity_rows: int) -> Profile:
    """Return the optimization profile: the shapes of every input that has a free dimension."""
    return {
        tensor.name: [[_extent(part, count, capacity_rows) for part in tensor.shape] for count in _counts(rows)]
        for tensor in contract.inputs
        if any(isinstance(part, str) for part in tensor.shape)
    }


def check_network(found: Mapping[str, Any], contract: EngineContract, role: str, profile: Profile) -> None:
    """Compare ``found`` (``inputs`` and ``outputs`` with name, dtype, shape) with the contract.

    A loaded engine's inputs also have a ``profile``, which must be the one asked for. Raises RowpackError
    ``engine_contract`` with every deviation.
    """
    problems: list[Problem] = []
    _compare("input", found["inputs"], contract.inputs, role, problems)
    _compare("output", found["outputs"], contract.outputs, role, problems)
    for tensor in found["inputs"]:
        if "profile" in tensor and tensor["profile"] != profile.get(tensor["name"]):
            problems.append(
                Problem(
                    "engine_contract",
                    f"the {role} engine was built for other row counts",
                    tensor["name"],
                    str(tensor["profile"]),
                    str(profile.get(tensor["name"])),
                    "The plan was changed or damaged; build again.",
                )
            )
    if problems:
        raise RowpackError.from_problems(
            "engine_contract", f"the {role} engine does not have the inputs and outputs it must have", problems
        )


def _compare(
    kind: str,
    found: Sequence[Mapping[str, Any]],
    expected: Sequence[EngineTensor],
    role: str,
    problems: list[Problem],
) -> None:
    wanted = {tensor.name: tensor for tensor in expected}
    for tensor in found:
        contract = wanted.pop(tensor["name"], None)
        actual = EngineTensor(
            tensor["name"],
            DTYPES.get(tensor["dtype"], str(tensor["dtype"]).lower()),
            tuple("free" if extent == FREE else extent for extent in tensor["shape"]),
            contract.role if contract else "unknown",
        )
        if contract is None or actual.dtype != contract.dtype or actual.shape != _with_free(contract.shape):
            problems.append(deviation(kind, role, actual, contract))
    problems.extend(deviation(kind, role, None, missing) for missing in wanted.values())


def _with_free(shape: Sequence[int | str]) -> tuple[int | str, ...]:
    return tuple("free" if isinstance(extent, str) else extent for extent in shape)


def _counts(rows: RowProfile) -> tuple[int, int, int]:
    return rows.min, rows.opt, rows.max


def _extent(extent: int | str, rows: int, capacity_rows: int) -> int:
    if isinstance(extent, int):
        return extent
    return sum({"rows": rows, CAPACITY: capacity_rows}[word] for word in extent.split("+"))
