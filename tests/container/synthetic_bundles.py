"""Build small bundles for tests: whole, valid and runnable, with the engines of ``tiny_engines``.

One convolution state and one key/value cache, so that both kinds of state update occur. Everything is kept
in plain dictionaries that a test may bend before the bundle is written.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import zstandard
from tiny_engines import (
    CACHE_ROWS,
    CONV_CHANNELS,
    CONV_COLUMNS,
    KEY_VALUE_WIDTH,
    PREFILL_ROWS,
    VOCAB_SIZE,
    engine_section,
    golden_case,
    weights_section,
)

from rowpack.bundle import BundleWriter, FinishedBundle
from rowpack_loaders.digests import canonical_json

CONV_SHAPE = [CONV_CHANNELS, CONV_COLUMNS]
WEIGHT_BYTES = 288
FROM_SECTION = "0" * 64
"""Stands for the digest of an engine's graph until the bundle is written."""


def tensor(name: str, dtype: str, shape: list[int | str], role: str) -> dict[str, Any]:
    """Return an engine tensor of a manifest."""
    return {"name": name, "dtype": dtype, "shape": shape, "role": role}


def engine(use: str) -> dict[str, Any]:
    """Return the manifest's record of the decode or the prefill engine."""
    rows: int | str = 1 if use == "decode" else "rows"
    columns = "cache_rows+1" if use == "decode" else "cache_rows+rows"
    cache: list[int | str] = ["cache_rows", KEY_VALUE_WIDTH]
    return {
        "section": "engine.onnx" if use == "decode" else "prefill.onnx",
        "backend": "ort",
        "backend_version": "1.32.0",
        "requires": [],
        "lowering": "plain",
        "target": {"os": ["any"], "arch": ["any"], "cpu_features": [], "sm": [], "minimum_driver": None},
        "opset": 20,
        "ir_version": 10,
        "rows": {"min": 1, "opt": 1, "max": 1} if use == "decode" else {"min": 1, "opt": 8, "max": PREFILL_ROWS},
        "builder_flags": {},
        "onnx_sha256": FROM_SECTION,
        "resident_bytes": {"weights": WEIGHT_BYTES, "context": None},
        "inputs": [
            tensor("token_id", "int32", [rows], "token_id"),
            tensor("position_id", "int32", [rows], "position_id"),
            tensor("attention_mask", "float32", [rows, columns], "attention_mask"),
            tensor("conv_state_0", "float32", [*CONV_SHAPE], "state"),
            tensor("cache_k_0", "float32", cache, "state"),
            tensor("cache_v_0", "float32", [*cache], "state"),
        ],
        "outputs": [
            tensor("logits", "float32", [1, VOCAB_SIZE], "logits"),
            tensor("present_conv_0", "float32", [*CONV_SHAPE], "state"),
            tensor("present_k_0", "float32", [rows, KEY_VALUE_WIDTH], "state"),
            tensor("present_v_0", "float32", [rows, KEY_VALUE_WIDTH], "state"),
        ],
    }


def state(role: str, layer: int, name: str, output: str, shape: list[int], update: str) -> dict[str, Any]:
    """Return an entry of the state table."""
    appended = update == "append_rows"
    return {
        "role": role,
        "layer": layer,
        "input": name,
        "output": output,
        "dtype": "float32",
        "shape": shape,
        "layout": "row_per_position" if appended else "channel_major_oldest_first",
        "initial_value": 0.0,
        "update": update,
        "rewindable": appended,
    }


def manifest() -> dict[str, Any]:
    """Return a valid manifest of a split bundle, without what the writer fills in."""
    cache = [CACHE_ROWS, KEY_VALUE_WIDTH]
    return {
        "schema_version": "1.0",
        "required_features": [],
        "producer": {"name": "rowpack", "version": "0.1.0"},
        "model": {
            "id": "tiny",
            "revision": None,
            "family": "qwen3_5",
            "architecture": "Qwen3_5ForCausalLM",
            "parameter_count": WEIGHT_BYTES // 4,
            "precision": "fp32",
            "quantization": None,
            "hyper_parameters": {"vocab_size": VOCAB_SIZE, "hidden_size": 4, "layer_types": ["deltanet", "attention"]},
            "inputs": [{"file": "config.json", "length": 3, "sha256": "1" * 64}],
        },
        "decoder_engine_layout": "split",
        "layout_decision": {
            "requested": "auto",
            "layout": "split",
            "reason": "fits",
            "override": False,
            "copies": 1,
            "weight_bytes": WEIGHT_BYTES,
            "state_bytes": 96,
            "key_value_bytes_per_token": 16,
            "capacity_bytes": 2**30,
            "capacity_source": "target_memory",
            "budget_percent": 80,
            "budget_bytes": 2**30 * 80 // 100,
        },
        "engines": {"decode": engine("decode"), "prefill": engine("prefill")},
        "weights": {"section": "weights.safetensors", "tensor_count": 2, "tensor_bytes": WEIGHT_BYTES},
        "states": [
            state("conv", 0, "conv_state_0", "present_conv_0", [*CONV_SHAPE], "replace"),
            state("key", 1, "cache_k_0", "present_k_0", cache, "append_rows"),
            state("value", 1, "cache_v_0", "present_v_0", [*cache], "append_rows"),
        ],
        "limits": {"max_cache_length": CACHE_ROWS, "prefill_rows": PREFILL_ROWS, "max_position_embeddings": 64},
        "tokens": {
            "vocab_size": VOCAB_SIZE,
            "bos": None,
            "pad": {"id": 0, "sources": ["config.json"]},
            "eos": [{"id": 2, "sources": ["config.json", "generation_config.json"]}],
        },
        "tokenizer": {"sections": ["tokenizer.json"], "chat_template_section": None, "missing": False},
        "runtime_json": {"section": "runtime.json", "decoder_engine_layout": "single"},
        "self_test": {"section": "golden.msgpack.zst", "cases": 1, "last_row_relative_tolerance": 0.0001},
    }


