"""Two toy models that follow the engine contract, small enough to compute by hand in numpy.

Both carry a decaying sum ``s_t = s_{t-1}/2 + e_t`` of embeddings; the hybrid one also attends over a
key/value cache. Their prefill graphs compute all rows at once from a static table, as the real ones do,
so that chunked and token by token are two different computations that must agree.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from rowpack.bundle import BundleWriter
from rowpack_loaders.mapped_section import MappedSection
from rowpack_loaders.safetensors_header import build_header, parse_header

HIDDEN = 8
VOCAB = 40
PREFILL_ROWS = 64
PADDING_WIDTH = 8192
START = 0.25  # a start value other than zero, so that forgetting it shows

_CACHE_TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}


@dataclass(frozen=True)
class ToyModel:
    """What to build; ``padding_bytes`` adds a matrix that changes nothing, to make the file large."""

    attention: bool = True
    split: bool = True
    capacity: int = 256
    cache_dtype: str = "float32"
    padding_bytes: int = 0
    eos_ids: tuple[int, ...] = (0,)


HYBRID = ToyModel()
RECURRENT = ToyModel(attention=False)


def toy_weights(model: ToyModel) -> dict[str, npt.NDArray[np.float32]]:
    """Return the weights; values are such that greedy choices are far from ties."""
    generator = np.random.default_rng(7)
    weights = {
        "embedding.weight": generator.normal(size=(VOCAB, HIDDEN)).astype(np.float32),
        "head.weight": generator.normal(size=(VOCAB, HIDDEN)).astype(np.float32),
    }
    weights["head.weight"][0] *= 2  # so that id 0, a legal token like any other, wins now and then
    if model.padding_bytes:
        rows = model.padding_bytes // 4 // PADDING_WIDTH
        weights["padding.weight"] = np.ones((rows, PADDING_WIDTH), dtype=np.float32)
    return weights


def reference_logits(model: ToyModel, token_ids: list[int]) -> npt.NDArray[np.float64]:
    """Return the logits [vocab] after the last of ``token_ids``, row by row in float64."""
    weights = toy_weights(model)
    embedding, head = (weights[f"{name}.weight"].astype(np.float64) for name in ("embedding", "head"))
    state = np.full(HIDDEN, START)
    keys, values = [], []
    hidden = state
    for position, token_id in enumerate(token_ids):
        state = state / 2 + embedding[token_id]
        hidden = state
        if model.attention:
            keys.append(state + 0.01 * position)
            values.append(embedding[token_id])
            scores = np.array(keys) @ state
            share = np.exp(scores - scores.max())
            hidden = state + (share / share.sum()) @ np.array(values)
    logits: npt.NDArray[np.float64] = head @ hidden
    return logits


def reference_greedy(model: ToyModel, prompt: list[int], count: int) -> list[int]:
    """Return ``count`` greedy tokens after ``prompt``, each from the whole prefix."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(reference_logits(model, ids).argmax()))
    return ids[len(prompt) :]


def write_toy_bundle(path: Path, model: ToyModel, extra: dict[str, bytes] | None = None) -> Path:
    """Write ``model`` as a bundle; ``extra`` sections (a tokenizer, golden vectors) go where they belong."""
    weights = weights_section(model)
    manifest = toy_manifest(model)
    sections = {
        **(extra or {}),
        "engine.onnx": engine_onnx(model, rows=1),
        **({"prefill.onnx": engine_onnx(model, rows=None)} if model.split else {}),
        "weights.safetensors": weights,
    }
    if "tokenizer.json" in sections:
        manifest["tokenizer"] = {"sections": ["tokenizer.json"], "chat_template_section": None, "missing": False}
    if "golden.msgpack.zst" in sections:
        manifest["self_test"] = {
            "section": "golden.msgpack.zst",
            "cases": 1,
            "last_row_relative_tolerance": 1e-4,
        }
    with BundleWriter(path, family="toy", backend="ort") as writer:
        for name in sorted(sections, key=_place):
            writer.add_section(name, sections[name], media_type="application/octet-stream")
        writer.finish(manifest, {})
    return path


def weights_section(model: ToyModel) -> bytes:
    """Return the weights as a safetensors section."""
    weights = toy_weights(model)
    header = build_header((name, "F32", array.shape) for name, array in weights.items())
    return header + b"".join(array.tobytes() for array in weights.values())


def write_toy_parts(folder: Path, model: ToyModel, section: bytes | None = None) -> MappedSection:
    """Write the weights alone and return them mapped, for engines that are loaded without a bundle."""
    path = folder / "weights.safetensors"
    path.write_bytes(weights_section(model) if section is None else section)
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return MappedSection.of(path, file.fileno(), 0, memoryview(mapping))


