"""The table of error codes and the codes in the source are the same set."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from source_tree import PACKAGES, ROOT, called_name, python_files, relative

CODE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")

# Functions that take a code, and the position of it among the arguments that a call writes down.
CARRIERS = {"RowpackError": 0, "Problem": 0, "from_problems": 0}


class CodeCollector(ast.NodeVisitor):
    """Collect the literal codes that calls of ``carriers`` pass, and functions that pass one on."""

    def __init__(self, carriers: dict[str, int], place: str) -> None:
        self.carriers = dict(carriers)
        self.codes: dict[str, str] = {}
        self.opaque: list[str] = []
        self._place = place
        self._functions: list[ast.FunctionDef] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()

    def visit_Call(self, node: ast.Call) -> None:
        name = called_name(node.func)
        if name in self.carriers:
            position = self.carriers[name]
            given = [word.value for word in node.keywords if word.arg == "code"]
            if not given and len(node.args) > position:
                given = [node.args[position]]
            for value in given:
                self._collect(value)
        self.generic_visit(node)

    def _collect(self, value: ast.expr) -> None:
        place = f"{self._place}:{value.lineno}"
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            self.codes[value.value] = place
        elif isinstance(value, ast.IfExp):
            self._collect(value.body)
            self._collect(value.orelse)
        elif isinstance(value, ast.Attribute) and value.attr == "code":
            pass  # taken from an error that was made elsewhere
        elif isinstance(value, ast.Name) and self._functions and self._is_passed_on(value.id):
            pass
        else:
            self.opaque.append(f"{place}: {ast.unparse(value)}")

    def _is_passed_on(self, name: str) -> bool:
        for function in self._functions:
            parameters = [parameter.arg for parameter in function.args.posonlyargs + function.args.args]
            method = bool(parameters) and parameters[0] in ("self", "cls")
            if name in parameters:
                self.carriers[function.name] = parameters.index(name) - method
                return True
            if name in [parameter.arg for parameter in function.args.kwonlyargs]:
                self.carriers[function.name] = len(parameters) + 99
                return True
        return False


def collect(sources: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return code → place for all ``sources``, and the calls whose code cannot be read from the source."""
    trees = {place: ast.parse(text) for place, text in sources.items()}
    carriers = CARRIERS
    while True:
        codes: dict[str, str] = {}
        opaque: list[str] = []
        found = dict(carriers)
        for place, tree in trees.items():
            collector = CodeCollector(carriers, place)
            collector.visit(tree)
            codes |= collector.codes
            opaque += collector.opaque
            found |= collector.carriers
        if found == carriers:
            return codes, opaque
        carriers = found


def package_sources() -> dict[str, str]:
    """Return the text of every source file of both packages but the definition of the error itself."""
    files: Iterator[Path] = python_files(*PACKAGES.values())
    definition = PACKAGES["rowpack_loaders"] / "errors.py"
    return {relative(path): path.read_text("utf-8") for path in files if path != definition}


def code_table() -> dict[str, dict[str, str]]:
    """Return ``schema/errors.json``'s codes."""
    table: dict[str, dict[str, str]] = json.loads((ROOT / "schema" / "errors.json").read_text("utf-8"))["codes"]
    return table


def test_every_code_in_the_source_is_explained() -> None:
    codes, _ = collect(package_sources())
    table = code_table()
    assert {code: place for code, place in codes.items() if code not in table} == {}


def test_every_explained_code_is_in_the_source() -> None:
    codes, _ = collect(package_sources())
    assert sorted(set(code_table()) - set(codes)) == []


def test_every_code_can_be_read_from_the_source() -> None:
    _, opaque = collect(package_sources())
    assert opaque == []


def test_the_table_is_sorted_and_complete() -> None:
    table = code_table()
    assert list(table) == sorted(table)
    for code, entry in table.items():
        assert CODE.fullmatch(code), code
        assert set(entry) == {"meaning", "remedy"}, code
        assert all(text.strip() for text in entry.values()), code


def test_the_search_sees_through_functions_that_pass_a_code_on() -> None:
    source = """
def refuse(where, code):
    raise RowpackError(code, "message")

def f():
    refuse("x", "first_code")
    raise RowpackError("second_code" if x else "third_code", "message")
    Problem(code="fourth_code", message="")
    RowpackError(TABLE[x], "message")
"""
    codes, opaque = collect({"module.py": source})
    assert sorted(codes) == ["first_code", "fourth_code", "second_code", "third_code"]
    assert opaque == ["module.py:9: TABLE[x]"]
