"""Hold a loaded engine against the manifest, and turn the manifest's shapes into those of one run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rowpack_loaders.errors import Problem, RowpackError
from rowpack_loaders.manifest import EngineRecord, TensorRecord
from rowpack_loaders.runtimes.tensorrt.interfaces import PlanTensor

FREE = -1
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4}


def run_shape(shape: Sequence[int | str], rows: int, capacity_rows: int) -> tuple[int, ...]:
    """Return the extents of a tensor in a run of ``rows`` rows over caches of ``capacity_rows``."""
    named = {"rows": rows, "max_cache_length": capacity_rows}
    return tuple(
        extent if isinstance(extent, int) else sum(named[word] for word in extent.split("+")) for extent in shape
    )


def byte_count(tensor: TensorRecord, rows: int, capacity_rows: int) -> int:
    """Return the bytes of a tensor in a run of ``rows`` rows."""
    return DTYPE_BYTES[tensor.dtype] * math.prod(run_shape(tensor.shape, rows, capacity_rows))


def check_engine(engine: EngineRecord, found: Sequence[PlanTensor], capacity_rows: int) -> None:
    """Refuse an engine whose tensors are not the manifest's, by which buffers are sized and shared.

    Raises ``engine_io_mismatch`` with every deviation: names, element types, shapes, and row counts that its profile
    does not take.
    """
    problems = list(_deviations(engine, found, capacity_rows))
    if problems:
        raise RowpackError.from_problems(
            "engine_io_mismatch",
            f"The {engine.name} engine's inputs and outputs are not what the manifest says",
            problems,
        )


def _deviations(engine: EngineRecord, found: Sequence[PlanTensor], capacity_rows: int) -> Iterator[Problem]:
    actual = {tensor.name: tensor for tensor in found}
    described = {tensor.name: (tensor, is_input) for tensor, is_input in _described(engine)}
    for name in sorted(actual.keys() - described.keys()):
        yield _deviation(engine, name, _words(actual[name]), "no such tensor")
    for name, (tensor, is_input) in described.items():
        if name not in actual:
            yield _deviation(engine, name, "nothing", f"{tensor.dtype} {list(tensor.shape)}")
            continue
        free = any(isinstance(extent, str) for extent in tensor.shape)
        shape = tuple(FREE if isinstance(extent, str) else extent for extent in tensor.shape)
        if (actual[name].is_input, actual[name].dtype, actual[name].shape) != (is_input, tensor.dtype, shape):
            kind = "input" if is_input else "output"
            yield _deviation(engine, name, _words(actual[name]), f"{kind} {tensor.dtype} {list(shape)}")
        elif is_input and free:
            wanted = tuple(run_shape(tensor.shape, rows, capacity_rows) for rows in (engine.rows.min, engine.rows.max))
            if actual[name].profile != wanted:
                yield _deviation(engine, name, f"row counts {actual[name].profile}", f"row counts {wanted}")


def _described(engine: EngineRecord) -> Iterator[tuple[TensorRecord, bool]]:
    yield from ((tensor, True) for tensor in engine.inputs)
    yield from ((tensor, False) for tensor in engine.outputs)


def _words(tensor: PlanTensor) -> str:
    return f"{'input' if tensor.is_input else 'output'} {tensor.dtype} {list(tensor.shape)}"


def _deviation(engine: EngineRecord, name: str, found: str, expected: str) -> Problem:
    return Problem(
        "engine_io_mismatch",
        f"A tensor of the {engine.name} engine is not what the manifest says",
        where=f"{engine.section}: {name[:128]}",
        found=found[:300],
        expected=expected[:300],
        remedy="Build the bundle again",
    )
