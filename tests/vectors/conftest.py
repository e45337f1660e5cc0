"""Let the vectors use the bundles of the container tests."""

from __future__ import annotations

import sys
from pathlib import Path

CONTAINER_TESTS = Path(__file__).resolve().parents[1] / "container"
if str(CONTAINER_TESTS) not in sys.path:
    sys.path.insert(0, str(CONTAINER_TESTS))
