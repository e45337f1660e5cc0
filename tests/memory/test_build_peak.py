"""The most that a build holds: a few pieces beside what an idle process holds, however large the tensors are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rowpack.checkpoint import open_checkpoint
from rowpack.synthesis import synthesize

ROOT = Path(__file__).resolve().parents[2]
ALLOWANCE_BYTES = 80 * 10**6
"""A few pieces of 16 MB in hand; the bar of a 9B build without its smoke run."""

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
    "vocab_size": 98304,
    "hidden_size": 1024,
    "attention_hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
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
    report = build(BuildRequest(
        checkpoint=Path(folder), output=Path(folder + ".bundle"), decoder_engine_layout="split",
        allow_missing_tokenizer=True, **options,
    ))
    peaks.append(peak_bytes())
    Path(folder + ".bundle").unlink()
print(json.dumps({"peaks": peaks, **report.as_json()["host_memory"]}))
"""


def built(checkpoints: tuple[Path, Path], **options: Any) -> dict[str, Any]:
    """Build the small checkpoint and then the large one in a process of their own; return its memory."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "packager"), str(ROOT / "loaders")])}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *checkpoints, json.dumps(options)],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write a small random checkpoint and one with a tensor of several times the allowance."""
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
        {"precision": "fp16"},
        {"quantization": "int8"},
        {"quantization": "int4"},
        {"quantization": "int4", "head_quantization": "int8"},
        {"quantization": "int4", "embedding_quantization": "int4"},
    ],
    ids=lambda options: "-".join(options.values()) or "fp32",
)
def test_a_build_holds_a_few_pieces_at_a_time(checkpoints: tuple[Path, Path], options: dict[str, str]) -> None:
    with open_checkpoint(checkpoints[1]) as checkpoint:
        largest = max(info.byte_count for info in checkpoint.tensors.values())
    assert largest > 2 * ALLOWANCE_BYTES, "a build that held a tensor as it is read would be as good"
    found = built(checkpoints, verify=False, **options)
    idle_bytes, peak_bytes = found["peaks"]
    assert peak_bytes - idle_bytes < ALLOWANCE_BYTES
    is_close(found)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel counts a process's memory here only")
@pytest.mark.parametrize(
    "options",
    [{}, {"precision": "fp16"}, {"quantization": "int8"}, {"quantization": "int4", "embedding_quantization": "int4"}],
    ids=lambda options: "-".join(options.values()) or "fp32",
)
def test_a_verified_build_takes_what_was_expected(checkpoints: tuple[Path, Path], options: dict[str, str]) -> None:
    is_close(built(checkpoints, **options))


def is_close(found: dict[str, Any]) -> None:
    """Check that the estimate is above what was measured, by at most as much again or 200 MB."""
    estimated, measured = found["estimated_bytes"], found["peak_anonymous_bytes"]
    assert measured <= estimated <= max(2 * measured, measured + 200 * 10**6), found
