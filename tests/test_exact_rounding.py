"""Exponentials and powers are rounded to the nearest float32, whatever the processor's vector code does."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Context, Decimal

import numpy as np
import numpy.typing as npt
import pytest

from rowpack import exact_rounding
from rowpack.exact_rounding import exponential, power

DIGITS = Context(prec=60)


def nearest(value: Decimal) -> np.float32:
    """Return the float32 nearest to ``value``, by comparing neighbours."""
    guess = np.float32(float(value))
    neighbours = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(neighbours, key=lambda candidate: abs(Decimal(float(candidate)) - value))


def test_exponentials_are_the_nearest_float32() -> None:
    values = np.random.default_rng(1).uniform(-30, 20, 2000).astype(np.float32)
    expected = [nearest(DIGITS.exp(Decimal(float(value)))) for value in values]
    np.testing.assert_array_equal(exponential(values), np.array(expected, dtype=np.float32))


def test_powers_are_the_nearest_float32() -> None:
    exponents = (np.arange(0, 64, 2, dtype=np.float32) / np.float32(64)).astype(np.float32)
    for base in (10000.0, 1e7):
        expected = [nearest(DIGITS.power(Decimal(base), Decimal(float(exponent)))) for exponent in exponents]
        np.testing.assert_array_equal(power(base, exponents), np.array(expected, dtype=np.float32))


def test_values_next_to_the_middle_are_decided_with_more_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    # With a margin wider than half a float32 step every value counts as uncertain.
    values = np.random.default_rng(2).uniform(-5, 5, 300).astype(np.float32)
    certain = exponential(values)
    monkeypatch.setattr(exact_rounding, "_MARGIN", 2.0**-25)
    np.testing.assert_array_equal(exponential(values), certain)


def test_the_ends_of_the_range() -> None:
    values = np.array([0.0, -0.0, 88.72283, 88.72284, 1000.0, -1000.0], dtype=np.float32)
    largest = nearest(DIGITS.exp(Decimal(float(values[2]))))
    expected = np.array([1, 1, largest, np.inf, np.inf, 0], dtype=np.float32)
    np.testing.assert_array_equal(exponential(values), expected)
    assert exponential(np.zeros((3, 1, 2), np.float32)).shape == (3, 1, 2)


def exponentials_without(features: str) -> tuple[bytes, bytes]:
    """Return NumPy's own exponentials and ours in a process that may not use ``features`` of the processor."""
    program = (
        "import sys, numpy as np\n"
        "from rowpack.exact_rounding import exponential\n"
        "x = np.random.default_rng(3).uniform(-10, 3, 4096).astype(np.float32)\n"
        "sys.stdout.buffer.write(np.exp(x).tobytes() + exponential(x).tobytes())\n"
    )
    environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path)), "NPY_DISABLE_CPU_FEATURES": features}
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=environment, capture_output=True, check=True, timeout=60
    ).stdout
    return printed[: len(printed) // 2], printed[len(printed) // 2 :]


def vector_features() -> str:
    """Return the processor features that NumPy has special code for and finds here."""
    from numpy._core import _multiarray_umath as built

    return " ".join(name for name in built.__cpu_dispatch__ if built.__cpu_features__.get(name))


def test_the_processor_does_not_matter() -> None:
    features = vector_features()
    if not features:
        pytest.skip("NumPy finds no processor feature here that it could do without")
    own_with, ours_with = exponentials_without("")
    own_without, ours_without = exponentials_without(features)
    assert ours_with == ours_without
    arrays: list[npt.NDArray[np.float32]] = [np.frombuffer(data, np.float32) for data in (own_with, own_without)]
    if np.array_equal(*arrays):
        pytest.skip(f"NumPy's own exponentials are the same without {features}: nothing is shown here")
