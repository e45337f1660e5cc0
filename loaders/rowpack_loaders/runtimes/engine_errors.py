"""Tell that an engine is not the one that the manifest describes, or that its runtime cannot load it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest import EngineRecord, TensorRecord

_OUT_OF_MEMORY_WORDS = (
    "bad_alloc",
    "bad allocation",
    "Failed to allocate",
    "could not create a memory object",
    "out of memory",
)


class FoundTensor(NamedTuple):
    """An input or output as the runtime has it: its type in the runtime's words, sizes with None for free ones."""

    element_type: object
    shape: tuple[int | None, ...]
    text: str


def check_engine_tensors(
    engine: EngineRecord,
    kind: str,
    described: Iterable[TensorRecord],
    found: Mapping[str, FoundTensor],
    element_types: Mapping[str, object],
) -> None:
    """Refuse an engine whose inputs or outputs are not the manifest's, by which buffers are sized.

    ``element_types`` gives the runtime's words for the manifest's dtypes. Raises RowpackError ``engine_io_mismatch``.
    """
    expected = {tensor.name: tensor for tensor in described}
    if found.keys() != expected.keys():
        raise engine_mismatch(engine, f"{kind}s", ", ".join(sorted(found)), ", ".join(sorted(expected)))
    for name, tensor in expected.items():
        actual = found[name]
        matches = len(actual.shape) == len(tensor.shape) and all(
            real == wanted or real is None or not isinstance(wanted, int)
            for real, wanted in zip(actual.shape, tensor.shape, strict=True)
        )
        if actual.element_type != element_types[tensor.dtype] or not matches:
            raise engine_mismatch(engine, f"{kind} {name}", actual.text, f"{tensor.dtype} {list(tensor.shape)}")


def engine_mismatch(engine: EngineRecord, what: str, found: str, expected: str) -> RowpackError:
    """Return the error for an engine whose inputs or outputs are not the manifest's."""
    return RowpackError(
        "engine_io_mismatch",
        f"The {engine.name} engine's {what} are not what the manifest says",
        where=engine.section,
        found=found[:300],
        expected=expected[:300],
        remedy="Build the bundle again",
    )


def engine_load_failure(
    engine: EngineRecord, product: str, error: Exception, reason: str, *, expected: str, remedy: str
) -> RowpackError:
    """Return the error for an engine that ``product`` does not load: ``engine_out_of_memory`` where the library's
    ``error`` speaks of that, else ``engine_load_failed`` with what was expected. ``reason`` is its telling line."""
    if any(words in str(error) for words in _OUT_OF_MEMORY_WORDS):
        return RowpackError(
            "engine_out_of_memory",
            f"There is not enough memory for the {engine.name} engine",
            where=engine.section,
            found=reason[:400],
            expected="memory for the engine, its states and caches",
            remedy="Free memory, or load the bundle with layout single",
        )
    return RowpackError(
        "engine_load_failed",
        f"{product} cannot load the {engine.name} engine",
        where=engine.section,
        found=reason[:400],
        expected=expected,
        remedy=remedy,
    )
