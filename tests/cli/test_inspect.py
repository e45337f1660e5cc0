"""What ``rowpack inspect`` shows, and how little it reads and loads for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rowpack.cli import main
from rowpack_loaders import open_bundle

MakeBundle = Callable[..., Path]
WEIGHT_BYTES, PREFILL_BYTES = 300_000, 7_000

HEAVY = ("numpy", "onnx", "onnx_graphsurgeon", "onnxruntime", "jsonschema", "rich", "tokenizers", "ml_dtypes")


def inspect_text(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["inspect", str(path)]) == 0
    return capsys.readouterr().out


def inspect_json(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["inspect", str(path), "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def row(text: str, start: str) -> list[str]:
    """Return the words of the only line of ``text`` that begins with ``start``."""
    (line,) = (line for line in text.splitlines() if line.strip().startswith(start))
    return line.split()


def test_the_decision_is_told_in_words(make_bundle: MakeBundle, capsys: pytest.CaptureFixture[str]) -> None:
    text = inspect_text(make_bundle("split"), capsys)
    assert (
        "split: the weights fit; 2 × 300 kB of weights against 800 kB, which is 80 % of the 1.00 MB "
        "given by --target-memory"
    ) in text
    text = inspect_text(make_bundle("single"), capsys)
    assert "single: how much memory the device has is not known" in text
    assert "needs 2 × 300 kB of weights" in text


def test_a_reason_of_a_newer_version_is_shown_as_it_is(
    make_bundle: MakeBundle, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["layout_decision"]["reason"] = "moon_phase"

    assert "split: moon_phase;" in inspect_text(make_bundle("split", change), capsys)


def test_engines_states_limits_and_tokens_are_shown(
    make_bundle: MakeBundle, capsys: pytest.CaptureFixture[str]
) -> None:
    text = inspect_text(make_bundle("split"), capsys)
    assert row(text, "decode")[:5] == ["decode", "engine.onnx", "ort", "1.32.0", "1"]
    assert "prefill.onnx  ort 1.32.0  1 to 64, best 32  any machine" in text
    assert row(text, "key") == ["key", "1", "3", "float32", "4096", "×", "128", "append", "rows", "0"]
    assert "up to 4,096 tokens" in text
    assert "2 (config.json)" in text
    assert "none: token ids only" in text
    assert "made-up at abc123" in text


def test_what_an_engine_demands_of_a_machine_is_shown(
    make_bundle: MakeBundle, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        target = {"os": ["linux"], "arch": ["x86_64"], "cpu_features": [], "sm": [90, 100], "minimum_driver": "580"}
        manifest["engines"]["decode"]["target"] = target

    assert "linux, x86_64, sm 90/100, driver 580 or newer" in inspect_text(make_bundle("split", change), capsys)


def test_a_sequence_without_caches_has_no_bound(make_bundle: MakeBundle, capsys: pytest.CaptureFixture[str]) -> None:
    text = inspect_text(make_bundle("split", lambda manifest: manifest["states"].pop()), capsys)
    assert "of any length" in text


@pytest.mark.parametrize("layout", ["single", "split"])
def test_sizes_compare_single_with_split(
    make_bundle: MakeBundle, capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    path = make_bundle(layout)
    file_bytes = path.stat().st_size
    sizes = inspect_json(path, capsys)["sizes"]
    assert sizes["single"]["weight_bytes"] == WEIGHT_BYTES
    assert sizes["split"]["weight_bytes"] == 2 * WEIGHT_BYTES
    if layout == "split":
        assert sizes["split"]["file_bytes"] == file_bytes
        assert sizes["single"]["file_bytes"] == file_bytes - PREFILL_BYTES
    else:
        assert sizes["single"]["file_bytes"] == file_bytes
        assert sizes["split"]["file_bytes"] is None, "nobody knows how large the missing engine would be"
    assert f"{layout} (this bundle)" in inspect_text(path, capsys)


def test_json_holds_manifest_sections_and_digests(make_bundle: MakeBundle, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_bundle("split")
    report = inspect_json(path, capsys)
    with open_bundle(path) as bundle:
        assert report["manifest"] == bundle.manifest
        assert report["content_digest"] == bundle.manifest["content_digest"]
        trailer = bundle.trailer()
        assert trailer is not None
        assert report["file_digest"] == trailer["file_digest"]
        place = bundle.sections["weights.safetensors"]
    assert report["sections"]["weights.safetensors"] == {"offset": place.offset_bytes, "length": WEIGHT_BYTES}
    assert report["file_bytes"] == path.stat().st_size


def test_only_header_manifest_and_trailer_are_read(make_bundle: MakeBundle, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_bundle("split")
    before = inspect_text(path, capsys)
    with open_bundle(path) as bundle:
        places = [place for name, place in bundle.sections.items() if name != "manifest.json"]
    with path.open("r+b") as file:
        for place in places:
            file.seek(place.offset_bytes)
            file.write(bytes(place.length_bytes))
    assert inspect_text(path, capsys) == before


@pytest.mark.parametrize("key", ["layout_decision", "engines", "states", "tokens", "tokenizer", "model"])
def test_a_manifest_that_lacks_a_part_is_refused(
    make_bundle: MakeBundle, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    path = make_bundle("split", lambda manifest: manifest.pop(key))
    assert main(["inspect", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "[manifest_malformed]" in err
    assert f"expected: {key}\n" in err


def test_a_file_that_is_no_bundle_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.bundle"
    path.write_bytes(b"GGUF" + bytes(100))
    assert main(["inspect", str(path)]) == 1
    assert main(["inspect", str(tmp_path / "missing.bundle")]) == 1
    assert "[container_not_found]" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["inspect", "BUNDLE"], ["inspect", "BUNDLE", "--json"]])
def test_nothing_heavy_is_loaded(make_bundle: MakeBundle, words: list[str]) -> None:
    words = [str(make_bundle("split")) if word == "BUNDLE" else word for word in words]
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
from rowpack.cli import main
exit_code = main({words!r})
loaded = [name for name in {HEAVY!r} if name in sys.modules]
sys.exit(f"loaded {{loaded}}" if loaded else exit_code)
"""
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["rowpack", "rowpack_loaders"])
def test_importing_a_package_loads_nothing_heavy(package: str) -> None:
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
import {package}
assert dir({package})
sys.exit(", ".join(name for name in {HEAVY!r} if name in sys.modules) or 0)
"""
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
