"""Every broken file in ``schema/vectors/bad`` is refused for its reason, by each way of reading a bundle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from make_bad_vectors import BAD, files
from vector_files import VECTORS, materialised, stored, vector_names

from rowpack_loaders import Problem, RowpackError, load, open_bundle, validate
from rowpack_loaders.schema_data import error_codes

NAMES = vector_names()


def code_of(read: Callable[[Path], object], path: Path) -> str | None:
    """Return the code with which reading fails, or None."""
    try:
        read(path)
    except RowpackError as error:
        return error.code
    return None


@pytest.mark.parametrize("name", NAMES)
def test_a_vector_is_refused_for_its_reason(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = stored(name, "expected.json")
    found: dict[str, Any] = {"what": expected["what"]}
    header_only: set[str] = set()

    def check(path: Path) -> None:
        report = validate(path)
        found["validate"] = {"errors": codes(report.errors), "warnings": codes(report.warnings)}
        for told in report.found:
            facts = told.problem.as_json()
            assert None not in facts.values(), facts

    def check_header(path: Path) -> None:
        header_only.update(codes(validate(path, header_only=True).errors))

    with materialised(name, tmp_path, monkeypatch) as again:
        found["open_bundle"] = code_of(lambda path: open_bundle(path).close(), again())
        found["load"] = code_of(lambda path: load(path).close(), again())
        check(again())
        check_header(again())
    assert found == expected
    # What a header-only check tells, a full one tells too; it may refuse a header that it would have to read on for.
    assert header_only <= {*expected["validate"]["errors"], "header_too_long"}


def codes(problems: list[Problem]) -> list[str]:
    """Return each code once."""
    return sorted({problem.code for problem in problems})


def test_the_vectors_are_those_that_are_made_today() -> None:
    made = dict(files())
    on_disk = {path for path in BAD.rglob("*") if path.is_file()}
    assert on_disk == {path for path in made if path.is_relative_to(BAD)}, "run: bash scripts/regenerate"
    changed = [path.relative_to(VECTORS).as_posix() for path, content in made.items() if path.read_bytes() != content]
    assert changed == [], "run: bash scripts/regenerate"


def test_good_vectors_are_valid_and_give_their_golden_tokens() -> None:
    from rowpack_loaders.selftest import run_self_test

    for name in ("tiny-split", "tiny-single"):
        path = VECTORS / "good" / f"{name}.bundle"
        report = validate(path)
        assert (report.errors, report.warnings) == ([], [])
        with load(path) as decoder:
            assert run_self_test(decoder).passed


def test_expected_codes_are_explained() -> None:
    codes = set()
    for name in NAMES:
        expected = stored(name, "expected.json")
        codes |= {expected["open_bundle"], expected["load"], *expected["validate"]["errors"]}
    assert codes - {None} <= error_codes().keys()


def test_the_vectors_stay_small() -> None:
    assert sum(path.stat().st_size for path in VECTORS.rglob("*") if path.is_file()) < 3_000_000
    assert len(NAMES) > 200
