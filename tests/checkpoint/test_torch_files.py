"""Torch files: those that real torch wrote, and those that somebody made to do harm."""

from __future__ import annotations

import io
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoint_files import write_json

from rowpack.checkpoint import Checkpoint, open_checkpoint
from rowpack.checkpoint.torch_archive import read_torch_file
from rowpack.checkpoint.torch_pickle import PickledTensor, Storage, read_state_dict
from rowpack_loaders.errors import Problem, RowpackError

TORCH_FILES = Path(__file__).parent.parent / "data" / "torch_files"


@pytest.fixture
def open_torch(bare_folder: Path) -> Callable[[bytes], Checkpoint]:
    """Open a checkpoint whose pytorch_model.bin has the given content."""

    def open_with(content: bytes) -> Checkpoint:
        (bare_folder / "pytorch_model.bin").write_bytes(content)
        return open_checkpoint(bare_folder)

    return open_with


def code_of(open_torch: Callable[[bytes], Checkpoint], content: bytes) -> str:
    with pytest.raises(RowpackError) as caught:
        open_torch(content)
    return caught.value.code


@pytest.mark.parametrize("name", ["state_dict.bin", "state_dict_protocol_4.bin"])
def test_state_dict_written_by_torch_reads_back(open_torch: Callable[[bytes], Checkpoint], name: str) -> None:
    bfloat = np.arange(12, dtype=np.float32).reshape(4, 3).astype(ml_dtypes.bfloat16)
    expected = {
        "linear.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "linear.bias": np.array([0.5, -0.5], np.float32),
        "norm.weight": np.ones(3, np.float32),
        "norm.bias": np.zeros(3, np.float32),
        "mix": np.arange(3, dtype=np.float32).reshape(1, 1, 3),
        "half": np.arange(4, dtype=np.float16),
        "bfloat": bfloat,
        "transposed": bfloat.T,
        "tail": bfloat[2:],
        "expanded": np.full((3, 2), 1.5, np.float32),
        "double": np.array([[1.0, 2.0]]),
        "empty": np.zeros((0, 4), np.float32),
    }
    with open_torch((TORCH_FILES / name).read_bytes()) as checkpoint:
        assert set(checkpoint.tensors) == {*expected, "steps"}
        assert checkpoint.tensors["steps"].dtype == "I64"
        for tensor, array in expected.items():
            info = checkpoint.tensors[tensor]
            assert (info.shape, info.byte_count, info.file) == (array.shape, array.nbytes, "pytorch_model.bin")
            read = checkpoint.read(tensor)
            assert read.dtype == array.dtype
            np.testing.assert_array_equal(read, array)
        np.testing.assert_array_equal(checkpoint.read_rows("transposed", 1, 3), bfloat.T[1:3])
        np.testing.assert_array_equal(checkpoint.read_rows("expanded", 2, 3), expected["expanded"][2:])
        assert checkpoint.read_rows("transposed", 2, 2).shape == (0, 4)


def test_parameters_are_read_as_their_tensors(open_torch: Callable[[bytes], Checkpoint]) -> None:
    with open_torch((TORCH_FILES / "parameters.bin").read_bytes()) as checkpoint:
        assert checkpoint.read("weight").tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("legacy.bin", "legacy_torch_file"),
        ("training_state.bin", "not_a_state_dict"),
        ("whole_module.bin", "unsafe_pickle"),
    ],
)
def test_other_files_of_torch_are_refused(open_torch: Callable[[bytes], Checkpoint], name: str, code: str) -> None:
    assert code_of(open_torch, (TORCH_FILES / name).read_bytes()) == code


def test_sharded_torch_files(bare_folder: Path) -> None:
    shard = "pytorch_model-00001-of-00001.bin"
    (bare_folder / shard).write_bytes((TORCH_FILES / "parameters.bin").read_bytes())
    write_json(bare_folder / "pytorch_model.bin.index.json", {"weight_map": {"weight": shard}})
    with open_checkpoint(bare_folder) as checkpoint:
        assert checkpoint.tensors["weight"].file == shard


@pytest.mark.parametrize("kept_bytes", [4, 700, -1])
def test_truncated_torch_file(open_torch: Callable[[bytes], Checkpoint], kept_bytes: int) -> None:
    content = (TORCH_FILES / "parameters.bin").read_bytes()[:kept_bytes]
    assert code_of(open_torch, content) == "torch_file_truncated"


def test_something_else_than_a_zip(open_torch: Callable[[bytes], Checkpoint]) -> None:
    assert code_of(open_torch, b"no zip at all") == "legacy_torch_file"


