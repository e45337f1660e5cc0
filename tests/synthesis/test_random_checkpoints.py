"""Random checkpoints: published sizes, layouts, spreads, and that they open like real ones."""

from __future__ import annotations

import errno
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rowpack.checkpoint import open_checkpoint
from rowpack.synthesis import PUBLISHED_SHAPES, published_config, synthesize
from rowpack.synthesis import shard_writers as writers
from rowpack.synthesis.random_values import Normal, RandomTensor, Uniform, stream_values
from rowpack.synthesis.synthesize import text_tensors_of
from rowpack_loaders.errors import RowpackError

RWKV = {
    **published_config("rwkv4-169m"),
    "hidden_size": 16,
    "attention_hidden_size": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 40,
}


@pytest.fixture
def qwen(qwen_checkpoint: Path) -> dict[str, Any]:
    """The small trained model's flat configuration with two layers of each kind and a small vocabulary."""
    config = json.loads((qwen_checkpoint / "config.json").read_text())
    kinds = ["linear_attention", "full_attention"] * 2
    return {**config, "layer_types": kinds, "num_hidden_layers": 4, "vocab_size": 40}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen3_5-0.8b", 752_393_024),
        ("qwen3_5-2b", 1_881_825_088),
        ("qwen3_5-4b", 4_205_751_296),
        ("qwen3_5-9b", 8_953_803_264),
        ("rwkv4-169m", 169_342_464),
        ("rwkv4-430m", 430_397_440),
        ("rwkv4-1b5", 1_515_106_304),
        ("rwkv4-3b", 2_984_627_200),
        ("rwkv4-7b", 7_392_649_216),
        ("rwkv4-14b", 14_148_597_760),
    ],
)
def test_published_shapes_have_the_published_number_of_parameters(name: str, parameters: int) -> None:
    assert sum(tensor.element_count for tensor in text_tensors_of(name)) == parameters


def test_all_published_shapes_are_named() -> None:
    assert {name.split("-")[0] for name in PUBLISHED_SHAPES} == {"qwen3_5", "rwkv4"}
    assert len(text_tensors_of("qwen3_5-27b")) == 3 + 48 * 14 + 16 * 11


@pytest.mark.parametrize("family", ["qwen", "rwkv"])
def test_names_and_shapes_are_those_of_the_trained_checkpoints(
    family: str, qwen_checkpoint: Path, rwkv_checkpoint: Path
) -> None:
    folder = qwen_checkpoint if family == "qwen" else rwkv_checkpoint
    with open_checkpoint(folder) as trained:
        expected = {name: info.shape for name, info in trained.tensors.items()}
        planned = {tensor.name: tensor.shape for tensor in text_tensors_of(trained.config)}
    assert planned == expected


def test_flat_qwen_is_one_bfloat16_file_that_opens(tmp_path: Path, qwen: dict[str, Any]) -> None:
    written = synthesize(qwen, tmp_path / "flat")
    assert written.weight_files == ("model.safetensors",)
    with open_checkpoint(tmp_path / "flat") as checkpoint:
        assert checkpoint.warnings == []
        assert checkpoint.config["model_type"] == "qwen3_5_text"
        assert {info.dtype for info in checkpoint.tensors.values()} == {"BF16"}
        assert sum(info.byte_count for info in checkpoint.tensors.values()) == written.tensor_bytes
        assert written.tensor_bytes == 2 * written.parameter_count
        assert "lm_head.weight" not in checkpoint.tensors


def test_nested_qwen_is_sharded_and_may_carry_what_a_text_build_skips(tmp_path: Path, qwen: dict[str, Any]) -> None:
    flat = synthesize(qwen, tmp_path / "flat")
    nested = synthesize(qwen, tmp_path / "nested", layout="nested", include_mtp=True, shard_bytes=200_000)
    assert nested.parameter_count == flat.parameter_count
    assert nested.tensor_bytes > flat.tensor_bytes
    assert len(nested.weight_files) > 2
    with open_checkpoint(tmp_path / "nested") as checkpoint:
        assert checkpoint.warnings == []
        assert checkpoint.config["architectures"] == ["Qwen3_5ForConditionalGeneration"]
        assert checkpoint.config["text_config"]["model_type"] == "qwen3_5_text"
        assert {name.split(".")[0] for name in checkpoint.tensors} == {"model", "mtp"}
        assert "model.language_model.embed_tokens.weight" in checkpoint.tensors
        assert "mtp.layers.0.self_attn.q_proj.weight" in checkpoint.tensors


def test_published_configs_describe_a_vision_language_model(tmp_path: Path, qwen: dict[str, Any]) -> None:
    config = published_config("qwen3_5-0.8b")
    config["text_config"] = {**qwen, "tie_word_embeddings": False}
    config["vision_config"] |= {"hidden_size": 8, "intermediate_size": 16, "depth": 1, "out_hidden_size": 192}
    synthesize(config, tmp_path / "vl", include_visual=True)
    with open_checkpoint(tmp_path / "vl") as checkpoint:
        assert checkpoint.tensors["model.visual.merger.linear_fc2.weight"].shape == (192, 32)
        assert checkpoint.tensors["lm_head.weight"].shape == (40, 192)
        assert "model.safetensors.index.json" in {file.name for file in checkpoint.input_files}


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("shard_bytes", [None, 5000])
def test_rwkv_torch_and_safetensors_copies_hold_the_same_values(
    tmp_path: Path, dtype: Any, shard_bytes: int | None
) -> None:
    synthesize(RWKV, tmp_path / "torch", dtype=dtype, shard_bytes=shard_bytes)
    synthesize(RWKV, tmp_path / "converted", dtype=dtype, weight_format="safetensors")
    with open_checkpoint(tmp_path / "torch") as torch, open_checkpoint(tmp_path / "converted") as converted:
        assert torch.warnings == []
        assert {info.file.split("-")[0].split(".")[0] for info in torch.tensors.values()} == {"pytorch_model"}
        is_sharded = len({info.file for info in torch.tensors.values()}) > 1
        assert is_sharded == (shard_bytes is not None)
        assert set(torch.tensors) == set(converted.tensors)
        for name, info in torch.tensors.items():
            assert (info.dtype, info.shape) == (dtype, converted.tensors[name].shape)
            np.testing.assert_array_equal(torch.read(name), converted.read(name))


