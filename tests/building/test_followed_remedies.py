"""What a refusal advises is not refused in turn: every combination of options is refused, and its remedy followed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rowpack import BuildRequest
from rowpack.engines import BACKENDS, find_backend
from rowpack.engines.options import EngineOptions
from rowpack.engines.serialized_graph import refuse_compiler_options
from rowpack.engines.tensorrt.flavour import TENSORRT, TENSORRT_RTX
from rowpack.engines.tensorrt.library import check_options
from rowpack.quantization import QUANTIZATIONS, TABLE_QUANTIZATIONS
from rowpack_loaders.errors import RowpackError

Options = dict[str, Any]

LEFT_OUT = re.compile(r"Leave ((?:--[\w-]+(?:, | and )?)+) out")
GIVEN = re.compile(r"(?:--[\w-]+ \w+ ?)+")


def field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def advised(remedy: str) -> Iterator[Options]:
    """Yield the changes of options that each alternative of a remedy names; None leaves an option out."""
    for match in LEFT_OUT.finditer(remedy):
        yield {field(flag): None for flag in re.findall(r"--[\w-]+", match[1])}
    for match in GIVEN.finditer(LEFT_OUT.sub("", remedy)):
        yield {field(flag): value for flag, value in re.findall(r"(--[\w-]+) (\w+)", match[0])}


def refusal(options: Options) -> RowpackError | None:
    """Return why a build refuses the options before it looks at the checkpoint, or None."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        request = BuildRequest(Path("checkpoint"), Path("out.bundle"), **given)
        find_backend(request.backend).check_precision(request.precision, request.quantization)
    except RowpackError as error:
        return error
    return None


def combinations() -> Iterator[Options]:
    names = ("backend", "precision", "quantization", "head_quantization", "embedding_quantization")
    tables = (None, *TABLE_QUANTIZATIONS)
    choices = (
        [backend.name for backend in BACKENDS],
        ("fp32", "fp16", "bf16", "fp64"),
        (None, *QUANTIZATIONS, "fp7"),
        tables,
        tables,
    )
    for values in itertools.product(*choices):
        yield dict(zip(names, values, strict=True))


def test_the_options_that_a_remedy_names_are_found() -> None:
    remedy = "Leave --a-b and --c out, or build with --d e --f g for the processor, or with --h i (fast)."
    assert list(advised(remedy)) == [{"a_b": None, "c": None}, {"d": "e", "f": "g"}, {"h": "i"}]


def test_no_remedy_leads_to_the_same_refusal() -> None:
    seen = set()
    for options in combinations():
        error = refusal(options)
        if error is None:
            continue
        seen.add(error.code)
        changes = list(advised(error.problem.remedy or ""))
        if error.code == "quantization_unknown":
            assert (error.problem.remedy or "").startswith("Name one of these")
            continue
        assert changes, f"{options}: {error}"
        for change in changes:
            after = refusal(options | change)
            assert after is None or after.code != error.code, f"{options}: {error}\n{change}: {after}"
    assert seen == {
        "quantization_unknown",
        "quantization_precision",
        "quantization_unsupported",
        "head_quantization_unsupported",
        "embedding_quantization_unsupported",
        "precision_unsupported",
    }


def test_remedies_end_in_a_build_that_is_not_refused() -> None:
    for options in combinations():
        followed, codes = dict(options), []
        while (error := refusal(followed)) is not None and error.code != "quantization_unknown":
            assert error.code not in codes, f"{options}: {codes} and again {error}"
            codes.append(error.code)
            followed |= next(advised(error.problem.remedy or ""))


def test_a_remedy_stays_with_the_backend_where_it_can() -> None:
    error = refusal({"backend": "trt", "precision": "fp32", "quantization": "fp8"})
    assert error is not None
    assert "--backend trt " in (error.problem.remedy or "")
    error = refusal({"backend": "ort", "precision": "fp32", "quantization": "fp8"})
    assert error is not None
    assert "--backend trt_rtx --precision bf16 --quantization fp8" in (error.problem.remedy or "")


@pytest.mark.parametrize(
    ("options", "takers"),
    [
        ({"workspace_bytes": 1}, ["trt_rtx", "trt"]),
        ({"compute_capabilities": ("8.9",)}, ["trt_rtx"]),
        ({"hardware_compatibility": "ampere_plus"}, ["trt"]),
        ({"version_compatible": True}, ["trt"]),
        ({"timing_cache": Path("times")}, ["trt"]),
        ({"timing_cache": Path("times"), "compute_capabilities": ("8.9",)}, []),
    ],
)
def test_options_for_a_compiler_name_the_backends_that_take_them(options: Any, takers: list[str]) -> None:
    with pytest.raises(RowpackError) as caught:
        refuse_compiler_options(EngineOptions(**options), "nothing is compiled")
    assert re.findall(r"--backend (\w+)", caught.value.problem.remedy or "") == takers
    for flavour in (TENSORRT, TENSORRT_RTX):
        if flavour.backend in takers:
            check_options(flavour, EngineOptions(**options))
