"""What no file of the project may hold."""

from __future__ import annotations

import re

import pytest
from source_tree import ROOT, python_files, relative, text_files

MOST_LINES = 450

# Written in pieces, so that this file passes its own test.
FORBIDDEN = {
    "a path of somebody's machine": r"(?<![\w.])/(?:work|farm|root|home)/[a-z.]",
    "a package index's host": r"py" r"pi\.org|files\.python" r"hosted|registry\.npm" r"js|deb\.debian",
    "an unfinished place": r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b|raise Not" r"ImplementedError\b",
    "a word about how the project is managed": r"\b[Ii]s" r"sues?\b|^(?!.*\bimport\b).*\bhel" r"pers?\b(?!\.)",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = []
    for path, text in text_files():
        if path == ROOT / "LICENSE" or path.suffix == ".json":
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()[:100]}")
    assert found == []


def test_python_files_are_short() -> None:
    lengths = {relative(path): len(path.read_text("utf-8").splitlines()) for path in python_files()}
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_python_file_names_are_not_vague() -> None:
    vague = re.compile(r"(?:utils?|misc|common|stuff|tmp|temp|old|new)\d*\.py")
    assert [relative(path) for path in python_files() if vague.fullmatch(path.name)] == []
