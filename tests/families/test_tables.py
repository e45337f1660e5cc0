"""Weight and state tables: the tensors they ask for, what they store, and the sizes that follow."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from jsonschema import Draft202012Validator
from small_configs import QWEN3_5, RWKV

from rowpack.checkpoint import check_tensors, open_checkpoint
from rowpack.families import find_family
from rowpack.families.declaration import ModelDescription, RuntimeFacts, WeightSpec
from rowpack.synthesis.published_shapes import PUBLISHED_SHAPES, published_config
from rowpack.synthesis.synthesize import text_tensors_of
from rowpack.weights import plan_weights, read_weights

SCHEMAS = Path(__file__).resolve().parents[2] / "schema"

# Written out from the published tables, not computed.
PARAMETERS = {
    "qwen3_5-0.8b": 752_393_024,
    "qwen3_5-2b": 1_881_825_088,
    "qwen3_5-4b": 4_205_751_296,
    "qwen3_5-9b": 8_953_803_264,
}


def describe(config: dict[str, Any], precision: str = "fp32", max_cache_length: int = 128) -> ModelDescription:
    names = [tensor.name for tensor in text_tensors_of(config)]
    return find_family(config).describe(config, names, precision, max_cache_length)


def spec(model: ModelDescription, name: str) -> WeightSpec:
    return next(weight for weight in model.weights if weight.name == name)


@pytest.mark.parametrize("shape", PUBLISHED_SHAPES)
def test_every_tensor_of_a_published_shape_is_asked_for_once(shape: str) -> None:
    config = published_config(shape)
    published = {tensor.name: tensor.shape for tensor in text_tensors_of(config)}
    model = describe(config)
    assert model.required_tensors == published
    sources = [source.tensor for weight in model.weights for source in weight.sources]
    assert len(sources) == len(set(sources))
    assert model.parameter_count == sum(math.prod(shape) for shape in published.values())
    assert model.parameter_count == PARAMETERS.get(shape, model.parameter_count)


@pytest.mark.parametrize("shipped", ["qwen_checkpoint", "rwkv_checkpoint"])
def test_the_shipped_checkpoints_have_what_is_asked_for(shipped: str, request: pytest.FixtureRequest) -> None:
    with open_checkpoint(request.getfixturevalue(shipped)) as checkpoint:
        family = find_family(checkpoint.config)
        model = family.describe(checkpoint.config, list(checkpoint.tensors), "fp32", 128)
        required, ignored = model.required_tensors, model.ignored_prefixes
        assert check_tensors(checkpoint, required, ignored_prefixes=ignored) == []
        missing = check_tensors(checkpoint, {**required, "model.extra.weight": (2, 2)}, ignored_prefixes=ignored)
        assert [problem.code for problem in missing] == ["tensor_missing"]


def test_vision_and_token_prediction_tensors_are_passed_over(qwen_checkpoint: Path) -> None:
    model = describe(published_config("qwen3_5-0.8b"))
    for name in ("model.visual.patch_embed.proj.weight", "mtp.layers.0.self_attn.q_proj.weight"):
        assert name.startswith(model.ignored_prefixes)
    assert not "model.language_model.norm.weight".startswith(model.ignored_prefixes)


@pytest.mark.parametrize("config", [QWEN3_5, RWKV], ids=["qwen3_5", "rwkv"])
def test_names_are_unique_and_say_where_a_tensor_belongs(config: dict[str, Any]) -> None:
    names = [weight.name for weight in describe(config).weights]
    assert len(set(names)) == len(names)
    around = {"embed_tokens.weight", "embeddings.weight", "lm_head.weight", "head.weight"}
    around |= {f"{norm}.{part}" for norm in ("final_norm", "pre_norm") for part in ("weight", "bias")}
    assert all(name in around or name.startswith("layers.") for name in names)


@pytest.mark.parametrize(("precision", "work"), [("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")])
def test_only_matrices_are_in_the_work_dtype(precision: str, work: str) -> None:
    """Norms, gates with their projections, decays, convolution and mixing factors are float32 always."""
    for config in (QWEN3_5, RWKV):
        for weight in describe(config, precision).weights:
            is_gate = weight.name.endswith("in_proj_ba.weight")
            is_matrix = len(weight.shape) == 2 and min(weight.shape) > 4 and not is_gate
            assert weight.dtype == (work if is_matrix else "float32"), weight.name


class Tensors:
    """A checkpoint of tensors given by name."""

    def __init__(self, model: ModelDescription, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.values = {
            name: rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
            for name, shape in model.required_tensors.items()
        }

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        return self.values[name][start:stop]


def test_values_of_qwen3_5() -> None:
    model = describe(QWEN3_5)
    tensors = Tensors(model)
    found = read_weights(plan_weights(model.weights), tensors)
    given = {name: value.astype(np.float32) for name, value in tensors.values.items()}

    def same(name: str, expected: np.ndarray[Any, Any]) -> None:
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], expected, err_msg=name)

    linear, full = "model.layers.0.linear_attn", "model.layers.1.self_attn"
    # Zero-centred norms multiply by 1 + weight, and the sum is formed in float32, not in the stored bfloat16.
    same("layers.0.input_norm.weight", 1 + given["model.layers.0.input_layernorm.weight"])
    same("layers.0.post_norm.weight", 1 + given["model.layers.0.post_attention_layernorm.weight"])
    same("layers.1.attention.q_norm.weight", 1 + given[f"{full}.q_norm.weight"])
    same("layers.1.attention.k_norm.weight", 1 + given[f"{full}.k_norm.weight"])
    same("final_norm.weight", 1 + given["model.norm.weight"])
    narrow = tensors.values["model.norm.weight"]
    assert (found["final_norm.weight"] != (narrow + np.ones_like(narrow)).astype(np.float32)).any()
    # The gated norm of the linear layers is the exception.
    same("layers.0.deltanet.norm.weight", given[f"{linear}.norm.weight"])
    same("layers.0.deltanet.dt_bias", given[f"{linear}.dt_bias"])
    same("layers.0.deltanet.decay_rate", -np.exp(given[f"{linear}.A_log"].astype(np.float64)).astype(np.float32))
    same("layers.0.deltanet.conv.weight", given[f"{linear}.conv1d.weight"][:, 0, :])
    for name, parts in {
        "layers.0.deltanet.in_proj_qkvz.weight": [f"{linear}.in_proj_qkv.weight", f"{linear}.in_proj_z.weight"],
        "layers.0.deltanet.in_proj_ba.weight": [f"{linear}.in_proj_b.weight", f"{linear}.in_proj_a.weight"],
        "layers.1.attention.qkv_proj.weight": [f"{full}.{letter}_proj.weight" for letter in "qkv"],
        "layers.0.mlp.gate_up_proj.weight": [f"model.layers.0.mlp.{word}_proj.weight" for word in ("gate", "up")],
        "lm_head.weight": ["lm_head.weight"],
        "embed_tokens.weight": ["model.embed_tokens.weight"],
    }.items():
        same(name, np.concatenate([given[part] for part in parts]))


def test_values_of_rwkv() -> None:
    """Rescaled every two blocks: the output projections of blocks 2 and 3 are halved, of block 4 quartered."""
    model = describe(RWKV)
    tensors = Tensors(model)
    found = read_weights(plan_weights(model.weights), tensors)
    given = {name: value.astype(np.float32) for name, value in tensors.values.items()}
    for block, divisor in enumerate((1, 1, 2, 2, 4)):
        attention, feed_forward = f"rwkv.blocks.{block}.attention", f"rwkv.blocks.{block}.feed_forward"
        time, channel = f"layers.{block}.time_mixing", f"layers.{block}.channel_mixing"
        expected = {
            f"{time}.output.weight": given[f"{attention}.output.weight"] / divisor,
            f"{channel}.value.weight": given[f"{feed_forward}.value.weight"] / divisor,
            f"{time}.key.weight": given[f"{attention}.key.weight"],
            f"{channel}.key.weight": given[f"{feed_forward}.key.weight"],
            f"{channel}.receptance.weight": given[f"{feed_forward}.receptance.weight"],
            f"{time}.decay": -np.exp(given[f"{attention}.time_decay"].astype(np.float64)).astype(np.float32),
            f"{time}.bonus": given[f"{attention}.time_first"],
            f"{time}.mix_key": given[f"{attention}.time_mix_key"].reshape(1, -1),
            f"{channel}.mix_receptance": given[f"{feed_forward}.time_mix_receptance"].reshape(1, -1),
        }
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, err_msg=name)
    np.testing.assert_array_equal(found["pre_norm.bias"], given["rwkv.blocks.0.pre_ln.bias"])


def test_a_tied_head_is_not_stored_again() -> None:
    model = describe({**QWEN3_5, "tie_word_embeddings": True})
    assert [weight.name for weight in model.weights if 96 in weight.shape] == ["embed_tokens.weight"]
    model = describe({**RWKV, "tie_word_embeddings": True})
    assert [weight.name for weight in model.weights if 96 in weight.shape] == ["embeddings.weight"]


def test_states_of_qwen3_5() -> None:
    model = describe(QWEN3_5, "fp16", max_cache_length=77)
    states = {state.input_name: state for state in model.states}
    assert list(states) == [
        *("conv_state_0", "ssm_state_0", "cache_k_0", "cache_v_0"),
        *("conv_state_1", "ssm_state_1", "cache_k_1", "cache_v_1"),
    ]
    assert states["conv_state_1"].as_json() == {
        "role": "conv",
        "layer": 2,
        "input": "conv_state_1",
        "output": "present_conv_1",
        "dtype": "float32",
        "shape": [2 * 32 + 144, 4],
        "layout": states["conv_state_1"].layout,
        "initial_value": 0.0,
        "update": "replace",
        "rewindable": False,
    }
    assert (states["ssm_state_0"].dtype, states["ssm_state_0"].shape) == ("float32", (6, 16, 24))
    assert (states["cache_k_1"].dtype, states["cache_k_1"].shape) == ("float16", (77, 64))
    assert (states["cache_k_1"].role, states["cache_k_1"].layer) == ("key", 3)
    assert (states["cache_v_1"].update, states["cache_v_1"].rewindable) == ("append_rows", True)
    assert model.key_value_bytes_per_token == 2 * 2 * 64 * 2
    assert model.state_bytes == 2 * 4 * (208 * 4 + 6 * 16 * 24)


def test_states_of_rwkv() -> None:
    model = describe(RWKV, "fp16")
    assert [state.input_name for state in model.states[:5]] == [
        *("attn_state_0", "ff_state_0", "num_state_0", "den_state_0", "max_state_0")
    ]
    roles = {state.input_name.removesuffix("_state_3"): state for state in model.states if state.layer == 3}
    assert {word: state.role for word, state in roles.items()} == {
        "attn": "shift",
        "ff": "shift",
        "num": "wkv_num",
        "den": "wkv_den",
        "max": "wkv_max",
    }
    assert {word: state.initial_value for word, state in roles.items() if state.initial_value} == {"max": -1e38}
    assert {(state.dtype, state.shape, state.update) for state in model.states} == {("float32", (1, 48), "replace")}
    assert (model.state_bytes, model.key_value_bytes_per_token) == (5 * 5 * 48 * 4, 0)


def test_state_sizes_of_the_published_0_8b() -> None:
    """18 linear layers of 16 × 128 × 128 and 6144 × 4 float32; 6 attention layers of 2 × 256 keys and values."""
    model = describe(published_config("qwen3_5-0.8b"), "bf16", 4096)
    assert model.state_bytes == 18 * 4 * (16 * 128 * 128 + 6144 * 4)
    assert model.key_value_bytes_per_token == 6 * 2 * 512 * 2


@pytest.mark.parametrize(("config", "key_count"), [(QWEN3_5, 20), (RWKV, 14)], ids=["qwen3_5", "rwkv"])
def test_runtime_json_has_exactly_the_keys_that_older_loaders_count(config: dict[str, Any], key_count: int) -> None:
    model = describe(config)
    facts = RuntimeFacts(-1, 2, 0, "fp32", 128, "single")
    document = find_family(config).runtime_json(model, facts)
    assert len(document) == key_count
    assert json.loads(json.dumps(document)) == document
    schema = json.loads((SCHEMAS / f"runtime.{model.family}.schema.json").read_text("utf-8"))
    assert sorted(document) == sorted(schema["required"])
    Draft202012Validator(schema).validate(document)


def test_runtime_json_of_qwen3_5_counts_layers_of_each_kind() -> None:
    facts = RuntimeFacts(-1, 2, 0, "fp16", 77, "split")
    document = find_family(QWEN3_5).runtime_json(describe(QWEN3_5), facts)
    expected = {
        "layer_types": ["deltanet", "attention"] * 2,
        "num_mamba_layers": 2,
        "num_attention_layers": 2,
        "d_inner": 144,
        "mamba_d_state": 16,
        "mamba_head_dim": 24,
        "mamba_nheads": 6,
        "conv_dim": 208,
        "max_cache_length": 77,
        "decoder_engine_layout": "split",
    }
    assert {key: document[key] for key in expected} == expected
