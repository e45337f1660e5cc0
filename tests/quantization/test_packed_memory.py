"""What a loaded bundle with weights in blocks takes: what each engine packs, as the manifest says, and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trained_checkpoints

from rowpack import BuildRequest, build
from rowpack.build_report import BuildReport
from rowpack.synthesis import synthesize
from rowpack_loaders import open_bundle

ROOT = Path(__file__).resolve().parents[2]

RWKV = {
    "model_type": "rwkv",
    "architectures": ["RwkvForCausalLM"],
    "vocab_size": 16384,
    "hidden_size": 768,
    "attention_hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 6,
    "context_length": 1024,
    "rescale_every": 6,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

QWEN = {
    **json.loads((trained_checkpoints.QWEN / "config.json").read_text("utf-8")),
    "vocab_size": 8192,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 8,
    "head_dim": 64,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
SMALL = {
    "rwkv": {"hidden_size": 64, "attention_hidden_size": 64, "intermediate_size": 128, "vocab_size": 300},
    "qwen3_5": {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 300},
}
CONFIGS = {"rwkv": RWKV, "qwen3_5": QWEN}

# The first bundle is small and pays for libraries and thread pools, so that the rest is about weights.
SCRIPT = """
import json, sys
from rowpack_loaders import load

def resident_bytes():
    kinds = {}
    for line in open("/proc/self/status"):
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssFile"):
            kinds[name] = int(value.split()[0]) * 1024
    return kinds

warm = load(sys.argv[1], threads=1)
warm.generate([1] * 70, 3)
before = resident_bytes()
decoder = load(sys.argv[2], threads=1)
loaded = resident_bytes()
session = decoder.session()
session.prefill([1] * 70)
session.step(1)
used = resident_bytes()
print(json.dumps({
    "loaded": loaded["RssAnon"] - before["RssAnon"],
    "used": used["RssAnon"] - before["RssAnon"],
    "mapped": used["RssFile"] - before["RssFile"],
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["single", "split"])
@pytest.mark.parametrize("width", ["int8", "int4"])
@pytest.mark.parametrize("family", CONFIGS)
def test_the_manifest_says_what_is_measured(tmp_path: Path, family: str, width: str, layout: Any) -> None:
    bundle, engines, found = load_measured(tmp_path, family, width, layout)
    packed = [engine["resident_bytes"]["private"] for engine in engines.values()]
    private = max(packed)
    mapped = engines["decode"]["resident_bytes"]["weights"] - engines["decode"]["resident_bytes"]["private"]
    assert 0.9 * private <= found["loaded"] <= 1.15 * private + 6 * 2**20
    # Matrices in float32 (the gates) are not copied, and the pages that blocks were packed from are given back.
    assert found["used"] <= 1.15 * private + 24 * 2**20
    assert found["mapped"] <= mapped + 8 * 2**20
    assert bundle.memory.pair_bytes >= private


def test_a_pair_packs_its_weights_once(tmp_path: Path) -> None:
    _, engines, found = load_measured(tmp_path, "qwen3_5", "int4", "split")
    packed = engines["prefill"]["resident_bytes"]["private"]
    assert packed > 10 * 2**20, "too little to be told from the rest"
    assert 0.9 * packed <= found["loaded"] <= 1.5 * packed


def load_measured(folder: Path, family: str, width: str, layout: Any) -> tuple[BuildReport, Any, dict[str, int]]:
    """Build a bundle of ``family``, load it in a process of its own, and return what its memory grew by."""
    bundles = []
    for name, config in (("small", {**CONFIGS[family], **SMALL[family]}), ("large", CONFIGS[family])):
        checkpoint = synthesize(config, folder / name).folder
        request = BuildRequest(
            checkpoint,
            folder / f"{name}.bundle",
            quantization=width,
            decoder_engine_layout=layout,
            verify=False,
            allow_missing_tokenizer=True,
        )
        bundles.append(build(request))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *(str(bundle.path) for bundle in bundles)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "loaders")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with open_bundle(bundles[1].path) as bundle:
        return bundles[1], bundle.manifest["engines"], json.loads(done.stdout)
