"""The lock: pinned, hashed, complete, and silent about where packages come from."""

from __future__ import annotations

import re
import tomllib

import pytest
from source_tree import ROOT

LOCKS = ("run.txt", "dev.txt", "trt-rtx.txt", "openvino.txt")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def pins(lock: str) -> dict[str, str]:
    """Return name → the lines of its entry, for every pin of a lock file."""
    text = (ROOT / "requirements" / lock).read_text("utf-8")
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    found: dict[str, str] = {}
    for entry in entries:
        match = re.match(r"([a-z0-9._-]+)==\S+", entry)
        assert match is not None, f"not a pin: {entry.splitlines()[0]}"
        found[match[1]] = found.get(match[1], "") + entry
    return found


def normalised(requirement: str) -> str:
    """Return the normalised distribution name at the start of a requirement."""
    match = NAME.match(requirement)
    assert match is not None
    return re.sub(r"[-_.]+", "-", match[0]).lower()


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_hashes(lock: str) -> None:
    assert [name for name, entry in pins(lock).items() if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_names_a_place(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text("utf-8")
    assert re.findall(r"\S*(?:://|index-url|find-links)\S*", text) == []


def test_locks_hold_every_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = {normalised(requirement) for requirement in project["dependencies"]}
    developing = {normalised(requirement) for requirement in project["optional-dependencies"]["dev"]}
    assert declared <= set(pins("run.txt"))
    assert declared | developing <= set(pins("dev.txt"))


def test_both_locks_pin_the_same_versions() -> None:
    def versions(lock: str) -> dict[str, list[str]]:
        return {name: re.findall(r"==([^\s;\\]+) ?[;\\]", entry) for name, entry in pins(lock).items()}

    working = versions("dev.txt")
    assert {name: version for name, version in versions("run.txt").items() if working[name] != version} == {}
