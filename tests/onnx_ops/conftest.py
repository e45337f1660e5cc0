"""The functions are tested with the inputs and oracles of the lowerings."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "surgery"))
