"""Estimate the memory that a build takes on the build machine, before it starts.

Only memory that the system cannot take back counts: weights mapped from a file are read again when they are needed,
and cost time instead. What remains are the process itself, one tensor on its way into the bundle, a compiler's copy of
the weights, the copies that the smoke run makes of half-precision weights, for which ONNX Runtime's CPU provider
has no products: it widens them to float32, once a session, and the activations of its chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rowpack_loaders.errors import RowpackError

PROCESS_BYTES = 500 * 10**6
"""The packager itself with its graphs and buffers (docs/benchmarks.md, memory of a build)."""

ARENA_FACTOR = 10
"""Bytes that ONNX Runtime's arena takes at most for a byte of activations that are needed at once.

It grows by doubling and keeps what it has. Measured: 2 to 6 for chunks of 64 rows, 3 to 9 for chunks of 512.
"""

_OTHERWISE = "free memory, or build on a larger machine"


@dataclass(frozen=True)
class HostMemoryNeed:
    """Bytes that each stage of a build needs at most, by the stage's name.

    ``activation_bytes`` is the part of a smoke run that activations take, whether there is one or not.
    """

    stages: Mapping[str, int]
    activation_bytes: int

    @property
    def largest_tensor_bytes(self) -> int:
        """Bytes of the largest tensor on its way into the bundle."""
        return self.stages["weights"] - PROCESS_BYTES

    @property
    def builder_bytes(self) -> int:
        """Bytes that the compiler of one engine takes in its own process; 0 where nothing is compiled."""
        return self.stages["engines"] - PROCESS_BYTES

    @property
    def byte_count(self) -> int:
        """Bytes that the build needs at most."""
        return max(self.stages.values())

    @property
    def stage(self) -> str:
        """The stage that needs them."""
        return max(self.stages, key=lambda name: self.stages[name])


def host_memory_need(
    *,
    largest_tensor_bytes: int,
    builder_bytes: int,
    private_weight_bytes: int,
    session_count: int,
    live_activation_bytes: int,
    verify: bool,
) -> HostMemoryNeed:
    """Return the need of a build.

    ``largest_tensor_bytes`` counts in float32, the width in which tensors are converted; ``builder_bytes`` is what the
    compiler of one engine takes in its own process; ``private_weight_bytes`` is what one session of the smoke run
    holds of the weights for itself, and ``session_count`` how many it has at once: the exported graph is one session,
    and gone before the engines' graphs are loaded. ``live_activation_bytes`` are needed at once during a chunk.
    """
    activation_bytes = ARENA_FACTOR * live_activation_bytes
    stages = {
        "weights": PROCESS_BYTES + largest_tensor_bytes,
        "engines": PROCESS_BYTES + builder_bytes,
    }
    if verify:
        stages["verify"] = PROCESS_BYTES + session_count * private_weight_bytes + activation_bytes
    return HostMemoryNeed(stages, activation_bytes)


def check_host_memory(
    need: HostMemoryNeed,
    available_bytes: int | None,
    *,
    override: bool,
    fitting: Callable[[int], Sequence[str]] = lambda available_bytes: (),
) -> None:
    """Refuse a build that cannot fit, unless told to try; raises ``host_memory_insufficient``.

    ``fitting`` returns the options under which a build fits in so many bytes. Nothing is refused where the system does
    not say what is available.
    """
    if override or available_bytes is None or need.byte_count <= available_bytes:
        return
    raise RowpackError(
        "host_memory_insufficient",
        f"this build does not fit in the memory of this machine (stage {need.stage})",
        found=f"{available_bytes} bytes available",
        expected=f"about {need.byte_count} bytes",
        remedy=f"{in_words(fitting(available_bytes), _OTHERWISE)}; --ignore-host-memory tries all the same",
    )


def in_words(fitting: Sequence[str], otherwise: str) -> str:
    """Return a remedy that names the options under which a build would fit, or ``otherwise``."""
    return f"What would fit, about: {', '.join(fitting)}" if fitting else f"Nothing of this model fits: {otherwise}"
