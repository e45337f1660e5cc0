"""Every released loader runs the bundles of the day, and every released writer's bundles run on the loader of the day.

What is kept is written by ``scripts/freeze_release.py``; a version that CHANGELOG.md calls unreleased may be kept anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from version_vectors import CHANGES, EXPECTED

from rowpack_loaders import load, open_bundle, validate
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.version import __version__

ROOT = Path(__file__).resolve().parents[2]
ARCHIVES = sorted((Path(__file__).parent / "released").glob("rowpack_loaders-*.zip"))
GOOD = ROOT / "schema" / "vectors" / "good"
WRITERS = sorted(GOOD.glob("rowpack-*"))
VERSIONS = ROOT / "schema" / "vectors" / "versions"
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

RUN = """
import json, sys
import rowpack_loaders
from rowpack_loaders import load, open_bundle
outcomes = {}
for path in sys.argv[2:]:
    try:
        with open_bundle(path):
            pass
        with load(path) as decoder:
            tokens = decoder.generate(json.loads(sys.argv[1]), 8, stop_token_ids=[]).token_ids
        outcomes[path] = [int(token) for token in tokens]
    except rowpack_loaders.RowpackError as error:
        outcomes[path] = error.code
print(json.dumps({"version": rowpack_loaders.__version__, "file": rowpack_loaders.__file__, "outcomes": outcomes}))
"""


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.stem)
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A released package, unpacked as it would be installed."""
    folder = tmp_path_factory.mktemp("released")
    with zipfile.ZipFile(request.param) as archive:
        archive.extractall(folder)
    return folder


def run_released(folder: Path, prompt: list[int], *bundles: Path) -> dict[str, Any]:
    """Open, load and run bundles in a process that sees the released package and nothing of this tree."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    printed = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{RUN}", json.dumps(prompt)]
        + [str(path) for path in bundles],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    report: dict[str, Any] = json.loads(printed)
    assert Path(report["file"]).is_relative_to(folder), "the released package, not this tree's"
    return report


def test_a_released_loader_runs_every_kind_of_bundle_of_today(
    released: Path, bundles_of_every_kind: dict[str, Path]
) -> None:
    prompt = [(5 * index) % 61 for index in range(20)]
    wanted = {}
    for path in bundles_of_every_kind.values():
        with load(path) as decoder:
            wanted[str(path)] = list(decoder.generate(prompt, 8, stop_token_ids=[]).token_ids)
    assert run_released(released, prompt, *bundles_of_every_kind.values())["outcomes"] == wanted


def test_a_released_loader_takes_and_refuses_later_versions(released: Path) -> None:
    paths = [VERSIONS / f"{name}.bundle" for name in CHANGES]
    outcomes = run_released(released, [3, 4, 5], *paths)["outcomes"]
    for path in paths:
        code = EXPECTED[path.stem]["open"]
        assert outcomes[str(path)] == code if code else isinstance(outcomes[str(path)], list), path.name


@pytest.mark.parametrize("writer", WRITERS, ids=lambda path: path.name)
def test_what_a_released_writer_wrote_is_valid_and_generates_what_it_did(writer: Path) -> None:
    expected = json.loads((writer / "expected.json").read_text(encoding="utf-8"))
    assert {path.name for path in writer.glob("*.bundle")} == set(expected)
    for name, case in expected.items():
        report = validate(writer / name)
        assert report.errors == [], f"{writer.name}/{name}: if unreleased, run scripts/freeze_release.py"
        with open_bundle(writer / name) as bundle:
            assert (bundle.family, bundle.decoder_engine_layout) == (case["family"], case["layout"])
        with load(writer / name) as decoder:
            tokens = decoder.generate(case["prompt_ids"], len(case["token_ids"]), stop_token_ids=[]).token_ids
        assert list(tokens) == case["token_ids"]


@pytest.mark.parametrize("name", CHANGES)
def test_later_versions_are_taken_or_refused_as_agreed(name: str) -> None:
    path, expected = VERSIONS / f"{name}.bundle", EXPECTED[name]
    assert json.loads((VERSIONS / "expected.json").read_text(encoding="utf-8"))[name] == expected
    report = validate(path)
    assert sorted({problem.code for problem in report.errors}) == expected["errors"]
    assert sorted({problem.code for problem in report.warnings}) == expected["warnings"]
    if expected["open"] is None:
        with load(path) as decoder:
            assert len(decoder.generate([3, 4, 5], 4, stop_token_ids=[]).token_ids) == 4
        with open_bundle(path) as bundle:
            assert "colour" in bundle.manifest, "what is not understood is left alone"
    else:
        with pytest.raises(RowpackError) as caught:
            open_bundle(path)
        assert caught.value.code == expected["open"]


@pytest.mark.parametrize("name", CHANGES)
def test_the_strict_reader_takes_whatever_is_format_1(name: str) -> None:
    from strict_format_1_reader import read_bundle

    if name == "newer-container":
        with pytest.raises(ValueError, match="format"):
            read_bundle(VERSIONS / f"{name}.bundle")
    else:
        assert "engine.onnx" in read_bundle(VERSIONS / f"{name}.bundle")[1]


def test_every_release_is_kept() -> None:
    headings = dict(re.findall(r"^## (\d+\.\d+\.\d+) \((.+)\)$", CHANGELOG, re.MULTILINE))
    assert __version__ in headings
    released = {version for version, date in headings.items() if date != "unreleased"}
    kept = {path.stem.partition("-")[2] for path in ARCHIVES}
    assert kept == {path.name.partition("-")[2] for path in WRITERS}
    assert released <= kept, "run scripts/freeze_release.py with the commit that is released"
    assert kept - released <= {__version__}


def test_an_archive_holds_the_version_it_is_called(released: Path) -> None:
    report = run_released(released, [1])
    assert f"rowpack_loaders-{report['version']}.zip" in {path.name for path in ARCHIVES}


def test_the_kept_files_stay_small() -> None:
    kept = [*ARCHIVES, *GOOD.rglob("*"), *VERSIONS.rglob("*")]
    assert sum(path.stat().st_size for path in kept if path.is_file()) < 3_000_000
