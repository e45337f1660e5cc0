"""Which way imports go: the rooms of docs/architecture.md, and what starting up may load."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_tree import PACKAGES, python_files, relative

ROOMS_THAT_BUILD = ("build_stages", "bundle", "cli", "demo", "engines", "families", "surgery", "verification")

# room of rowpack: what it may not import, as rooms of rowpack or as distributions.
FORBIDDEN = {
    "checkpoint": (
        *ROOMS_THAT_BUILD,
        "graph",
        "onnx_ops",
        "gate",
        "onnx",
        "onnx_graphsurgeon",
        "onnxruntime",
        "torch",
    ),
    "families": ("build_stages", "bundle", "cli", "demo", "engines", "surgery", "verification", "onnxruntime"),
    "graph": (*ROOMS_THAT_BUILD, "checkpoint", "onnx_ops", "onnxruntime"),
    "onnx_ops": (*ROOMS_THAT_BUILD, "checkpoint", "onnxruntime"),
    "surgery": (
        "build_stages",
        "bundle",
        "checkpoint",
        "cli",
        "demo",
        "engines",
        "families",
        "verification",
        "onnxruntime",
    ),
    "engines": ("build_stages", "bundle", "checkpoint", "cli", "demo", "families", "verification"),
    "gate": (*ROOMS_THAT_BUILD, "checkpoint", "graph", "onnx_ops", "numpy", "onnx", "onnxruntime"),
    "bundle": ("build_stages", "cli", "demo", "families", "surgery", "verification", "onnx", "onnx_graphsurgeon"),
    "verification": ("build_stages", "bundle", "cli", "demo"),
    "comparison": (*ROOMS_THAT_BUILD, "checkpoint", "graph", "onnx_ops", "onnx", "onnxruntime"),
    "synthesis": ("build_stages", "bundle", "cli", "demo", "engines", "surgery", "verification"),
    "build_stages": ("cli", "demo"),
    "progress": (*ROOMS_THAT_BUILD, "rich"),
    "demo": (),
}
LOADERS_NEVER_IMPORT = {"rowpack", "onnx", "onnx_graphsurgeon", "torch", "transformers", "rich"}


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of everything ``path`` imports, at the top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: imports are absolute"
            # `from rowpack import gate` names a module too.
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def room_of(module: str) -> str:
    """Return the room of a module of rowpack, or the distribution of any other.

    What a family declares is the contract between families and the rest, so anybody may know it.
    """
    if module.startswith("rowpack.families.declaration"):
        return "declaration"
    first, *rest = module.split(".")
    return rest[0] if first == "rowpack" and rest else first


def room_files(room: str) -> list[Path]:
    """Return the files of a room that is a folder or one module."""
    folder = PACKAGES["rowpack"] / room
    return list(python_files(folder)) if folder.is_dir() else [folder.with_suffix(".py")]


@pytest.mark.parametrize("room", FORBIDDEN)
def test_rooms_know_only_what_they_may(room: str) -> None:
    found = [
        f"{relative(path)}:{line}: imports {module}"
        for path in room_files(room)
        for line, module in imported_modules(path)
        if room_of(module) in FORBIDDEN[room]
    ]
    assert found == []


def test_loaders_stand_alone() -> None:
    found = [
        f"{relative(path)}:{line}: imports {module}"
        for path in python_files(PACKAGES["rowpack_loaders"])
        for line, module in imported_modules(path)
        if module.split(".")[0] in LOADERS_NEVER_IMPORT
    ]
    assert found == []


def test_only_the_command_line_imports_the_command_line() -> None:
    folder = PACKAGES["rowpack"]
    found = [
        f"{relative(path)}:{line}: imports {module}"
        for path in python_files(folder)
        if (folder / "cli") not in path.parents and path != folder / "__main__.py"
        for line, module in imported_modules(path)
        if module.startswith("rowpack.cli")
    ]
    assert found == []


def test_the_table_of_rooms_is_complete() -> None:
    folder = PACKAGES["rowpack"]
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert rooms - {"cli"} <= set(FORBIDDEN), "a new room says here what it may not import"


def test_no_module_hides_a_public_name() -> None:
    import rowpack
    import rowpack_loaders

    for package in (rowpack, rowpack_loaders):
        folder = PACKAGES[package.__name__]
        modules = {path.stem for path in folder.glob("*.py")}
        rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
        assert (modules | rooms).isdisjoint(package.__all__)
