"""Choose the next token from a row of logits: greedily, or by temperature, top-k and top-p with a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.integers import as_integer

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SamplingParameters:
    """How tokens are chosen; temperature 0 is greedy, and then the other three have no effect.

    ``top_k`` keeps the k likeliest tokens. ``top_p`` then keeps the fewest likeliest tokens whose
    probabilities, at this temperature and among the tokens kept so far, reach p; at least one always stays.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise _refusal("temperature", self.temperature, "0 for greedy, or a positive number")
        if self.top_k is not None and (as_integer(self.top_k) or 0) < 1:
            raise _refusal("top_k", self.top_k, "an integer from 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise _refusal("top_p", self.top_p, "above 0 and at most 1")
        if self.seed is not None and ((seed := as_integer(self.seed)) is None or seed < 0):
            raise _refusal("seed", self.seed, "an integer from 0")


class Sampler:
    """Chooses tokens one after the other; the same parameters, seed and logits give the same tokens."""

    def __init__(self, parameters: SamplingParameters) -> None:
        self.parameters = parameters
        self._generator = np.random.Generator(np.random.PCG64(parameters.seed))

    def choose(self, logits: FloatArray) -> int:
        """Return the id of the next token for ``logits`` [vocab]; raise ``logits_not_finite`` for NaN or
        +infinity.
        """
        parameters = self.parameters
        best = int(logits.argmax())
        # argmax returns the first NaN if there is one, so the one value tells about all of them.
        if not math.isfinite(logits[best]):
            raise RowpackError(
                "logits_not_finite",
                "The engine produced logits from which no token can be chosen",
                where=f"logits[{best}]",
                found=str(logits[best]),
                expected="finite numbers",
                remedy="Run rowpack selftest on the bundle; a build in another precision may be needed",
            )
        if parameters.temperature == 0.0:
            return best
        probabilities, tokens = candidate_probabilities(logits, parameters)
        # The last sum is 1 up to rounding; a draw at or above it belongs to the last candidate.
        position = np.searchsorted(np.cumsum(probabilities), self._generator.random(), side="right")
        return int(tokens[min(int(position), len(tokens) - 1)])


def candidate_probabilities(
    logits: FloatArray, parameters: SamplingParameters
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the probabilities of the tokens that may be drawn, likeliest first, and their ids.

    ``parameters.temperature`` is above 0. Equal logits keep the order of their ids, so that the result does
    not depend on the sorting algorithm.
    """
    count = len(logits) if parameters.top_k is None else min(parameters.top_k, len(logits))
    tokens = _largest(logits, count)
    scaled = (logits[tokens].astype(np.float64) - float(logits[tokens[0]])) / parameters.temperature
    weights = np.exp(scaled)
    probabilities = weights / weights.sum()
    if parameters.top_p is not None and parameters.top_p < 1:
        kept = int(np.searchsorted(np.cumsum(probabilities), parameters.top_p, side="left")) + 1
        probabilities, tokens = probabilities[:kept], tokens[:kept]
        probabilities = probabilities / probabilities.sum()
    return probabilities, tokens


def _largest(logits: FloatArray, count: int) -> npt.NDArray[np.int64]:
    if count == len(logits):
        return np.argsort(-logits, kind="stable")
    # Everything at or above the k-th value, in order of ids, then the stable order: ties are cut by id.
    threshold = np.partition(logits, len(logits) - count)[len(logits) - count]
    candidates = np.flatnonzero(logits >= threshold)
    order = np.argsort(-logits[candidates], kind="stable")[:count]
    chosen: npt.NDArray[np.int64] = candidates[order]
    return chosen


def _refusal(name: str, found: object, expected: str) -> RowpackError:
    return RowpackError(
        "sampling_parameter_invalid",
        f"The sampling parameter {name} is out of range",
        where=name,
        found=repr(found),
        expected=expected,
    )
