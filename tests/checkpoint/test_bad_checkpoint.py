"""What a bad checkpoint gets: a code for each fault, all faults together."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from checkpoint_files import INDEX, LFS_POINTER, SHARDS, Tensors, write_json, write_safetensors

from rowpack.checkpoint import open_checkpoint
from rowpack_loaders.errors import Problem, RowpackError


def refusal(folder: Path) -> RowpackError:
    with pytest.raises(RowpackError) as caught:
        open_checkpoint(folder)
    return caught.value


def only_problem(folder: Path, code: str) -> Problem:
    error = refusal(folder)
    assert [problem.code for problem in error.problems] == [code]
    assert error.code == code
    return error.problems[0]


def test_no_such_folder(tmp_path: Path) -> None:
    assert only_problem(tmp_path / "none", "checkpoint_not_found").where == str(tmp_path / "none")


def test_a_file_is_not_a_folder(single_folder: Path) -> None:
    only_problem(single_folder / "model.safetensors", "checkpoint_not_a_folder")


def test_a_folder_without_config_is_not_a_checkpoint_and_nothing_else_is_said(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    problem = only_problem(tmp_path, "not_a_checkpoint")
    assert problem.found == "notes.txt"


@pytest.mark.parametrize(
    ("content", "code", "found"),
    [
        (b'{"model_type": "rwkv",', "malformed_json", "line 1 column"),
        (b"", "malformed_json", "line 1 column 1"),
        (b'{"a": "\xff"}', "malformed_json", "offset 7"),
        (b"[" * 100_000, "malformed_json", "RecursionError"),
        (b'{"a": ' + b"9" * 5000 + b"}", "malformed_json", "ValueError"),
        (b"[1]", "json_not_an_object", "list"),
        (LFS_POINTER.encode(), "git_lfs_pointer", "a pointer of"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_json_that_is_none(single_folder: Path, name: str, content: bytes, code: str, found: str) -> None:
    (single_folder / name).write_bytes(content)
    problem = only_problem(single_folder, code)
    assert problem.where == str(single_folder / name)
    assert found in str(problem.found)


@pytest.mark.parametrize("name", ["vocab.json", "special_tokens_map.json", "added_tokens.json"])
def test_other_carried_json_is_checked_too(single_folder: Path, name: str) -> None:
    (single_folder / name).write_text("{")
    assert only_problem(single_folder, "malformed_json").where == str(single_folder / name)


def test_a_text_file_that_is_an_lfs_pointer(single_folder: Path) -> None:
    (single_folder / "merges.txt").write_text(LFS_POINTER)
    only_problem(single_folder, "git_lfs_pointer")


def test_no_weights_names_what_is_accepted_and_what_is_there(bare_folder: Path) -> None:
    problem = only_problem(bare_folder, "weights_not_found")
    assert problem.found == "no weight file"
    for name in ("model.safetensors", INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json"):
        assert name in str(problem.expected)
    (bare_folder / "rwkv-4.pth").touch()
    assert only_problem(bare_folder, "weights_not_found").found == "rwkv-4.pth"


def test_shards_without_their_index(sharded_folder: Path) -> None:
    (sharded_folder / INDEX).unlink()
    problem = only_problem(sharded_folder, "weights_not_found")
    assert "index is missing" in str(problem.remedy)


def test_missing_shard(sharded_folder: Path) -> None:
    (sharded_folder / SHARDS[1]).unlink()
    problem = only_problem(sharded_folder, "shard_missing")
    assert problem.where == str(sharded_folder / SHARDS[1])
    assert problem.found == "no such file"


def test_a_link_to_nowhere_is_said_to_be_one(sharded_folder: Path) -> None:
    (sharded_folder / SHARDS[1]).unlink()
    (sharded_folder / SHARDS[1]).symlink_to(sharded_folder / "gone")
    assert only_problem(sharded_folder, "shard_missing").found == "a link to a file that does not exist"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_whole_file_that_is_a_link_to_nowhere(single_folder: Path, name: str) -> None:
    (single_folder / name).unlink()
    (single_folder / name).symlink_to(single_folder / "gone")
    problem = only_problem(single_folder, "checkpoint_unreadable")
    assert problem.where == str(single_folder / name)


def test_a_folder_in_the_place_of_a_file(single_folder: Path) -> None:
    (single_folder / "model.safetensors").unlink()
    (single_folder / "model.safetensors").mkdir()
    only_problem(single_folder, "checkpoint_unreadable")


def test_missing_shard_beside_a_single_file_says_how_to_use_it(sharded_folder: Path, tensors: Tensors) -> None:
    (sharded_folder / SHARDS[0]).unlink()
    write_safetensors(sharded_folder / "model.safetensors", tensors)
    assert "model.safetensors" in str(only_problem(sharded_folder, "shard_missing").remedy)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"weight_map": []},
        {"weight_map": {}},
        {"weight_map": {"a": 1}},
        {"weight_map": {"a": "../outside.safetensors"}},
        {"weight_map": {"a": "/etc/passwd"}},
        {"weight_map": {"a": ".."}},
        {"weight_map": {"a": ""}},
        {"weight_map": {"a": "c:\\x"}},
    ],
)
def test_an_index_without_a_table_of_plain_file_names(sharded_folder: Path, document: object) -> None:
    write_json(sharded_folder / INDEX, document)
    assert only_problem(sharded_folder, "malformed_shard_index").where == str(sharded_folder / INDEX)


def test_tensor_named_in_the_index_that_its_shard_lacks(sharded_folder: Path, tensors: Tensors) -> None:
    names = dict(zip(tensors, SHARDS, strict=True))
    write_json(sharded_folder / INDEX, {"weight_map": {**names, "layer.weight": SHARDS[0]}})
    problem = only_problem(sharded_folder, "tensor_missing_from_shard")
    assert "layer.weight" in problem.message
    assert problem.where == str(sharded_folder / SHARDS[0])
    assert problem.found == "it nowhere"


def test_tensor_in_another_shard_than_the_index_says(sharded_folder: Path, tensors: Tensors) -> None:
    names = dict(zip(tensors, SHARDS[::-1], strict=True))
    write_json(sharded_folder / INDEX, {"weight_map": names})
    error = refusal(sharded_folder)
    assert error.code == "bad_checkpoint"
    assert [problem.code for problem in error.problems] == ["tensor_missing_from_shard"] * 2
    assert error.problems[0].found == f"it in {SHARDS[0]}"


def test_tensor_in_two_shards(sharded_folder: Path, tensors: Tensors) -> None:
    write_safetensors(sharded_folder / SHARDS[1], tensors)
    problem = only_problem(sharded_folder, "tensor_in_two_shards")
    assert "embed.weight" in problem.message
    assert problem.found == ", ".join(SHARDS)


def test_lfs_pointer_in_the_place_of_weights(sharded_folder: Path) -> None:
    (sharded_folder / SHARDS[0]).write_text(LFS_POINTER)
    problem = only_problem(sharded_folder, "git_lfs_pointer")
    assert problem.found == f"a pointer of {len(LFS_POINTER)} bytes"
    assert problem.expected == "123456789 bytes"
    assert "git lfs pull" in str(problem.remedy)


def test_truncated_and_padded_weights_say_found_and_expected_bytes(single_folder: Path) -> None:
    path = single_folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    problem = only_problem(single_folder, "safetensors_truncated")
    assert (problem.found, problem.expected) == (f"{len(whole) - 1} bytes", f"{len(whole)} bytes")
    assert str(path) in str(problem.where)
    path.write_bytes(whole + b"\0")
    problem = only_problem(single_folder, "safetensors_trailing_bytes")
    assert (problem.found, problem.expected) == (f"{len(whole) + 1} bytes", f"{len(whole)} bytes")


def test_header_longer_than_the_file(single_folder: Path) -> None:
    path = single_folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 10_000) + path.read_bytes()[8:])
    problem = only_problem(single_folder, "safetensors_truncated")
    assert problem.expected == "a header of 10008 bytes"


def test_empty_weight_file(single_folder: Path) -> None:
    (single_folder / "model.safetensors").write_bytes(b"")
    only_problem(single_folder, "safetensors_truncated")


def test_missing_tokenizer_names_the_accepted_file(single_folder: Path) -> None:
    (single_folder / "tokenizer.json").unlink()
    problem = only_problem(single_folder, "tokenizer_missing")
    assert problem.expected == "tokenizer.json"
    assert problem.found == "merges.txt"
    with open_checkpoint(single_folder, allow_missing_tokenizer=True) as checkpoint:
        assert [warning.code for warning in checkpoint.warnings] == ["tokenizer_missing"]
    (single_folder / "merges.txt").unlink()
    assert "--allow-missing-tokenizer" in str(only_problem(single_folder, "tokenizer_missing").remedy)


def test_every_fault_is_reported_in_one_error(sharded_folder: Path) -> None:
    (sharded_folder / "generation_config.json").write_text("{")
    (sharded_folder / "tokenizer.json").unlink()
    (sharded_folder / SHARDS[0]).write_text(LFS_POINTER)
    (sharded_folder / SHARDS[1]).unlink()
    error = refusal(sharded_folder)
    assert error.code == "bad_checkpoint"
    assert [problem.code for problem in error.problems] == [
        "malformed_json",
        "tokenizer_missing",
        "git_lfs_pointer",
        "shard_missing",
    ]
    assert all(problem.code in str(error) for problem in error.problems)
