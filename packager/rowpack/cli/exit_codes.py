"""The exit codes of every command; part of the stable contract."""

from __future__ import annotations

DONE = 0
REFUSED = 1
"""The bundle, checkpoint or request was refused or invalid, or the work failed."""
UNUSABLE_ARGUMENTS = 2
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""
BROKEN_PIPE = 141
"""128 + SIGPIPE: whoever read the output stopped reading."""
