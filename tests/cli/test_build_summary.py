"""What the end of a build says about what was executed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rowpack import BuildReport, BuildRequest, build
from rowpack.cli.build_summary import build_summary
from rowpack.engines.backend import Executed


@pytest.fixture(scope="module")
def report(rwkv_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> BuildReport:
    """The report of a build for ONNX Runtime, not verified."""
    return build(BuildRequest(rwkv_checkpoint, tmp_path_factory.mktemp("summary") / "x.bundle", verify=False))


COMPILED: dict[str, dict[str, object]] = {
    "decode": {"engine_bytes": 1, "seconds": 1.0, "peak_resident_bytes": 1, "estimated_peak_bytes": 1}
}


@pytest.mark.parametrize(
    ("executed", "engine_builds", "words"),
    [
        ("engines", {}, "the engines ran here"),
        ("graphs", COMPILED, "the graphs that the engines were compiled from ran here"),
        ("graphs", {}, "the engines' graphs ran here, by operators that this processor has"),
    ],
)
def test_what_was_executed(
    report: BuildReport, executed: Executed, engine_builds: dict[str, dict[str, object]], words: str
) -> None:
    told = build_summary(replace(report, executed=executed, engine_builds=engine_builds))
    (line,) = (line for line in told.splitlines() if line.startswith("verified"))
    assert words in line


def test_nothing_is_said_of_a_build_that_was_not_verified(report: BuildReport) -> None:
    assert "verified" not in build_summary(report)
