"""The smallest engines that follow the contract and really run: one convolution state, one key/value cache.

Two dozen nodes, one matrix of 16 token ids by 4 and one of 2 by 4, so that a bundle of them is a few KB, every byte of
which a person can look at, and every token of which can be computed by hand.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

from rowpack_loaders.safetensors_header import build_header, parse_header

VOCAB_SIZE = 16
HIDDEN = 4
CONV_CHANNELS = 6
CONV_COLUMNS = 4
KEY_VALUE_WIDTH = 2
CACHE_ROWS = 32
PREFILL_ROWS = 16
WEIGHTS = "weights.safetensors"

Array = npt.NDArray[np.float64]


@cache
def weight_values() -> dict[str, npt.NDArray[np.float32]]:
    """Return the two weights: small multiples of 1/8, which every format holds exactly."""
    generator = np.random.default_rng(11)
    shapes = {"embed.weight": (VOCAB_SIZE, HIDDEN), "kv.weight": (KEY_VALUE_WIDTH, HIDDEN)}
    return {name: (generator.integers(-16, 17, shape) / 8).astype("<f4") for name, shape in shapes.items()}


def weights_section() -> bytes:
    """Return the weights as a safetensors section."""
    values = weight_values()
    header = build_header((name, "F32", array.shape) for name, array in values.items())
    return header + b"".join(array.tobytes() for array in values.values())


def engine_section(use: str, *, location: str = WEIGHTS) -> bytes:
    """Return the graph of the ``decode`` or the ``prefill`` engine, its weights in the file ``location``."""
    rows: int | str = 1 if use == "decode" else "rows"
    columns = "cache_rows+1" if use == "decode" else "cache_rows+rows"
    node = helper.make_node
    nodes = [
        node("Gather", ["embed.weight", "token_id"], ["embedded"]),
        node("Transpose", ["embedded"], ["columns"]),
        # The convolution's channels are the embedding and once more its first half.
        node("Gather", ["columns", "channels"], ["channel_columns"]),
        node("Concat", ["conv_state_0", "channel_columns"], ["all_columns"], axis=1),
        node("Slice", ["all_columns", "minus_four", "end", "one"], ["present_conv_0"]),
        node("Slice", ["all_columns", "one", "end", "one"], ["window_columns"]),
        node("Unsqueeze", ["window_columns", "zero"], ["window_batch"]),
        node("AveragePool", ["window_batch"], ["averages"], kernel_shape=[CONV_COLUMNS]),
        node("Squeeze", ["averages", "zero"], ["average_columns"]),
        node("Slice", ["average_columns", "zero", "four", "zero"], ["hidden_columns"]),
        node("Transpose", ["hidden_columns"], ["averaged"]),
        node("Add", ["embedded", "averaged"], ["hidden"]),
        node("Gemm", ["hidden", "kv.weight"], ["present_k_0"], transB=1),
        node("Gemm", ["embedded", "kv.weight"], ["present_v_0"], transB=1),
        node("Concat", ["cache_k_0", "present_k_0"], ["keys"], axis=0),
        node("Concat", ["cache_v_0", "present_v_0"], ["values"], axis=0),
        node("Gemm", ["present_k_0", "keys"], ["scores"], transB=1),
        node("Add", ["scores", "attention_mask"], ["masked"]),
        node("Softmax", ["masked"], ["shares"], axis=-1),
        node("MatMul", ["shares", "values"], ["attended"]),
        node("MatMul", ["attended", "kv.weight"], ["attended_hidden"]),
        node("Add", ["hidden", "attended_hidden"], ["last_hidden"]),
        node("Slice", ["last_hidden", "minus_one", "end", "zero"], ["last_row"]),
        node("Gemm", ["last_row", "embed.weight"], ["logits"], transB=1),
    ]
    numbers = {"zero": 0, "one": 1, "four": HIDDEN, "minus_one": -1, "minus_four": -CONV_COLUMNS, "end": 2**31 - 1}
    constants = [numpy_helper.from_array(np.array([value], np.int64), name) for name, value in numbers.items()]
    constants.append(numpy_helper.from_array(np.array([0, 1, 2, 3, 0, 1], np.int64), "channels"))
    conv, cache = [CONV_CHANNELS, CONV_COLUMNS], ["cache_rows", KEY_VALUE_WIDTH]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        f"{use} graph",
        [
            value("token_id", TensorProto.INT32, [rows]),
            value("position_id", TensorProto.INT32, [rows]),
            value("attention_mask", TensorProto.FLOAT, [rows, columns]),
            value("conv_state_0", TensorProto.FLOAT, conv),
            value("cache_k_0", TensorProto.FLOAT, cache),
            value("cache_v_0", TensorProto.FLOAT, cache),
        ],
        [
            value("logits", TensorProto.FLOAT, [1, VOCAB_SIZE]),
            value("present_conv_0", TensorProto.FLOAT, conv),
            value("present_k_0", TensorProto.FLOAT, [rows, KEY_VALUE_WIDTH]),
            value("present_v_0", TensorProto.FLOAT, [rows, KEY_VALUE_WIDTH]),
        ],
        [*_weight_references(location), *constants],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10, producer_name="tests")
    serialized: bytes = model.SerializeToString(deterministic=True)
    return serialized


def reference_logits(token_ids: list[int]) -> Array:
    """Return the logits [vocab] after the last of ``token_ids``, computed row by row in float64."""
    embed, kv = (weight_values()[name].astype(np.float64) for name in ("embed.weight", "kv.weight"))
    conv = np.zeros((CONV_CHANNELS, CONV_COLUMNS))
    keys: list[Array] = []
    values: list[Array] = []
    logits = np.zeros(VOCAB_SIZE)
    for token_id in token_ids:
        row = embed[token_id]
        conv = np.concatenate([conv[:, 1:], np.concatenate([row, row[:2]])[:, None]], axis=1)
        hidden = row + conv[:HIDDEN].mean(axis=1)
        keys.append(kv @ hidden)
        values.append(kv @ row)
        scores = np.array(keys) @ keys[-1]
        shares = np.exp(scores - scores.max())
        logits = embed @ (hidden + (shares / shares.sum()) @ np.array(values) @ kv)
    return logits


def golden_case(prompt_ids: list[int], count: int) -> dict[str, Any]:
    """Return one golden case: ``count`` greedy tokens after the prompt, by the reference."""
    ids = list(prompt_ids)
    gaps = []
    for _ in range(count):
        logits = reference_logits(ids)
        first, second = np.argsort(-logits)[:2]
        gaps.append(float(logits[first] - logits[second]))
        ids.append(int(first))
    last_row = reference_logits(prompt_ids)
    top = [int(token_id) for token_id in np.argsort(-last_row)[:4]]
    return {
        "kind": "text",
        "prompt_ids": prompt_ids,
        "greedy_ids": ids[len(prompt_ids) :],
        "last_row_top": [[token_id, round(float(last_row[token_id]), 4)] for token_id in top],
        "smallest_top2_gap": round(min(gaps), 4),
    }


def _weight_references(location: str) -> list[TensorProto]:
    tensors = []
    for name, entry in parse_header(weights_section(), where=WEIGHTS).items():
        tensor = TensorProto(
            name=name, data_type=TensorProto.FLOAT, dims=entry.shape, data_location=TensorProto.EXTERNAL
        )
        for key, fact in (("location", location), ("offset", entry.offset_bytes), ("length", entry.byte_count)):
            tensor.external_data.add(key=key, value=str(fact))
        tensors.append(tensor)
    return tensors
