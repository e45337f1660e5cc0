"""Find builds of a checkpoint that would fit where the one asked for does not: other options, and what they take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rowpack.checkpoint import Checkpoint
from rowpack.engines.backend import Backend
from rowpack.families.declaration import ModelDescription
from rowpack.host_need import HostMemoryNeed, engines_keep_halves, packing_bytes, session_count
from rowpack.integer_quantization import multiplied_names, packed_names, scale_name, zero_point_name
from rowpack.model_preparation import BuildRequest, PreparedModel
from rowpack.quantization import (
    HALF_PRECISIONS,
    INTEGER_QUANTIZATIONS,
    PACKED_QUANTIZATIONS,
    QUANTIZATIONS,
    W8A8,
    check_quantization,
    quantize,
    stored_embedding,
    stored_head,
)
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
class WeightChoice:
    """How a build stores the weights, in the words of the command line."""

    precision: str
    quantization: str | None = None
    head_quantization: str | None = None
    embedding_quantization: str | None = None

    @property
    def options(self) -> str:
        """The choice as the command line names it."""
        named = {
            "--precision": self.precision,
            "--quantization": self.quantization,
            "--head-quantization": self.head_quantization,
            "--embedding-quantization": self.embedding_quantization,
        }
        return " ".join(f"{option} {word}" for option, word in named.items() if word is not None)

    @property
    def stored(self) -> tuple[str, str | None, str | None, str | None]:
        """What makes two choices the same, whether a default is named or left out."""
        return (
            self.precision,
            self.quantization,
            stored_head(self.quantization, self.head_quantization),
            stored_embedding(self.embedding_quantization),
        )


@dataclass(frozen=True)
class OtherBuild:
    """A build of the same checkpoint with a choice that its backend runs.

    ``stored_bytes`` are its weights in the bundle, ``held_bytes`` what one engine holds of them in memory,
    ``private_bytes`` the part of them that a session of the smoke run makes for itself, and ``packing_bytes`` what it
    takes in addition meanwhile; all without a graph at hand, so to a few percent. ``keeps_halves`` says that the
    engines of the smoke run make none of it.
    """

    choice: WeightChoice
    stored_bytes: int
    held_bytes: int
    private_bytes: int
    packing_bytes: int
    state_bytes: int
    key_value_bytes_per_token: int
    keeps_halves: bool = False

    def device_bytes(self, sequence_length: int) -> int:
        """Return what one engine takes of its device with a sequence of this length."""
        return self.held_bytes + self.state_bytes + self.key_value_bytes_per_token * sequence_length


def choices_beside(request: BuildRequest, backend: Backend) -> Iterator[WeightChoice]:
    """Yield every choice that ``backend`` runs, the one asked for among them.

    Head and embedding are stored as was asked, and the embedding also as the projections, which saves most. ``w8a8``,
    which takes what ``int8`` does and which not every processor multiplies, is named only where it was asked for.
    """
    seen = set()
    for precision in PRECISIONS:
        for quantization in (None, *QUANTIZATIONS):
            if quantization == W8A8 != request.quantization:
                continue
            tables: list[tuple[str | None, str | None]] = [(None, None)]
            if quantization in INTEGER_QUANTIZATIONS:
                head = request.head_quantization
                tables = [(head, request.embedding_quantization), (head, quantization)]
            for head, embedding in tables:
                choice = WeightChoice(precision, quantization, head, embedding)
                try:
                    check_quantization(quantization, precision, head, embedding)
                    backend.check_precision(precision, quantization)
                except RowpackError:
                    continue
                if choice.stored not in seen:
                    seen.add(choice.stored)
                    yield choice


def builds_of(
    checkpoint: Checkpoint, prepared: PreparedModel, backend: Backend, request: BuildRequest
) -> Iterator[OtherBuild]:
    """Yield a build for each choice that ``backend`` runs, the one asked for among them."""
    dtypes = {name: info.dtype for name, info in checkpoint.tensors.items()}
    for choice in choices_beside(request, backend):
        model = prepared.family.describe(
            checkpoint.config, list(checkpoint.tensors), choice.precision, prepared.max_cache_length
        )
        if choice.quantization is not None:
            model = quantize(
                model,
                choice.quantization,
                choice.head_quantization,
                dtypes,
                embedding_quantization=choice.embedding_quantization,
            )
        plan = plan_weights(model.weights)
        constants, largest_packed_bytes = _constants(plan, model)
        private_bytes = _private_bytes(plan, constants, choice.precision, backend)
        keeps_halves = engines_keep_halves(
            choice.precision,
            shares_weights=backend.shares_weights(choice.precision),
            compiles_at_load=backend.compiles_at_load,
        )
        yield OtherBuild(
            choice,
            plan.tensor_bytes,
            backend.weights_in_memory(constants),
            private_bytes,
            packing_bytes(
                largest_packed_bytes=largest_packed_bytes,
                private_weight_bytes=private_bytes,
                compiles_at_load=backend.compiles_at_load,
                widens_halves=choice.precision in HALF_PRECISIONS and not keeps_halves,
                weights_in_bundle=backend.weights_in_bundle,
            ),
            STATE_BUFFERS * model.state_bytes,
            model.key_value_bytes_per_token,
            keeps_halves,
        )


def fitting_on_device(
    builds: Sequence[OtherBuild],
    request: BuildRequest,
    sequence_length: int,
    capacity_bytes: int,
    *,
    pair_bytes: int | None = None,
) -> list[str]:
    """Return the options under which engines and a full sequence take at most ``capacity_bytes``.

    Builds are of one engine, but for the one asked for, whose two hold ``pair_bytes`` of weights (None where it has
    one). A build that does not fit with ``sequence_length`` tokens is named with as many as fit.
    """
    fitting = []
    for build in builds:
        asked = build.choice.stored == _asked(request).stored
        if asked and pair_bytes is not None:
            pair = replace(build, held_bytes=pair_bytes)
            length = _fitting_length(pair, sequence_length, capacity_bytes)
            if length is not None and length < sequence_length:
                fitting.append(f"--max-sequence-length {length} ({format_bytes(pair.device_bytes(length))})")
        length = _fitting_length(build, sequence_length, capacity_bytes)
        if length is None:
            continue
        options = "--decoder-engine-layout single" if asked and length == sequence_length else build.choice.options
        if length < sequence_length:
            options += f" --max-sequence-length {length}"
        fitting.append(f"{options} ({format_bytes(build.device_bytes(length))})")
    return fitting


def fitting_on_host(
    builds: Sequence[OtherBuild], request: BuildRequest, need: HostMemoryNeed, *, split: bool, available_bytes: int
) -> list[str]:
    """Return the options under which a build takes at most ``available_bytes`` of this machine.

    ``need`` is that of the build asked for, ``split`` whether it has two engines.
    """
    asked = [build for build in builds if build.choice.stored == _asked(request).stored]
    # What a compiler takes beside the weights is the graph's, whatever they are stored as.
    compiler_bytes = max(0, need.builder_bytes - sum(build.stored_bytes for build in asked))

    def byte_count(build: OtherBuild) -> int:
        return replace(
            need,
            builder_bytes=compiler_bytes + build.stored_bytes if need.builder_bytes else 0,
            private_weight_bytes=build.private_bytes,
            packing_bytes=build.packing_bytes,
            session_count=session_count(
                split=split,
                # Engines that pack their weights are run one after the other.
                one_serves_both=build.choice.quantization in PACKED_QUANTIZATIONS,
                engines_keep_halves=build.keeps_halves,
            ),
        ).byte_count

    choices = [(build.choice.options, byte_count(build)) for build in builds if build not in asked]
    if request.verify:
        if need.session_count > 1:
            choices.append(("--decoder-engine-layout single", replace(need, session_count=1).byte_count))
        choices.append(("--no-verify", replace(need, verify=False).byte_count))
    return [f"{options} ({format_bytes(needed)})" for options, needed in choices if needed <= available_bytes]


def _asked(request: BuildRequest) -> WeightChoice:
    return WeightChoice(
        request.precision, request.quantization, request.head_quantization, request.embedding_quantization
    )


def _fitting_length(build: OtherBuild, sequence_length: int, capacity_bytes: int) -> int | None:
    """Return how many tokens up to ``sequence_length`` fit with the build; None where too few do to be an answer."""
    length = sequence_length
    if build.device_bytes(length) > capacity_bytes and build.key_value_bytes_per_token:
        length = (capacity_bytes - build.device_bytes(0)) // build.key_value_bytes_per_token
        length -= length % _LENGTH_STEP
    fits = length >= min(_LENGTH_STEP, sequence_length) and build.device_bytes(length) <= capacity_bytes
    return length if fits else None


def _constants(plan: WeightPlan, model: ModelDescription) -> tuple[ConstantBytes, int]:
    """Count a plan's tensors as the constants of a graph over them; return the bytes of the largest packed one too."""
    from rowpack.graph.constants import ConstantBytes, packed_bytes

    stored = {tensor.spec.name: tensor.byte_count for tensor in plan.tensors}
    halves = {dtype: sum(t.byte_count for t in plan.tensors if t.spec.dtype == dtype) for dtype in _HALF_DTYPES}
    products = list(multiplied_names(model))
    blocks = list(packed_names(model))
    packed = [packed_bytes(stored[name], stored[scale_name(name)]) for name in blocks]
    packed_from = sum(stored[part] for name in blocks for part in (name, scale_name(name), zero_point_name(name)))
    # Beside weights in whole numbers a table in half precision is only looked up in.
    widened = 0 if products else sum(halves.values())
    constants = ConstantBytes(
        plan.tensor_bytes, 0, plan.tensor_bytes + widened, sum(packed), packed_from, halves["bfloat16"]
    )
    return constants, max(packed, default=0)


def _private_bytes(plan: WeightPlan, constants: ConstantBytes, precision: str, backend: Backend) -> int:
    """Return what a session of the smoke run makes of the weights for itself: widened halves, packed matrices."""
    if precision in HALF_PRECISIONS:
        return 2 * plan.tensor_bytes
    shared = backend.shares_weights(precision) or not backend.weights_in_bundle
    return constants.packed if shared else plan.tensor_bytes