class Bomb:
    """Would create a file when unpickled by ``pickle``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def test_a_pickle_that_would_run_code_runs_nothing(open_torch: Callable[[bytes], Checkpoint], tmp_path: Path) -> None:
    target = tmp_path / "harm"
    content = archive({"m/data.pkl": pickle.dumps({"w": Bomb(target)}, protocol=2)})
    with pytest.raises(RowpackError) as caught:
        open_torch(content)
    assert caught.value.code == "unsafe_pickle"
    assert "open" in str(caught.value.problem.found)
    assert not target.exists()


@pytest.mark.parametrize(
    ("pickled", "code"),
    [
        (b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.", "unsafe_pickle"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "unsafe_pickle"),
        (b"\x80\x02cbuiltins\neval\n.", "unsafe_pickle"),
        (b"\x80\x02ctorch\nload\n.", "unsafe_pickle"),
        (b"\x80\x02ctorch.FloatStorage\n__reduce__\n.", "unsafe_pickle"),
        # A storage class is only a name: it cannot be called, and opcodes that call by other ways are unknown.
        (b"\x80\x02ctorch\nFloatStorage\n)R.", "malformed_pickle"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "malformed_pickle"),
        (b"(S'id'\nios\nsystem\n.", "malformed_pickle"),
        (b"\x80\x02\x82\x01.", "malformed_pickle"),
        (b"\x80\x02ccollections\nOrderedDict\n}b.", "malformed_pickle"),
        (b"\x80\x02ccollections\nOrderedDict\n(K\x01K\x02ttR.", "malformed_pickle"),
        (b"\x80\x02X\x01\x00\x00\x00aQ.", "malformed_pickle"),
        (b"\x80\x02h\x05.", "malformed_pickle"),
        (b"\x80\x02R.", "malformed_pickle"),
        (b"\x80\x02(.", "not_a_state_dict"),
        (b"\x80\x02((t.", "malformed_pickle"),
        (b"\x80\x02}", "malformed_pickle"),
        (b"\x80\x02.", "malformed_pickle"),
        (b"", "malformed_pickle"),
        (b"\x80\x02X\xff\xff\xff\x7fa.", "malformed_pickle"),
        (b"\x80\x02K\x01.", "not_a_state_dict"),
        (b"\x80\x02}K\x01K\x02s.", "not_a_state_dict"),
        (b"\x80\x02}X\x01\x00\x00\x00aK\x02s.", "not_a_state_dict"),
        (b"\x80\x02}(K\x01u.", "not_a_state_dict"),
        (b"\x80\x02]K\x01a.", "not_a_state_dict"),
        (b"\x80\x02}K\x01a.", "malformed_pickle"),
    ],
)
def test_pickles_that_are_no_state_dict(pickled: bytes, code: str) -> None:
    with pytest.raises(RowpackError) as caught:
        read_state_dict(pickled, "file")
    assert caught.value.code == code


def test_a_large_memo_number_costs_no_memory() -> None:
    assert read_state_dict(b"\x80\x02}r\xff\xff\xff\x7f.", "file") == {}


def test_a_nest_of_shared_tuples_costs_no_time() -> None:
    # Each level holds the level below twice: 2**200 leaves for whoever walks, compares, hashes or prints it.
    nest = b"\x80\x02)" + b"".join(b"q\x00h\x00\x86" for _ in range(200))
    for pickled in (nest + b".", b"\x80\x02}" + nest[2:] + b"K\x01s."):
        with pytest.raises(RowpackError) as caught:
            read_state_dict(pickled, "file")
        assert caught.value.code == "not_a_state_dict"


def tensor_pickle(*, shape: bytes = b"(K\x02t", strides: bytes = b"(K\x01t", offset: bytes = b"K\x00") -> bytes:
    """Pickle ``{"w": tensor}`` over storage 0, four float32 elements."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + offset + shape + strides + b"\x89}tR"
    return b"\x80\x02}X\x01\x00\x00\x00w" + tensor + b"s."