def runtime_json() -> dict[str, Any]:
    """Return the runtime.json that goes with :func:`manifest`."""
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 4,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "bos_token_id": -1,
        "eos_token_id": 2,
        "layer_types": ["deltanet", "attention"],
        "num_mamba_layers": 1,
        "num_attention_layers": 1,
        "d_inner": 2,
        "mamba_d_state": 2,
        "mamba_d_conv": 4,
        "mamba_nheads": 1,
        "mamba_head_dim": 2,
        "conv_dim": 6,
        "precision": "fp32",
        "max_cache_length": CACHE_ROWS,
        "decoder_engine_layout": "single",
    }


def tokenizer_json() -> dict[str, Any]:
    """Return a tokenizer of sixteen words."""
    vocabulary = {f"word{token_id}": token_id for token_id in range(VOCAB_SIZE)}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "word0"},
    }


def golden() -> dict[str, Any]:
    """Return golden vectors that go with :func:`manifest`."""
    return {
        "version": 1,
        "producer": {"name": "rowpack", "version": "0.1.0"},
        "cases": [golden_case([1, 2, 3], 2)],
    }


def pack_golden(value: object) -> bytes:
    """Return the stored form of golden vectors."""
    packed: bytes = msgpack.packb(value)
    stored: bytes = zstandard.ZstdCompressor().compress(packed)
    return stored


@dataclass
class BundleParts:
    """What a bundle is written from; a test bends it before :meth:`write`."""

    family: str = "qwen3_5"
    backend: str = "ort"
    manifest: dict[str, Any] = field(default_factory=manifest)
    runtime_json: dict[str, Any] = field(default_factory=runtime_json)
    golden: Any = field(default_factory=golden)
    sections: dict[str, bytes] = field(default_factory=dict)
    without: set[str] = field(default_factory=set)
    declared: dict[str, dict[str, Any]] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=lambda: {"builder": "tests"})

    def contents(self) -> dict[str, bytes]:
        """Return the sections in their order."""
        contents = {
            "runtime.json": json.dumps(self.runtime_json).encode(),
            "tokenizer.json": json.dumps(tokenizer_json()).encode(),
            "engine.onnx": engine_section("decode"),
            "prefill.onnx": engine_section("prefill"),
            "weights.safetensors": weights_section(),
            "golden.msgpack.zst": pack_golden(self.golden),
        }
        contents |= self.sections
        from rowpack_loaders.section_names import section_order

        return {name: contents[name] for name in sorted(contents, key=section_order) if name not in self.without}

    def write(self, path: Path) -> FinishedBundle:
        """Write the bundle with the real writer."""
        with BundleWriter(path, family=self.family, backend=self.backend, manifest_reserve_bytes=16384) as writer:
            contents = self.contents()
            for name, data in contents.items():
                options: dict[str, Any] = {"media_type": "application/octet-stream", "required": True}
                options["encoding"] = "zstd" if name.endswith(".zst") else "raw"
                options |= self.declared.get(name, {})
                writer.add_section(name, data, **options)
            return writer.finish(with_graph_digests(self.manifest, contents), self.provenance)


def with_graph_digests(manifest: dict[str, Any], contents: dict[str, bytes]) -> dict[str, Any]:
    """Return the manifest with the digest of each engine's graph, where a test has not put another there."""
    complete = deepcopy(manifest)
    for record in complete["engines"].values():
        if record["onnx_sha256"] == FROM_SECTION and record["section"] in contents:
            record["onnx_sha256"] = hashlib.sha256(contents[record["section"]]).hexdigest()
    return complete


def single_parts() -> BundleParts:
    """Return the parts of a valid single bundle."""
    parts = BundleParts(without={"prefill.onnx"})
    del parts.manifest["engines"]["prefill"]
    parts.manifest["decoder_engine_layout"] = "single"
    parts.manifest["layout_decision"]["layout"] = "single"
    return parts


def container_bytes(header: object, payload: bytes = b"", *, pad_to: int | None = None) -> bytes:
    """Return a container made by hand from the byte rules: any header, any payload."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    if pad_to is not None:
        text = text.ljust(pad_to - 16, b" ")
    return bytes.fromhex("42554E444C450100") + struct.pack("<Q", len(text)) + text + payload


def header_of(sections: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a valid header with ``sections``, and ``changes`` to its other keys."""
    header = {"format": 1, "family": "qwen3_5", "task": "text_generation", "backend": "ort", "sections": sections}
    return {**header, **changes}


def rewrite_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a written bundle in place, as somebody with a hex editor might.

    The new text must fit the space up to the next section; the header follows, the trailer is cut off.
    """
    data = bytearray(path.read_bytes())
    header_length = struct.unpack_from("<Q", data, 8)[0]
    header = json.loads(data[16 : 16 + header_length])
    start = 16 + header_length
    place = header["sections"]["manifest.json"]
    value = json.loads(data[start : start + place["length"]])
    change(value)
    text = canonical_json(value)
    data[start : start + max(place["length"], len(text))] = text.ljust(place["length"], b"\0")
    place["length"] = len(text)
    data[16 : 16 + header_length] = json.dumps(header, separators=(",", ":")).encode().ljust(header_length, b" ")
    end = start + max(entry["offset"] + entry["length"] for entry in header["sections"].values())
    path.write_bytes(data[:end])
