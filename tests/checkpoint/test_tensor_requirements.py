"""Every difference between a checkpoint and what a family needs, together."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from rowpack.checkpoint import TensorInfo, check_tensors


@dataclass
class Table:
    """A table of tensors without files."""

    tensors: dict[str, TensorInfo]


def table(dtype: str = "F32", **shapes: tuple[int, ...]) -> Table:
    names = {name.replace("__", "."): shape for name, shape in shapes.items()}
    return Table({name: TensorInfo(name, dtype, shape, 0, "model.safetensors") for name, shape in names.items()})


REQUIRED = MappingProxyType({"layers.0.q_proj.weight": (4, 2), "norm.weight": (2,)})


def test_a_checkpoint_with_exactly_the_tensors_has_no_problem() -> None:
    assert check_tensors(table(layers__0__q_proj__weight=(4, 2), norm__weight=(2,)), REQUIRED) == []


def test_missing_misshapen_and_unexpected_tensors_come_together() -> None:
    problems = check_tensors(table(norm__weight=(3,), lm_head=(9, 9)), REQUIRED)
    assert [(problem.code, problem.where) for problem in problems] == [
        ("tensor_missing", "layers.0.q_proj.weight"),
        ("tensor_unexpected", "lm_head"),
        ("tensor_shape", "norm.weight"),
    ]
    assert (problems[2].found, problems[2].expected) == ("[3]", "[2]")
    assert problems[0].expected == "shape [4, 2]"


def test_a_near_name_is_suggested_from_both_sides() -> None:
    problems = check_tensors(table(layers__0__qproj__weight=(4, 2), norm__weight=(2,)), REQUIRED)
    assert [problem.code for problem in problems] == ["tensor_missing", "tensor_unexpected"]
    assert "layers.0.qproj.weight" in str(problems[0].remedy)
    assert "layers.0.q_proj.weight" in str(problems[1].remedy)


def test_a_far_name_is_not_suggested() -> None:
    problems = check_tensors(table(norm__weight=(2,), visual__patch=(1,)), REQUIRED)
    assert all("Did you mean" not in str(problem.remedy) for problem in problems)


def test_optional_tensors_may_be_absent_but_not_misshapen() -> None:
    full = {"layers__0__q_proj__weight": (4, 2), "norm__weight": (2,)}
    optional = {"lm_head.weight": (8, 2)}
    assert check_tensors(table(**full), REQUIRED, optional=optional) == []
    assert check_tensors(table(**full, lm_head__weight=(8, 2)), REQUIRED, optional=optional) == []
    problems = check_tensors(table(**full, lm_head__weight=(8, 3)), REQUIRED, optional=optional)
    assert [problem.code for problem in problems] == ["tensor_shape"]


def test_ignored_prefixes_are_not_looked_at_even_with_unreadable_dtypes() -> None:
    checkpoint = table(layers__0__q_proj__weight=(4, 2), norm__weight=(2,))
    checkpoint.tensors["mtp.fc"] = TensorInfo("mtp.fc", "I8", (1,), 1, "model.safetensors")
    assert check_tensors(checkpoint, REQUIRED, ignored_prefixes=["mtp.", "model.visual."]) == []
    assert [problem.code for problem in check_tensors(checkpoint, REQUIRED)] == ["tensor_unexpected"]


def test_a_needed_tensor_of_an_unreadable_dtype() -> None:
    checkpoint = table("F8_E4M3", layers__0__q_proj__weight=(4, 2), norm__weight=(2,))
    problems = check_tensors(checkpoint, REQUIRED)
    assert [problem.code for problem in problems] == ["unsupported_tensor_dtype"] * 2
    assert (problems[0].found, problems[0].expected) == ("F8_E4M3", "F64, F32, F16, BF16")


def test_a_checkpoint_of_another_model_is_not_compared_name_by_name() -> None:
    found = table(**{f"modul__layers__{index}__self_attn": (1,) for index in range(1200)})
    needed = {f"model.layers.{index}.self_attn": (1,) for index in range(1200)}
    problems = check_tensors(found, needed)
    assert len(problems) == 2400
    assert all("Did you mean" not in str(problem.remedy) for problem in problems)
