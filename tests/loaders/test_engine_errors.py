"""An engine that is not the manifest's is refused by what differs; one that cannot be loaded by why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rowpack_loaders import RowpackError
from rowpack_loaders.runtimes.engine_errors import FoundTensor, check_engine_tensors, engine_load_failure

ENGINE: Any = SimpleNamespace(name="decode", section="engine.onnx")
TYPES = {"float32": "f32", "int32": "i32"}
DESCRIBED: Any = [
    SimpleNamespace(name="token_id", dtype="int32", shape=("rows",)),
    SimpleNamespace(name="state", dtype="float32", shape=(4, 8)),
]


def found(**changes: Any) -> dict[str, FoundTensor]:
    """Return what agrees with the manifest, with ``changes``: name → type and sizes."""
    tensors = {"token_id": ("i32", (None,)), "state": ("f32", (4, 8)), **changes}
    return {name: FoundTensor(kind, sizes, f"{kind} {sizes}") for name, (kind, sizes) in tensors.items()}


@pytest.mark.parametrize("sizes", [(4, 8), (None, 8), (None, None)])
def test_tensors_that_agree_or_leave_sizes_free_are_taken(sizes: tuple[int | None, ...]) -> None:
    check_engine_tensors(ENGINE, "input", DESCRIBED, found(state=("f32", sizes)), TYPES)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": ("f32", (4, 9))}, "f32 (4, 9)"),
        ({"state": ("f32", (4,))}, "f32 (4,)"),
        ({"state": ("i32", (4, 8))}, "i32 (4, 8)"),
        ({"extra": ("f32", (1,))}, "extra, state, token_id"),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RowpackError) as caught:
        check_engine_tensors(ENGINE, "input", DESCRIBED, found(**changes), TYPES)
    assert caught.value.code == "engine_io_mismatch"
    assert caught.value.problem.found == words


def test_a_tensor_that_is_missing_is_named() -> None:
    tensors = found()
    del tensors["state"]
    with pytest.raises(RowpackError) as caught:
        check_engine_tensors(ENGINE, "output", DESCRIBED, tensors, TYPES)
    assert (caught.value.problem.found, caught.value.problem.expected) == ("token_id", "state, token_id")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("std::bad_alloc", "engine_out_of_memory"),
        ("Failed to allocate memory for requested buffer of size 9", "engine_out_of_memory"),
        ("could not create a memory object", "engine_out_of_memory"),
        ("no kernel for Abacus", "engine_load_failed"),
    ],
)
def test_why_an_engine_does_not_load(text: str, code: str) -> None:
    error = engine_load_failure(ENGINE, "A runtime", RuntimeError(text), text, expected="an abacus", remedy="Buy one")
    assert error.code == code
    assert error.problem.found == text
