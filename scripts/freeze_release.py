"""Keep what a release reads and writes: its ``rowpack_loaders``, and the bundles its writer makes.

    PYTHONPATH=packager:loaders:tests/tiny python scripts/freeze_release.py

Run it once for each version, with the commit that is released. It writes

    tests/old_loaders/released/rowpack_loaders-VERSION.zip    the package and its schemas, as they would be installed
    schema/vectors/good/rowpack-VERSION/*.bundle              tiny bundles of both families, single and split
    schema/vectors/good/rowpack-VERSION/expected.json         the tokens that they generate

and, until there is a first release, the bundles of later versions in ``schema/vectors/versions``. From then on the
tests run the kept package on the bundles of the day, and the package of the day on the kept bundles. A version that
CHANGELOG.md calls unreleased may be frozen again; a released one never changes.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tiny_models import BUILD_OPTIONS, CONFIGS, tiny_checkpoint
from version_vectors import write_vectors

from rowpack import BuildRequest, build
from rowpack_loaders import load
from rowpack_loaders.version import __version__

ROOT = Path(__file__).resolve().parents[1]
ARCHIVES = ROOT / "tests" / "old_loaders" / "released"
VECTORS = ROOT / "schema" / "vectors"

PROMPT = [(7 * index) % 61 for index in range(20)]
NEW_TOKENS = 8
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def released_versions(changelog: str) -> set[str]:
    """Return the versions that the changelog dates; raise SystemExit when it lacks this tree's version."""
    headings = dict(re.findall(r"^## (\d+\.\d+\.\d+) \((.+)\)$", changelog, re.MULTILINE))
    if __version__ not in headings:
        raise SystemExit(f"CHANGELOG.md has no heading of version {__version__}")
    return {version for version, date in headings.items() if date != "unreleased"}


def package_files() -> Iterator[tuple[str, Path]]:
    """Yield every file of the package by its installed name, the schemas inside it as in a wheel."""
    package = ROOT / "loaders" / "rowpack_loaders"
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".typed"):
            yield path.relative_to(package.parent).as_posix(), path
    for path in sorted((ROOT / "schema").glob("*.json")):
        yield f"rowpack_loaders/schema/{path.name}", path


def write_archive(target: Path) -> None:
    """Write the package as a zip file; the same files give the same bytes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, path in package_files():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_TIME), path.read_bytes(), zipfile.ZIP_DEFLATED)


def write_bundles(folder: Path) -> None:
    """Build the tiny models and note what they generate."""
    folder.mkdir(parents=True, exist_ok=True)
    expected = {}
    with tempfile.TemporaryDirectory() as scratch:
        for family in CONFIGS:
            checkpoint = tiny_checkpoint(family, Path(scratch) / family)
            for layout in ("single", "split"):
                target = folder / f"{family}-{layout}.bundle"
                build(BuildRequest(checkpoint, target, decoder_engine_layout=layout, **BUILD_OPTIONS))
                with load(target) as decoder:
                    tokens = decoder.generate(PROMPT, NEW_TOKENS, stop_token_ids=[]).token_ids
                expected[target.name] = {
                    "family": family,
                    "layout": layout,
                    "prompt_ids": PROMPT,
                    "token_ids": list(tokens),
                }
    (folder / "expected.json").write_text(json.dumps(expected, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main() -> int:
    """Freeze the version of this tree."""
    archive = ARCHIVES / f"rowpack_loaders-{__version__}.zip"
    bundles = VECTORS / "good" / f"rowpack-{__version__}"
    released = released_versions((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if __version__ in released and (archive.exists() or bundles.exists()):
        raise SystemExit(f"{__version__} is released and frozen; it never changes")
    write_archive(archive)
    write_bundles(bundles)
    if not released - {__version__}:
        write_vectors(bundles / "rwkv-single.bundle", VECTORS / "versions")
    print(f"{archive.relative_to(ROOT)}\n{bundles.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
