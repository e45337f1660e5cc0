"""Every command ends with a code on every broken file, never with a fault of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from vector_files import VECTORS, materialised, stored, vector_names

from rowpack.cli import main

GOOD = str(VECTORS / "good" / "tiny-split.bundle")
COMMANDS = {
    "inspect": ["inspect", "{}"],
    "inspect --json": ["inspect", "--json", "{}"],
    "inspect --catalog-entry": ["inspect", "--catalog-entry", "{}"],
    "check": ["check", "--here", "{}"],
    "digest": ["digest", "{}"],
    "diff": ["diff", "{}", GOOD],
    "migrate": ["migrate", "{}", "-o", "{}.migrated"],
    "selftest": ["selftest", "{}"],
    "run": ["run", "{}", "--prompt-ids", "1,2", "--max-new-tokens", "2"],
    "run text": ["run", "{}", "--prompt", "word1", "--max-new-tokens", "2"],
}
FILES = [name for name in vector_names() if stored(name, "recipe.json")["kind"] == "file"]


def check(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Run every command on one vector."""
    with materialised(name, folder, monkeypatch) as again:
        for command, words in COMMANDS.items():
            exit_code = main([word.format(again()) for word in words])
            printed = capsys.readouterr()
            assert exit_code in (0, 1), f"{command}: {printed.err}"
            assert "unexpected_error" not in printed.out + printed.err, f"{command}: {printed}"


@pytest.mark.parametrize("name", FILES[::29])
def test_commands_end_with_a_code(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check(name, tmp_path, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_commands_end_with_a_code_on_every_vector(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check(name, tmp_path, monkeypatch, capsys)
