"""What does not run here ends a measurement with a reason, never with a traceback."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import compare_versions
import pytest
from artifacts import ArtifactStore, Environments
from contender_process import ContenderError, ContenderProcess
from contenders import LoadRequest
from contenders.catalogue import Artifact
from measured_machine import cores
from measured_process import CommandError, last_words, run_measured

REQUEST = LoadRequest(Path("nothing"), "float32", 1, 64)


def test_a_program_that_is_not_there_is_a_reason() -> None:
    with pytest.raises(CommandError, match="no-such-python cannot be started: No such file"):
        run_measured(["no-such-python", "-c", "pass"])
    with pytest.raises(CommandError, match="no-such-python cannot be started"):
        ContenderProcess("no-such-python", "hugging_face", REQUEST)


def test_a_runtime_that_is_not_installed_is_a_reason() -> None:
    with pytest.raises(ContenderError, match="No module named"):
        ContenderProcess(sys.executable, "no_such_contender", REQUEST)


def test_a_contender_that_dies_between_two_questions_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "quitter.py").write_text(
        "import os, sys\n"
        "def import_runtime(): pass\n"
        "def versions(): return {}\n"
        "def load(request): sys.stdin.close(); return None\n"
    )
    (tmp_path / "sitecustomize.py").write_text(f"import contenders; contenders.__path__.append({str(tmp_path)!r})\n")
    with ContenderProcess(sys.executable, "quitter", REQUEST, import_path=str(tmp_path)) as process:
        for _ in range(2):
            with pytest.raises(ContenderError):
                process.ask(do="memory")


def test_the_last_words_are_those_that_name_the_error() -> None:
    assert last_words("a\nImportError: tokenizers is too new.\nTry: pip install something\n") == (
        "ImportError: tokenizers is too new."
    )
    assert last_words("refused [capacity_unknown]\n  remedy\n") == "refused [capacity_unknown]"
    assert last_words("a\nb\n\n") == "b"
    assert last_words("") == ""


def test_the_peers_programs_import_from_their_own_folders(tmp_path: Path) -> None:
    (tmp_path / "shape.json").write_text('{"model_type": "qwen3_5"}')
    (tmp_path / "onnxruntime_genai" / "models").mkdir(parents=True)
    (tmp_path / "onnxruntime_genai" / "models" / "builder.py").write_text(
        "import sys, pathlib; pathlib.Path(sys.argv[sys.argv.index('-o') + 1]).mkdir()"
    )
    (tmp_path / "shape" / "nested").mkdir(parents=True)
    for path, outcome in ((str(tmp_path), True), ("", False)):
        store = ArtifactStore(
            str(tmp_path / "shape.json"), tmp_path, Environments(sys.executable, None, peers_path=path), 64
        )
        if outcome:
            assert store.prepare(Artifact("genai", ("fp32",))).is_dir()
            store.remove(Artifact("genai", ("fp32",)))
        else:
            with pytest.raises(CommandError, match="onnxruntime_genai"):
                store.prepare(Artifact("genai", ("fp32",)))


def test_a_tree_of_another_version_finds_the_packages_it_needs_but_not_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "rowpack").mkdir(parents=True)
    (tmp_path / "packages").mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "here"), str(tmp_path / "packages")]))
    assert compare_versions.other_import_paths() == [tmp_path / "packages"]


def test_cores_that_may_not_be_used_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert cores() == "2 of 16 cores"
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert cores() == "2 cores"
