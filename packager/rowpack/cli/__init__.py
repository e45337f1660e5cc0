"""The command line: arguments, progress and exit codes; the work itself is done elsewhere.

Exit codes: 0 done; 1 the thing was refused, invalid or failed; 2 unusable arguments; 130 interrupted;
141 the reader of the output went away.
"""

from __future__ import annotations

from rowpack.cli.application import main

__all__ = ["main"]
