"""Flush denormal numbers to zero while an engine runs, and only then.

Decays make states and exponentials arbitrarily small, and arithmetic on numbers below 1e-38 is many times slower on
some processors. A runtime can be told to flush them, but ONNX Runtime then switches the calling thread over for good,
and with it every other computation of the host program. So the mode of the calling thread is switched here around
each call, through ``fegetenv`` and ``fesetenv``, for 2 µs; worker threads belong to the runtime alone.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from typing import Any

# Machine → length of fenv_t in 32-bit words, the word with the control register, its bits that flush results and
# operands: MXCSR.FTZ and MXCSR.DAZ on x86-64, FPCR.FZ on AArch64. The layouts are those of glibc and musl.
_LAYOUTS = {"x86_64": (8, 7, 1 << 15 | 1 << 6), "aarch64": (2, 0, 1 << 24)}


def _find_functions() -> tuple[Any, Any] | None:
    if not sys.platform.startswith("linux") or platform.machine() not in _LAYOUTS:
        return None
    library = ctypes.CDLL(None)
    try:
        return library.fegetenv, library.fesetenv
    except AttributeError:
        return None


_FUNCTIONS = _find_functions()
_WORDS, _CONTROL, _FLUSH_BITS = _LAYOUTS.get(platform.machine(), (0, 0, 0))


def can_flush_denormals() -> bool:
    """Tell whether the mode of a thread can be switched and restored on this platform."""
    return _FUNCTIONS is not None


class FlushedDenormals:
    """A block in which the calling thread treats denormal numbers as zero; its mode is restored at the end.

    Where the mode cannot be switched the block changes nothing.
    """

    __slots__ = ("_environment", "_saved_control")

    def __enter__(self) -> None:
        if _FUNCTIONS is None:
            return
        read, write = _FUNCTIONS
        environment = (ctypes.c_uint32 * _WORDS)()
        read(environment)
        self._environment, self._saved_control = environment, environment[_CONTROL]
        environment[_CONTROL] |= _FLUSH_BITS
        write(environment)

    def __exit__(self, *_: object) -> None:
        if _FUNCTIONS is not None:
            self._environment[_CONTROL] = self._saved_control
            _FUNCTIONS[1](self._environment)
