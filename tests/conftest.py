"""Shared paths and fixtures; the two small trained checkpoints are real models, see their README."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
for package_root in (ROOT / "packager", ROOT / "loaders", ROOT / "tests" / "tiny"):
    if str(package_root) not in sys.path:
        sys.path.insert(0, str(package_root))

# Some tests import ONNX Runtime themselves; its wheels report usage over the network unless they are told not to.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

pytest_plugins = ["tiny_fixtures"]

QWEN_CHECKPOINT = ROOT / "packager" / "rowpack" / "demo_checkpoint"
RWKV_CHECKPOINT = ROOT / "tests" / "data" / "rwkv4-kjv-3.7m"


@pytest.fixture(scope="session")
def qwen_checkpoint() -> Path:
    """The Qwen3.5 text model trained on the King James Bible, shipped for the demo."""
    return QWEN_CHECKPOINT


@pytest.fixture(scope="session")
def rwkv_checkpoint() -> Path:
    """The RWKV-4 model trained on the same text."""
    return RWKV_CHECKPOINT
