"""The wheel, built and installed where nothing else is: what it holds and what it needs."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from source_tree import ROOT

pytestmark = pytest.mark.slow

RUNTIME_DISTRIBUTIONS = ("numpy", "onnxruntime", "tokenizers")


def run(*words: str | Path, cwd: Path) -> str:
    """Run a command away from the source tree; return what it printed, or fail with what it said."""
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, env={"PATH": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


def make_environment(folder: Path, wheel: Path) -> Path:
    """Make a virtual environment that holds the wheel and nothing else; return its folder of packages."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    interpreter = folder / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-warn-script-location")
    run(sys.executable, "-m", "pip", "--python", interpreter, *install, wheel, cwd=folder)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    return packages


@pytest.fixture(scope="module")
def runtime_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, numpy, onnxruntime and tokenizers, without their dependencies."""
    folder = tmp_path_factory.mktemp("runtime") / "environment"
    packages = make_environment(folder, wheel)
    for name in RUNTIME_DISTRIBUTIONS:
        for file in importlib.metadata.files(name) or ():
            top = file.parts[0]
            if top != ".." and not (packages / top).exists():
                (packages / top).symlink_to(Path(str(importlib.metadata.distribution(name).locate_file(top))))
    return folder


@pytest.fixture(scope="module")
def full_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and everything this one has but the project itself."""
    folder = tmp_path_factory.mktemp("full") / "environment"
    packages = make_environment(folder, wheel)
    # A path file does not read path files in turn, so an editable install beside these packages stays unseen.
    here = Path(str(importlib.metadata.distribution("numpy").locate_file("")))
    (packages / "dependencies.pth").write_text(f"{here}\n")
    return folder


@pytest.fixture(scope="module")
def demo_bundle(full_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle that the installed console script builds."""
    folder = tmp_path_factory.mktemp("demo")
    text = run(full_environment / "bin" / "rowpack", "demo", "--json", "-o", "kjv.bundle", cwd=folder)
    report = json.loads(text)
    assert report["verses"]
    return folder / "kjv.bundle"


def test_the_wheel_holds_both_packages_and_their_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    demo = {path.name for path in (ROOT / "packager" / "rowpack" / "demo_checkpoint").iterdir()}
    # The vectors are for people who write readers; they stay in the repository.
    schema = {path.name for path in (ROOT / "schema").glob("*.json")}
    assert {f"rowpack/demo_checkpoint/{name}" for name in demo} <= names
    assert {f"rowpack_loaders/schema/{name}" for name in schema} <= names
    assert {"rowpack/py.typed", "rowpack_loaders/py.typed"} <= names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"rowpack", "rowpack_loaders"}


def test_the_wheel_carries_the_licence_and_the_readme(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (licence,) = (name for name in archive.namelist() if name.endswith("/licenses/LICENSE"))
    assert b"Apache License" in archive.read(licence)
    (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    assert b"License-Expression: Apache-2.0" in archive.read(metadata)


def test_the_console_script_needs_no_dependency_to_start(runtime_environment: Path) -> None:
    script = runtime_environment / "bin" / "rowpack"
    assert "export-onnx" in run(script, "--help", cwd=runtime_environment)
    assert run(script, "--version", cwd=runtime_environment).startswith("rowpack ")


def test_loaders_run_with_numpy_and_a_runtime_only(runtime_environment: Path, demo_bundle: Path) -> None:
    script = f"""
import importlib.util, json
missing = [name for name in ("onnx", "onnx_graphsurgeon", "torch", "jsonschema", "rich", "ml_dtypes")
           if importlib.util.find_spec(name) is not None]
assert missing == [], missing
from rowpack_loaders import load, open_bundle
with open_bundle({str(demo_bundle)!r}) as bundle:
    layout = bundle.manifest["decoder_engine_layout"]
with load({str(demo_bundle)!r}) as decoder:
    text = decoder.generate("In the beginning", max_new_tokens=8).text
print(json.dumps([layout, text]))
"""
    out = run(runtime_environment / "bin" / "python", "-I", "-c", script, cwd=runtime_environment)
    layout, text = json.loads(out)
    assert layout in ("single", "split")
    assert text


def test_inspect_needs_no_dependency(runtime_environment: Path, demo_bundle: Path) -> None:
    text = run(runtime_environment / "bin" / "rowpack", "inspect", demo_bundle, cwd=runtime_environment)
    assert "content digest" in text


def test_schema_data_is_found_in_the_wheel(full_environment: Path, demo_bundle: Path) -> None:
    text = run(full_environment / "bin" / "rowpack", "validate", "--json", demo_bundle, cwd=full_environment)
    assert json.loads(text)["valid"] is True
