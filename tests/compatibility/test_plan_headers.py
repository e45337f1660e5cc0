"""What the installed library says of a plan's first bytes; it is asked in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rowpack.cli import main
from rowpack_loaders import validate
from rowpack_loaders.compatibility.engine_needs import read_engine_needs
from rowpack_loaders.compatibility.first_mebibyte import read_first_mebibyte
from rowpack_loaders.compatibility.plan_headers import HEADER_BYTES, LibraryVerdict, ask_about_plans, ask_library
from rowpack_loaders.validation import plan_rules

MakeBundle = Callable[..., Path]

# Stands for the library: takes bytes that begin with "made-up", and has no GPU to judge more by.
FAKE_LIBRARY = """
__version__ = "1.7.1.116"
print("a library prints what it likes")

class Named:
    def __init__(self, name, value):
        self.name, self.value = name, value
    def __int__(self):
        return self.value

class EngineInvalidityDiagnostics:
    __members__ = {name: 1 << bit for bit, name in enumerate(
        ["VERSION_MISMATCH", "UNSUPPORTED_CC", "OLD_CUDA_DRIVER", "OLD_CUDA_RUNTIME", "INSUFFICIENT_GPU_MEMORY",
         "MALFORMED_ENGINE", "CUDA_ERROR"])}

class ILogger:
    def __init__(self):
        pass

class Runtime:
    engine_header_size = 64
    def __init__(self, logger):
        self.logger = logger
    def get_engine_validity(self, header):
        assert len(header) <= 64
        if header.startswith(b"made-up"):
            self.logger.log(Named("INTERNAL_ERROR", 0), "Error reading CUDA GPU properties (cudaError 35)")
            return Named("INVALID", 2), 0
        return Named("INVALID", 2), 32
"""


@pytest.fixture
def fake_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a module importable that answers as the library does on a machine without a GPU."""
    (tmp_path / "fake_tensorrt.py").write_text(FAKE_LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    return "fake_tensorrt"


def test_the_library_is_asked_in_a_process_of_its_own(fake_library: str) -> None:
    whole = ask_library((fake_library,), b"made-up plan" * 100)
    assert whole is not None
    assert (whole.version, whole.validity, whole.refusals) == ("1.7.1.116", "INVALID", ())
    assert "no verdict" in whole.in_words()
    broken = ask_library(("no_such_module_anywhere", fake_library), b"damaged")
    assert broken is not None
    assert broken.refusals == ("MALFORMED_ENGINE",)
    assert broken.in_words() == "invalid, MALFORMED_ENGINE"


def test_a_library_that_is_not_there_or_cannot_be_loaded_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask_library(("no_such_module_anywhere",), b"made-up") is None
    (tmp_path / "broken_tensorrt.py").write_text("raise ImportError('libnvinfer.so.11: cannot open')")
    (tmp_path / "crashing_tensorrt.py").write_text("import os; os.abort()")
    monkeypatch.syspath_prepend(tmp_path)
    assert ask_library(("broken_tensorrt",), b"made-up") is None
    assert ask_library(("crashing_tensorrt",), b"made-up") is None


def test_refusals_become_reasons(plan_bundle: MakeBundle) -> None:
    first = read_first_mebibyte(plan_bundle())
    asked: list[bytes] = []

    def ask(modules: Sequence[str], header: bytes) -> LibraryVerdict:
        asked.append(header)
        decode = header.startswith(b"made-up decode")
        return LibraryVerdict("1.7.1.116", "VALID" if decode else "INVALID", () if decode else ("UNSUPPORTED_CC",), ())

    answers, reasons = ask_about_plans(first, read_engine_needs(first.manifest), ask)
    assert [header[:20] for header in asked] == [b"made-up decode plan ", b"made-up prefill plan"]
    assert all(len(header) <= HEADER_BYTES for header in asked)
    assert answers[0] == "engine.plan: tensorrt_rtx 1.7.1.116 says valid"
    assert [(problem.code, problem.where) for problem in reasons] == [("plan_refused_by_library", "prefill.plan")]
    assert "--compute-capability" in str(reasons[0].remedy)


def test_the_validator_asks_as_well(
    plan_bundle: MakeBundle, fake_library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_rules, "MODULES", {"trt_rtx": (fake_library,)})
    path = plan_bundle()
    assert "plan_malformed" not in [problem.code for problem in validate(path).errors]
    data = bytearray(path.read_bytes())
    place = data.index(b"made-up prefill")
    data[place : place + 4] = b"mend"
    path.write_bytes(data)
    told = [(problem.code, problem.where) for problem in validate(path).errors]
    assert ("plan_malformed", "prefill.plan") in told


def test_the_command(plan_bundle: MakeBundle, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(plan_bundle())
    good = "sm=8.9,trt_rtx=1.7.1.116,os=linux,arch=x86_64,memory=24GiB"
    assert main(["check", path, "--target", good]) == 0
    assert capsys.readouterr().out == f"{path}: compatible\n"
    assert main(["check", path, "--target", "sm=9.0"]) == 1
    text = capsys.readouterr().out
    assert "NOT compatible" in text
    assert "needed  8.6 or 8.9 or 12.0" in text
    assert "not checked: linux or windows (say os=…)" in text
    assert main(["check", path, "--target", good.replace("8.9", "8.7"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [reason["code"] for reason in told["reasons"]] == ["target_compute_capability_mismatch"]
    assert main(["check", path, "--target", "sm=many", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "target_unusable"
    assert main(["check", path]) == 2
    capsys.readouterr()
    assert main(["check", path, "--here", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["target"]["runtimes"]["ort"]


@pytest.mark.trt_rtx
def test_the_real_library_knows_what_is_no_plan() -> None:
    verdict = ask_library(("tensorrt_rtx",), b"made-up plan" * 100)
    assert verdict is not None
    assert verdict.refusals == ("MALFORMED_ENGINE",)
