"""The memory's part of a build: say what it takes before a weight is read, and refuse what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from rowpack.bundle.writer import BundleWriter
from rowpack.checkpoint import Checkpoint
from rowpack.disk_need import DiskNeed, disk_need
from rowpack.engines.backend import Backend
from rowpack.engines.io_contract import DECODE, PREFILL
from rowpack.fitting_builds import OtherBuild, builds_of, fitting_on_device, fitting_on_host
from rowpack.gate import LayoutDecision
from rowpack.host_need import HostMemoryNeed, check_host_memory, in_words
from rowpack.model_preparation import BuildRequest, PreparedModel
from rowpack.progress import Progress
from rowpack.units import format_bytes
from rowpack_loaders.compatibility.memory_need import STATE_BUFFERS
from rowpack_loaders.errors import Problem, RowpackError


def announce_needs(
    request: BuildRequest,
    checkpoint: Checkpoint,
    prepared: PreparedModel,
    backend: Backend,
    decision: LayoutDecision,
    need: HostMemoryNeed,
    available_bytes: int | None,
    writer: BundleWriter,
    progress: Progress,
) -> None:
    """Tell what the build takes here and the bundle on its device, then refuse what does not fit this machine.

    A device that is too small is warned of: the bundle may be for another one. Raises RowpackError
    ``host_memory_insufficient`` or ``disk_full``, or ``build_does_not_fit`` with both; each names what would fit.
    """

    @cache
    def builds() -> Sequence[OtherBuild]:
        return list(builds_of(checkpoint, prepared, backend, request))

    device_bytes = device_memory_bytes(decision, prepared)
    disk = disk_need(request, prepared, backend, decision)
    progress.note(_of_this_machine(need, available_bytes, disk))
    progress.note(_of_the_device(device_bytes, decision, prepared))
    capacity = decision.capacity.byte_count
    if capacity is not None and device_bytes > capacity:
        pair_bytes = decision.weights.needed_bytes if decision.layout == "split" else None
        fitting = fitting_on_device(builds(), request, prepared.max_cache_length, capacity, pair_bytes=pair_bytes)
        progress.warning(_too_small(decision, device_bytes, capacity, fitting))
    split = decision.layout == "split"
    _raise_all(
        [
            lambda: check_host_memory(
                need,
                available_bytes,
                override=request.ignore_host_memory,
                fitting=lambda available: fitting_on_host(
                    builds(), request, need, split=split, available_bytes=available
                ),
            ),
            lambda: writer.check_free_space(disk.byte_count),
        ]
    )


def device_memory_bytes(decision: LayoutDecision, prepared: PreparedModel) -> int:
    """Return what a loader takes of its device: the engines' weights, states and one full sequence.

    What an engine takes to compute with is not known before it is built.
    """
    weights = decision.weights
    held = weights.needed_bytes if decision.layout == "split" else weights.engine_bytes[DECODE]
    model = prepared.model
    caches = model.key_value_bytes_per_token * prepared.max_cache_length
    return held + STATE_BUFFERS * model.state_bytes + caches


def _of_this_machine(need: HostMemoryNeed, available_bytes: int | None, disk: DiskNeed) -> str:
    here = "" if available_bytes is None else f" ({format_bytes(available_bytes)} available)"
    return f"this machine: about {format_bytes(need.byte_count)} of memory{here}, most for {need.stage}; {disk}"


def _of_the_device(device_bytes: int, decision: LayoutDecision, prepared: PreparedModel) -> str:
    capacity = decision.capacity.byte_count
    there = "" if capacity is None else f" (it has {format_bytes(capacity)})"
    return (
        f"the bundle's device: about {format_bytes(device_bytes)} of memory{there}, {decision.layout}, "
        f"with one sequence of {prepared.max_cache_length} tokens and without working memory"
    )


def _too_small(decision: LayoutDecision, device_bytes: int, capacity: int, fitting: Sequence[str]) -> Problem:
    return Problem(
        "device_memory_tight",
        "the bundle, its states and full caches take more than the device has",
        where=PREFILL if decision.layout == "split" else DECODE,
        found=f"{device_bytes} bytes",
        expected=f"at most {capacity} bytes",
        remedy=in_words(fitting, "build for a device with more memory"),
    )


def _raise_all(checks: Sequence[Callable[[], None]]) -> None:
    """Make every check; raise the error of one, or one error with the problems of all."""
    errors: list[RowpackError] = []
    for check in checks:
        try:
            check()
        except RowpackError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise RowpackError.from_problems(
            "build_does_not_fit", "this machine has no room for the build", [error.problem for error in errors]
        )
