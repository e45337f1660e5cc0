"""The most that a build holds: the largest tensor beside what an idle process holds, however many tensors there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rowpack.checkpoint import open_checkpoint
from rowpack.synthesis import synthesize

ROOT = Path(__file__).resolve().parents[2]
ALLOWANCE_BYTES = 32 * 10**6
"""For pieces in hand, and what the allocator keeps."""

SMALL = {
    "model_type": "rwkv",
    "architectures": ["RwkvForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 128,
    "attention_hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "rescale_every": 6,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
LARGE = {
    **SMALL,
    "vocab_size": 24576,
    "hidden_size": 1024,
    "attention_hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 6,
}

# The first build is small and pays for libraries and graphs, so that the rest is about weights.
SCRIPT = """
import json, sys
from pathlib import Path
from rowpack import BuildRequest, build

def peak_bytes():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024

options = json.loads(sys.argv[3])
peaks = []
for folder in sys.argv[1:3]:
    build(BuildRequest(
        checkpoint=Path(folder), output=Path(folder + ".bundle"), decoder_engine_layout="split",
        allow_missing_tokenizer=True, verify=False, **options,
    ))
    peaks.append(peak_bytes())
print(json.dumps(peaks))
"""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write a small random checkpoint and one whose tensors take several times the allowance."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, config in (("small", SMALL), ("large", LARGE)):
        synthesize(config, folder / name)
    return folder / "small", folder / "large"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel counts a process's peak here only")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quantization": "int8"},
        {"quantization": "int4"},
        {"quantization": "int4", "head_quantization": "int8"},
    ],
    ids=lambda options: "-".join(options.values()) or "fp32",
)
def test_a_build_holds_one_tensor_at_a_time(checkpoints: tuple[Path, Path], options: dict[str, str]) -> None:
    small, large = checkpoints
    with open_checkpoint(large) as checkpoint:
        sizes = [2 * info.byte_count for info in checkpoint.tensors.values()]
    allowed = max(sizes) + ALLOWANCE_BYTES
    assert sum(sizes) > 2 * allowed, "a build that held everything would not be told from one that does not"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "packager"), str(ROOT / "loaders")])}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, small, large, json.dumps(options)],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    idle_bytes, peak_bytes = json.loads(ran.stdout)
    assert peak_bytes - idle_bytes < allowed
