"""Whole models are run with the engines and mixer oracles of the surgery tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "surgery"))
