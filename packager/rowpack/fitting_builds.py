"""Find builds of a checkpoint that would fit where the one asked for does not: other options, and what they take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rowpack.checkpoint import Checkpoint
from rowpack.engines.backend import Backend
from rowpack.host_need import ARENA_FACTOR, HostMemoryNeed, host_memory_need
from rowpack.model_preparation import BuildRequest, PreparedModel
from rowpack.quantization import HALF_PRECISIONS, INTEGER_BITS, QUANTIZATIONS, check_quantization, quantize
from rowpack.units import format_bytes
from rowpack.weights import WeightPlan, plan_weights
from rowpack_loaders.compatibility.memory_need import STATE_BUFFERS
from rowpack_loaders.errors import RowpackError

if TYPE_CHECKING:
    from rowpack.graph.constants import ConstantBytes

PRECISIONS = ("fp32", *HALF_PRECISIONS)
_HALF_DTYPES = ("float16", "bfloat16")
_LENGTH_STEP = 64
"""Tokens that a named sequence length is a multiple of; a cache for fewer is no answer to a small device."""


@dataclass(frozen=True)
class OtherBuild:
    """A build of the same checkpoint in a precision and quantization that its backend runs.

    ``stored_bytes`` are its weights in the bundle, ``held_bytes`` what one engine holds of them in memory, and
    ``private_bytes`` the part of them that a session of the smoke run makes for itself; all without a graph at hand,
    so to a few percent.
    """

    precision: str
    quantization: str | None
    stored_bytes: int
    held_bytes: int
    private_bytes: int
    state_bytes: int
    key_value_bytes_per_token: int

    @property
    def options(self) -> str:
        """The build as the command line names it."""
        words = f"--precision {self.precision}"
        return words if self.quantization is None else f"{words} --quantization {self.quantization}"

    def device_bytes(self, sequence_length: int) -> int:
        """Return what one engine takes of its device with a sequence of this length."""
        return self.held_bytes + self.state_bytes + self.key_value_bytes_per_token * sequence_length


def builds_of(checkpoint: Checkpoint, prepared: PreparedModel, backend: Backend) -> Iterator[OtherBuild]:
    """Yield a build for each precision and quantization that ``backend`` runs, the one asked for among them."""
    dtypes = {name: info.dtype for name, info in checkpoint.tensors.items()}
    for precision in PRECISIONS:
        for quantization in (None, *QUANTIZATIONS):
            try:
                check_quantization(quantization, precision)
                backend.check_precision(precision, quantization)
            except RowpackError:
                continue
            model = prepared.family.describe(
                checkpoint.config, list(checkpoint.tensors), precision, prepared.max_cache_length
            )
            if quantization is not None:
                model = quantize(model, quantization, None, dtypes)
            plan = plan_weights(model.weights)
            yield OtherBuild(
                precision,
                quantization,
                plan.tensor_bytes,
                backend.weights_in_memory(_constants(plan, quantization)),
                _private_bytes(plan, precision, quantization, backend),
                STATE_BUFFERS * model.state_bytes,
                model.key_value_bytes_per_token,
            )


def fitting_on_device(
    builds: Sequence[OtherBuild], request: BuildRequest, sequence_length: int, capacity_bytes: int
) -> list[str]:
    """Return the options under which one engine and a full sequence take at most ``capacity_bytes``.

    A build that does not fit with ``sequence_length`` tokens is named with as many as fit.
    """
    fitting = []
    for build in builds:
        asked = (build.precision, build.quantization) == (request.precision, request.quantization)
        length = sequence_length
        if build.device_bytes(length) > capacity_bytes and build.key_value_bytes_per_token:
            length = (capacity_bytes - build.device_bytes(0)) // build.key_value_bytes_per_token
            length -= length % _LENGTH_STEP
        needed = build.device_bytes(length)
        if length < min(_LENGTH_STEP, sequence_length) or needed > capacity_bytes:
            continue
        options = "--decoder-engine-layout single" if asked and length == sequence_length else build.options
        if length < sequence_length:
            options += f" --max-sequence-length {length}"
        fitting.append(f"{options} ({format_bytes(needed)})")
    return fitting


def fitting_on_host(
    builds: Sequence[OtherBuild], request: BuildRequest, need: HostMemoryNeed, *, split: bool, available_bytes: int
) -> list[str]:
    """Return the options under which a build takes at most ``available_bytes`` of this machine.

    ``need`` is that of the build asked for, ``split`` whether it has two engines.
    """
    asked = [b for b in builds if (b.precision, b.quantization) == (request.precision, request.quantization)]
    # What a compiler takes beside the weights is the graph's, whatever they are stored as.
    compiler_bytes = need.builder_bytes - sum(build.stored_bytes for build in asked) if need.builder_bytes else 0

    def byte_count(build: OtherBuild, *, verify: bool, split: bool) -> int:
        return host_memory_need(
            largest_tensor_bytes=need.largest_tensor_bytes,
            builder_bytes=max(0, compiler_bytes) + build.stored_bytes if need.builder_bytes else 0,
            private_weight_bytes=build.private_bytes,
            session_count=2 if split else 1,
            live_activation_bytes=need.activation_bytes // ARENA_FACTOR,
            verify=verify,
        ).byte_count

    choices = [(build.options, byte_count(build, verify=request.verify, split=split)) for build in builds]
    choices = [choice for choice, build in zip(choices, builds, strict=True) if build not in asked]
    for build in asked:
        if request.verify and split:
            choices.append(("--decoder-engine-layout single", byte_count(build, verify=True, split=False)))
        if request.verify:
            choices.append(("--no-verify", byte_count(build, verify=False, split=split)))
    return [f"{options} ({format_bytes(needed)})" for options, needed in choices if needed <= available_bytes]


def _constants(plan: WeightPlan, quantization: str | None) -> ConstantBytes:
    """Count a plan's tensors as the constants of a graph over them."""
    from rowpack.graph.constants import ConstantBytes

    halves = {dtype: sum(t.byte_count for t in plan.tensors if t.spec.dtype == dtype) for dtype in _HALF_DTYPES}
    # Beside weights in whole numbers a table in half precision is only looked up in.
    widened = 0 if quantization in INTEGER_BITS else sum(halves.values())
    return ConstantBytes(plan.tensor_bytes, 0, plan.tensor_bytes + widened, bfloat16=halves["bfloat16"])


def _private_bytes(plan: WeightPlan, precision: str, quantization: str | None, backend: Backend) -> int:
    """Return what a session of the smoke run makes of the weights for itself: widened halves, packed matrices."""
    if precision in HALF_PRECISIONS:
        return 2 * plan.tensor_bytes
    shared = backend.shares_weights(precision) or not backend.weights_in_bundle
    return plan.tensor_bytes if quantization in INTEGER_BITS or not shared else 0