def toy_manifest(model: ToyModel) -> dict[str, Any]:
    """Return the manifest without what the writer fills in."""
    engines = {"decode": _engine_entry(model, "engine.onnx", rows=1)}
    if model.split:
        engines["prefill"] = _engine_entry(model, "prefill.onnx", rows=None)
    return {
        "schema_version": "1.0",
        "required_features": [],
        "producer": {"name": "toy", "version": "1"},
        "model": {"id": "toy", "family": "toy", "precision": "fp32"},
        "decoder_engine_layout": "split" if model.split else "single",
        "engines": engines,
        "weights": {"section": "weights.safetensors"},
        "states": _state_entries(model),
        "limits": {"max_cache_length": model.capacity, "prefill_rows": PREFILL_ROWS},
        "tokens": {
            "vocab_size": VOCAB,
            "bos": None,
            "pad": None,
            "eos": [{"id": eos_id, "sources": ["config.json"]} for eos_id in model.eos_ids],
        },
        "tokenizer": {"sections": [], "chat_template_section": None, "missing": True},
        "self_test": None,
    }


def engine_onnx(model: ToyModel, *, rows: int | None) -> bytes:
    """Return the graph for one row (``rows=1``) or for any number up to PREFILL_ROWS (None), without weights."""
    size: int | str = "rows" if rows is None else rows
    work = _CACHE_TYPES[model.cache_dtype]
    distance = np.arange(PREFILL_ROWS)[:, None] - np.arange(PREFILL_ROWS)[None, :]
    table = np.where(distance >= 0, 0.5 ** np.maximum(distance, 0), 0).astype(np.float32)
    powers = (0.5 ** np.arange(1, PREFILL_ROWS + 1)).astype(np.float32)[:, None]
    constants = {
        "decay_table": table,
        "decay_powers": powers,
        "zero": np.array([0], dtype=np.int64),
        "zeros": np.array([0, 0], dtype=np.int64),
        "first_axis": np.array([0], dtype=np.int64),
        "both_axes": np.array([0, 1], dtype=np.int64),
        "minus_one": np.array(-1, dtype=np.int64),
        "position_scale": np.array(0.01, dtype=np.float32),
        "column": np.array([1], dtype=np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Gather", ["embedding.weight", "token_id"], ["embedded"]),
        node("Shape", ["token_id"], ["row_count"]),
        node("Concat", ["row_count", "row_count"], ["square"], axis=0),
        node("Slice", ["decay_table", "zeros", "square", "both_axes"], ["table"]),
        node("Slice", ["decay_powers", "zero", "row_count", "first_axis"], ["powers"]),
        node("MatMul", ["table", "embedded"], ["within"]),
        node("Mul", ["powers", "sum_state_0"], ["before"]),
        node("Add", ["within", "before"], ["sums"]),
        node("Gather", ["sums", "minus_one"], ["present_sum_0"], axis=0),
    ]
    hidden = "sums"
    if model.attention:
        nodes += [
            node("Cast", ["position_id"], ["positions"], to=TensorProto.FLOAT),
            node("Mul", ["positions", "position_scale"], ["scaled_positions"]),
            node("Unsqueeze", ["scaled_positions", "column"], ["position_column"]),
            node("Add", ["sums", "position_column"], ["keys"]),
            node("Cast", ["keys"], ["present_k_0"], to=work),
            node("Cast", ["embedded"], ["present_v_0"], to=work),
            node("Concat", ["cache_k_0", "present_k_0"], ["all_keys_stored"], axis=0),
            node("Concat", ["cache_v_0", "present_v_0"], ["all_values_stored"], axis=0),
            node("Cast", ["all_keys_stored"], ["all_keys"], to=TensorProto.FLOAT),
            node("Cast", ["all_values_stored"], ["all_values"], to=TensorProto.FLOAT),
            node("Transpose", ["all_keys"], ["key_columns"], perm=[1, 0]),
            node("MatMul", ["sums", "key_columns"], ["scores"]),
            node("Add", ["scores", "attention_mask"], ["masked_scores"]),
            node("Softmax", ["masked_scores"], ["shares"], axis=-1),
            node("MatMul", ["shares", "all_values"], ["attended"]),
            node("Add", ["sums", "attended"], ["hidden"]),
        ]
        hidden = "hidden"
    nodes += [
        node("Gather", [hidden, "minus_one"], ["last"], axis=0),
        node("MatMul", ["head.weight", "last"], ["last_logits"]),
        node("Unsqueeze", ["last_logits", "zero"], ["logits_plain"]),
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    weights = toy_weights(model)
    if "padding.weight" in weights:
        # Multiplied with in whole, then scaled to nothing: the weight is used and the answer is the same.
        initializers.append(numpy_helper.from_array(np.array(0, dtype=np.float32), "nothing"))
        initializers.append(numpy_helper.from_array(np.array([1, PADDING_WIDTH // HIDDEN]), "repeats"))
        nodes += [
            node("Unsqueeze", ["last", "zero"], ["last_row"]),
            node("Tile", ["last_row", "repeats"], ["wide_row"]),
            node("Gemm", ["wide_row", "padding.weight"], ["padding_row"], transB=1),
            node("ReduceSum", ["padding_row"], ["padding_sum"], keepdims=0),
            node("Mul", ["padding_sum", "nothing"], ["padding_nothing"]),
            node("Add", ["logits_plain", "padding_nothing"], ["logits"]),
        ]
    else:
        nodes.append(node("Identity", ["logits_plain"], ["logits"]))
    initializers += _external_initializers(model)
    entry = _engine_entry(model, "", rows=rows)
    types = {"int32": TensorProto.INT32, **_CACHE_TYPES}
    inputs, outputs = (
        [helper.make_tensor_value_info(t["name"], types[t["dtype"]], t["shape"]) for t in entry[kind]]
        for kind in ("inputs", "outputs")
    )
    graph = helper.make_graph(nodes, f"toy_{size}", inputs, outputs, initializers)
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    serialized: bytes = built.SerializeToString()
    return serialized


def _external_initializers(model: ToyModel) -> list[onnx.TensorProto]:
    section = weights_section(model)
    tensors = []
    for name, entry in parse_header(section, where="toy").items():
        tensor = onnx.TensorProto(
            name=name,
            data_type=TensorProto.FLOAT,
            dims=entry.shape,
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in (
            ("location", "weights.safetensors"),
            ("offset", str(entry.offset_bytes)),
            ("length", str(entry.byte_count)),
        ):
            tensor.external_data.add(key=key, value=value)
        tensors.append(tensor)
    return tensors


def _engine_entry(model: ToyModel, section: str, *, rows: int | None) -> dict[str, Any]:
    size: int | str = "rows" if rows is None else rows
    columns = "cache_rows+rows" if rows is None else "cache_rows+1"

    def tensor(name: str, dtype: str, shape: list[int | str], role: str) -> dict[str, Any]:
        return {"name": name, "dtype": dtype, "shape": shape, "role": role}

    inputs = [tensor("token_id", "int32", [size], "token_id")]
    outputs = [tensor("logits", "float32", [1, VOCAB], "logits")]
    if model.attention:
        inputs.append(tensor("position_id", "int32", [size], "position_id"))
        inputs.append(tensor("attention_mask", "float32", [size, columns], "attention_mask"))
    inputs.append(tensor("sum_state_0", "float32", [HIDDEN], "state"))
    outputs.append(tensor("present_sum_0", "float32", [HIDDEN], "state"))
    if model.attention:
        for kind in ("k", "v"):
            inputs.append(tensor(f"cache_{kind}_0", model.cache_dtype, ["cache_rows", HIDDEN], "state"))
            outputs.append(tensor(f"present_{kind}_0", model.cache_dtype, [size, HIDDEN], "state"))
    return {
        "section": section,
        "backend": "ort",
        "backend_version": "1",
        "rows": {"min": 1, "opt": 1, "max": PREFILL_ROWS if rows is None else 1},
        "resident_bytes": {"weights": 4 * 2 * VOCAB * HIDDEN + model.padding_bytes, "context": None},
        "inputs": inputs,
        "outputs": outputs,
    }


def _state_entries(model: ToyModel) -> list[dict[str, Any]]:
    def state(role: str, name: str, output: str, shape: list[int], **rest: Any) -> dict[str, Any]:
        return {"role": role, "layer": 0, "input": name, "output": output, "shape": shape, **rest}

    entries = [
        state(
            "recurrent",
            "sum_state_0",
            "present_sum_0",
            [HIDDEN],
            dtype="float32",
            layout="vector",
            initial_value=START,
            update="replace",
            rewindable=False,
        )
    ]
    if model.attention:
        entries += [
            state(
                role,
                f"cache_{letter}_0",
                f"present_{letter}_0",
                [model.capacity, HIDDEN],
                dtype=model.cache_dtype,
                layout="row_per_position",
                initial_value=0.0,
                update="append_rows",
                rewindable=True,
            )
            for role, letter in (("key", "k"), ("value", "v"))
        ]
    return entries


def _place(name: str) -> tuple[int, str]:
    order = ["engine.onnx", "prefill.onnx", "weights.safetensors", "golden.msgpack.zst"]
    return (order.index(name) + 1 if name in order else 0, name)
