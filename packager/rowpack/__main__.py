"""Run the command line as ``python -m rowpack``."""

from __future__ import annotations

import sys

from rowpack.cli import main

if __name__ == "__main__":
    sys.exit(main())
