"""Tell integers from what merely looks like one: the arguments of a public function may be anything."""

from __future__ import annotations

import operator
from typing import SupportsIndex


def as_integer(value: object) -> int | None:
    """Return ``value`` as int when it is an integer, of Python or numpy; None for ``True``, ``1.0``, ``"1"`` and
    the rest.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except TypeError:  # numpy's booleans have the method and refuse to be used by it
        return None
