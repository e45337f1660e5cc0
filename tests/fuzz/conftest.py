"""Let the fuzz targets use the bundles of the container tests and of the vectors."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("container", "vectors"):
    path = str(Path(__file__).resolve().parents[1] / folder)
    if path not in sys.path:
        sys.path.insert(0, path)