def test_the_tensor_pickle_of_these_tests_is_read() -> None:
    assert read_state_dict(tensor_pickle(), "file") == {"w": PickledTensor(Storage("0", "F32", 4), 0, (2,), (1,))}


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": b"(J\xff\xff\xff\xfft"},
        {"shape": b"(\x88t"},
        {"shape": b"(G@\x00\x00\x00\x00\x00\x00\x00t"},
        {"shape": b"(K\x02K\x02t"},
        {"shape": b"K\x02"},
        {"offset": b"\x8a\x09" + b"\0" * 8 + b"\x01"},
        {"offset": b"N"},
        {"shape": b"(" + b"K\x01" * 9 + b"t", "strides": b"(" + b"K\x01" * 9 + b"t"},
    ],
)
def test_sizes_that_are_none_are_refused(changes: dict[str, bytes]) -> None:
    with pytest.raises(RowpackError) as caught:
        read_state_dict(tensor_pickle(**changes), "file")
    assert caught.value.code == "malformed_pickle"


def archive(
    entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED, damage: Callable[[bytes], bytes] = bytes
) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, content in entries.items():
            file.writestr(zipfile.ZipInfo(name), content, compression)
    return damage(buffer.getvalue())


def test_the_archive_of_these_tests_is_read(open_torch: Callable[[bytes], Checkpoint]) -> None:
    values = struct.pack("<4f", 1, 2, 3, 4)
    pickled = tensor_pickle(offset=b"K\x01")
    with open_torch(archive({"m/data.pkl": pickled, "m/data/0": values})) as checkpoint:
        assert checkpoint.read("w").tolist() == [2, 3]


@pytest.mark.parametrize(
    "content",
    [
        archive({"m/data.pkl": tensor_pickle()}),
        archive({"m/data.pkl": tensor_pickle(), "m/data/0": bytes(12)}),
        archive({"m/data.pkl": tensor_pickle(), "m/data/0": bytes(20)}),
        archive({"m/data.pkl": tensor_pickle(offset=b"K\x03"), "m/data/0": bytes(16)}),
        archive({"m/data.pkl": tensor_pickle(strides=b"(K\x04t"), "m/data/0": bytes(16)}),
        archive({"m/data.pkl": tensor_pickle(), "m/data/0": bytes(16)}, zipfile.ZIP_DEFLATED),
        archive({"m/data.pkl": tensor_pickle(), "m/data/0": bytes(16), "m/byteorder": b"big"}),
        archive({"m/data/0": bytes(16)}),
        archive({"m/data.pkl": tensor_pickle(), "n/data.pkl": tensor_pickle(), "m/data/0": bytes(16)}),
    ],
    ids=["no entry", "short", "long", "offset", "stride", "compressed", "big-endian", "no table", "two tables"],
)
def test_archives_that_do_not_fit_their_table(open_torch: Callable[[bytes], Checkpoint], content: bytes) -> None:
    assert code_of(open_torch, content) == "malformed_torch_file"


def test_a_damaged_table_is_found_by_its_checksum(open_torch: Callable[[bytes], Checkpoint]) -> None:
    content = archive({"m/data.pkl": tensor_pickle(), "m/data/0": bytes(16)})
    place = content.index(b"FloatStorage")
    damaged = content[:place] + b"HalfStorage\n" + content[place + 12 :]
    assert code_of(open_torch, damaged) == "malformed_torch_file"


def test_a_local_header_that_points_past_the_file(open_torch: Callable[[bytes], Checkpoint]) -> None:
    content = bytearray(archive({"m/data.pkl": tensor_pickle(), "m/data/0": bytes(16)}))
    local_header = content.index(b"m/data/0") - 30
    content[local_header + 28 : local_header + 30] = b"\xff\xff"
    assert code_of(open_torch, bytes(content)) == "malformed_torch_file"


def test_damaged_files_are_refused_with_a_code_or_read_and_nothing_else(tmp_path: Path) -> None:
    whole = (TORCH_FILES / "state_dict.bin").read_bytes()
    chance = random.Random(20)
    path = tmp_path / "pytorch_model.bin"
    seen = set()
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(content))
            if chance.random() < 0.7:
                content[place] = chance.randrange(256)
            else:
                del content[place : place + chance.randint(1, 20)]
        path.write_bytes(content)
        problems: list[Problem] = []
        read_torch_file(path, problems)
        seen.update(problem.code for problem in problems)
    assert "malformed_torch_file" in seen


def test_damaged_tables_are_refused_with_a_code_or_read_and_nothing_else() -> None:
    with zipfile.ZipFile(TORCH_FILES / "state_dict.bin") as file:
        whole = file.read("state_dict/data.pkl")
    chance = random.Random(21)
    seen = set()
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        try:
            read_state_dict(bytes(content), "file")
        except RowpackError as error:
            seen.add(error.code)
    assert {"malformed_pickle", "unsafe_pickle"} <= seen
