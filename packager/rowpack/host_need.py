"""Estimate the memory that a build takes on the build machine, before it starts.

Only memory that the system cannot take back counts: weights mapped from a file are read again when they are needed,
and cost time instead. What remains are the process itself with its graphs, a few pieces of a tensor on their way into
the bundle, a compiler's copy of the weights, what the smoke run's sessions make of weights for themselves (ONNX
Runtime's CPU provider packs whole numbers, and widens half precision, for which it has no products, to float32), and
the activations of its chunks. The constants are measured on builds from 4 million to 750 million parameters
(tests/memory holds the estimate against a measurement).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rowpack_loaders.compatibility.processor import BFLOAT16_FEATURE, processor_features
from rowpack_loaders.errors import RowpackError

PROCESS_BYTES = 80 * 10**6
"""The packager itself: interpreter and libraries, 45 to 60 MB."""

NODE_BYTES = 10_000
"""Of a graph in memory while it is exported, changed and serialised; 5 to 9 kB a node."""

PIECES_HELD = 6
"""Pieces of a tensor in memory at once: as read, in float32, transformed, and as stored; 3 to 5 float32 pieces."""

SESSIONS_BYTES = 100 * 10**6
"""What the sessions of a smoke run hold beside weights and activations."""

COMPILING_NODE_BYTES = 70_000
"""What a runtime that compiles graphs when it loads them (OpenVINO) takes for a node, beside weights; 30 to 53 kB."""

ARENA_FACTOR = 10
"""Bytes that ONNX Runtime's arena takes at most for a byte of activations that are needed at once.

It grows by doubling and keeps what it has. Measured: 2 to 8 for chunks of 64 rows, 3 to 9 for chunks of 512.
"""

_OTHERWISE = "free memory, or build on a larger machine"


@dataclass(frozen=True)
class HostMemoryNeed:
    """What each stage of a build needs at most.

    ``node_count`` counts the nodes of all its graphs, ``piece_bytes`` is one piece of the largest tensor in float32,
    ``builder_bytes`` what the compiler of one engine takes in its own process (0 where nothing is compiled).
    ``private_weight_bytes`` is what one session of the smoke run holds of the weights for itself, ``packing_bytes``
    what it takes in addition while it makes that, and ``session_count`` how many such sessions there are at once: the
    exported graph is one, and gone before the engines' graphs are loaded. ``live_activation_bytes`` are needed at once
    during a chunk. ``compiles_at_load`` says that the runtime of the smoke run compiles the graphs.
    """

    node_count: int
    piece_bytes: int
    builder_bytes: int
    private_weight_bytes: int
    packing_bytes: int
    session_count: int
    live_activation_bytes: int
    verify: bool
    compiles_at_load: bool = False

    @property
    def activation_bytes(self) -> int:
        """Bytes that activations take in a smoke run, whether there is one or not."""
        return ARENA_FACTOR * self.live_activation_bytes

    @cached_property
    def stages(self) -> Mapping[str, int]:
        """Bytes by the stage's name."""
        process_bytes = PROCESS_BYTES + NODE_BYTES * self.node_count
        stages = {
            "weights": process_bytes + PIECES_HELD * self.piece_bytes,
            "engines": process_bytes + self.builder_bytes,
        }
        if self.verify:
            private_bytes = self.session_count * self.private_weight_bytes + self.packing_bytes
            compiling_bytes = COMPILING_NODE_BYTES * self.node_count if self.compiles_at_load else 0
            running_bytes = SESSIONS_BYTES + compiling_bytes + private_bytes + self.activation_bytes
            stages["verify"] = process_bytes + running_bytes
        return stages

    @property
    def byte_count(self) -> int:
        """Bytes that the build needs at most."""
        return max(self.stages.values())

    @property
    def stage(self) -> str:
        """The stage that needs them."""
        return max(self.stages, key=lambda name: self.stages[name])


def engines_keep_halves(precision: str, *, shares_weights: bool, compiles_at_load: bool) -> bool:
    """Tell whether the smoke run's engines multiply stored halves as they are: bfloat16, where the processor can.

    Elsewhere their graphs are executed in float32.
    """
    is_kept = precision == "bf16" and shares_weights and compiles_at_load
    return is_kept and BFLOAT16_FEATURE in (processor_features() or ())


def session_count(*, split: bool, one_serves_both: bool, engines_keep_halves: bool) -> int:
    """Return how many sessions of the smoke run hold weights for themselves at once.

    Where engines multiply halves as they are (``engines_keep_halves``), only the exported graph's session does.
    """
    return 2 if split and not one_serves_both and not engines_keep_halves else 1


def packing_bytes(
    *,
    largest_packed_bytes: int,
    private_weight_bytes: int,
    compiles_at_load: bool,
    widens_halves: bool,
    weights_in_bundle: bool,
) -> int:
    """Return what a session of the smoke run takes in addition while it makes its private weights.

    ONNX Runtime holds one matrix more, the largest at worst, and of the graphs of plans, whose weights are not in the
    bundle, the halves themselves (measured: 1.13 GB where 0.68 GB of widened weights remain); a runtime that compiles
    holds all widened halves twice.
    """
    if not compiles_at_load:
        return private_weight_bytes // 2 if widens_halves and not weights_in_bundle else largest_packed_bytes
    return private_weight_bytes if widens_halves else 0


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