def test_the_same_arguments_give_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthesize(RWKV, tmp_path / name, seed=seed)
    first, same, other = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "abc")
    assert first == same
    assert first["pytorch_model.bin"] != other["pytorch_model.bin"]


def test_a_tensor_does_not_depend_on_what_else_is_written(tmp_path: Path) -> None:
    synthesize(RWKV, tmp_path / "two")
    synthesize({**RWKV, "num_hidden_layers": 3}, tmp_path / "three")
    with open_checkpoint(tmp_path / "two") as two, open_checkpoint(tmp_path / "three") as three:
        np.testing.assert_array_equal(two.read("rwkv.ln_out.bias"), three.read("rwkv.ln_out.bias"))
        assert not np.array_equal(two.read("rwkv.ln_out.bias"), two.read("rwkv.blocks.0.ln1.bias"))


def values_of(tensor: RandomTensor) -> np.ndarray[Any, Any]:
    blocks = b"".join(stream_values(tensor, "F32", 3))
    return np.frombuffer(blocks, np.float32).reshape(tensor.shape)


def test_matrices_have_full_rank_and_the_scale_that_keeps_an_input() -> None:
    weight = values_of(RandomTensor("w", (300, 256), Normal(256**-0.5)))
    assert np.linalg.matrix_rank(weight) == 256
    assert weight.std() == pytest.approx(256**-0.5, rel=0.02)
    assert abs(weight.mean()) < 0.001


def test_values_are_spread_as_asked() -> None:
    values = values_of(RandomTensor("decay", (100_003,), Uniform(-5, 3)))
    assert values.min() == pytest.approx(-5, abs=0.01)
    assert values.max() == pytest.approx(3, abs=0.01)
    np.testing.assert_allclose(np.histogram(values, bins=8)[0], 100_003 / 8, rtol=0.05)


def test_decays_and_gates_lie_as_in_the_trained_models(
    tmp_path: Path, qwen_checkpoint: Path, rwkv_checkpoint: Path
) -> None:
    for folder in (qwen_checkpoint, rwkv_checkpoint):
        with open_checkpoint(folder) as trained:
            synthesize(trained.config, tmp_path / folder.name)
            with open_checkpoint(tmp_path / folder.name) as made:
                for name in trained.tensors:
                    if name.endswith(("A_log", "dt_bias", "time_decay", "time_first", "time_mix_key")):
                        low, high = trained.read(name).min(), trained.read(name).max()
                        assert made.read(name).min() < low + 3, name
                        assert made.read(name).max() > high - 2.5, name
                        assert made.read(name).min() > -5.2 and made.read(name).max() < 3.2, name


def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    tensor = RandomTensor("large", (5000, 4001), Normal(1.0))
    next(stream_values(RandomTensor("warm", (1,), Normal(1.0)), "BF16", 0))
    tracemalloc.start()
    writers.write_safetensors(tmp_path / "large.safetensors", [tensor], "BF16", 0, lambda _: None)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 10 * 2**20 < tensor.element_count * 2


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    written = synthesize(RWKV, tmp_path / "new", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (written.tensor_bytes, written.tensor_bytes)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


@pytest.mark.parametrize(
    ("shape", "code"),
    [
        ("qwen3_5-0.9b", "unknown_shape"),
        ({"model_type": "llama"}, "bad_shape_config"),
        ({"model_type": "rwkv", "hidden_size": 4}, "bad_shape_config"),
        ({"model_type": "qwen3_5"}, "bad_shape_config"),
    ],
)
def test_shapes_that_are_none(tmp_path: Path, shape: Any, code: str) -> None:
    with pytest.raises(RowpackError) as caught:
        synthesize(shape, tmp_path / "out")
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []


def test_a_near_shape_name_is_suggested() -> None:
    with pytest.raises(RowpackError, match=r"Did you mean qwen3_5-0\.8b"):
        published_config("Qwen3.5-0.8B")


def test_only_a_new_or_empty_folder_is_written(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for target in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(RowpackError) as caught:
            synthesize(RWKV, target)
        assert caught.value.code == "output_not_empty"
    (tmp_path / "empty").mkdir()
    synthesize(RWKV, tmp_path / "empty")
    synthesize(RWKV, tmp_path / "new" / "deep")


def test_a_checkpoint_larger_than_the_disk_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(RowpackError) as caught:
        synthesize({**RWKV, "vocab_size": 10**15}, tmp_path / "huge")
    assert caught.value.code == "disk_full"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "disk_full"), (errno.EIO, "output_write_failed")])
def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, "made up")

    monkeypatch.setattr(writers, "stream_values", fail)
    with pytest.raises(RowpackError) as caught:
        synthesize(RWKV, tmp_path / "out")
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []
