"""From a request and an opened checkpoint to everything a build needs to know of the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rowpack.checkpoint import Checkpoint
from rowpack.config_fit import check_model_tensors, describe_model
from rowpack.engines import BACKENDS
from rowpack.engines.fused_operators.choice import check_lowering
from rowpack.engines.options import NO_OPTIONS, EngineOptions, PlanEncoding
from rowpack.families import find_family
from rowpack.families.declaration import Family, ModelDescription
from rowpack.gate import RequestedLayout
from rowpack.prefill_rows import DEFAULT_PREFILL_ROWS, check_prefill_rows
from rowpack.quantization import INTEGER_QUANTIZATIONS, check_quantization, quantize
from rowpack.special_tokens import SpecialTokens, read_special_tokens
from rowpack.weights import WeightPlan, plan_weights
from rowpack_loaders.devices.published_gpus import PublishedGpu, find_published_gpu
from rowpack_loaders.errors import RowpackError

DEFAULT_MAX_SEQUENCE_LENGTH = 4096
"""Cache rows of a build that names no length: checkpoints declare up to 262,144, which nobody's memory is for."""


@dataclass(frozen=True)
class BuildRequest:
    """What is to be built from what; see ``rowpack build --help`` for each choice.

    ``target_memory_bytes`` is the memory of the device the bundle is for, ``target_gpu`` its published name.
    ``head_quantization`` is how the output projection is stored beside projections in whole numbers, by default as
    they are, ``embedding_quantization`` how the embedding is, by default as in the checkpoint. ``runtime_json_layout``
    is the layout word that loaders which predate the manifest are told. ``lowering`` is the mixers' form: ``plain``
    operators, the runtime's ``fused`` ones, or the faster ones (``auto``); by default ``auto`` for projections in whole
    numbers, whose products are the runtime's own anyway, else ``plain``.
    ``ignore_host_memory`` tries a build that is not expected to fit in this machine's memory. Raises RowpackError for
    values that cannot be.
    """

    checkpoint: Path
    output: Path
    backend: str = "ort"
    precision: str = "fp32"
    quantization: str | None = None
    head_quantization: str | None = None
    embedding_quantization: str | None = None
    max_sequence_length: int | None = None
    decoder_engine_layout: RequestedLayout = "auto"
    target_memory_bytes: int | None = None
    target_gpu: str | None = None
    prefill_rows: int = DEFAULT_PREFILL_ROWS
    verify: bool = True
    runtime_json_layout: str = "single"
    allow_missing_tokenizer: bool = False
    model_id: str | None = None
    revision: str | None = None
    engine_options: EngineOptions = NO_OPTIONS
    lowering: str | None = None
    ignore_host_memory: bool = False

    @property
    def mixer_lowering(self) -> str:
        """The form of the mixers that was asked for, or the default of the quantization."""
        if self.lowering is not None:
            return self.lowering
        return "auto" if self.quantization in INTEGER_QUANTIZATIONS else "plain"

    @property
    def published_gpu(self) -> PublishedGpu | None:
        """The GPU that the bundle is for, where one was named."""
        return None if self.target_gpu is None else find_published_gpu(self.target_gpu)

    @property
    def plan_encoding(self) -> PlanEncoding:
        """How the second plan of a pair is stored: shared, unless loaders that predate the manifest are to read it."""
        return self.engine_options.plan_encoding or ("raw" if self.runtime_json_layout == "split" else "shared")

    def __post_init__(self) -> None:
        if self.runtime_json_layout == "split" and self.engine_options.plan_encoding == "shared":
            raise RowpackError(
                "plan_encoding_conflict",
                "loaders that predate the manifest read a prefill plan only as it is",
                where="--plan-encoding",
                found="shared, with --runtime-json split",
                expected="raw",
                remedy="Leave --plan-encoding out, or tell those loaders --runtime-json single.",
            )
        check_lowering(self.mixer_lowering)
        check_quantization(
            self.quantization,
            self.precision,
            self.head_quantization,
            self.embedding_quantization,
            backend=self.backend,
        )
        if self.target_gpu is not None:
            find_published_gpu(self.target_gpu)
        # One that nobody knows is for the build to refuse.
        for backend in BACKENDS:
            if backend.name == self.backend:
                check_prefill_rows(self.prefill_rows, backend.max_prefill_rows, takes=f"--backend {backend.name}")
        if self.max_sequence_length is not None and self.max_sequence_length < 1:
            raise RowpackError(
                "max_sequence_length_range",
                "a sequence cannot have this length",
                where="--max-sequence-length",
                found=str(self.max_sequence_length),
                expected="at least 1",
                remedy=f"Give a number of tokens; left out it is {DEFAULT_MAX_SEQUENCE_LENGTH} or what the model has.",
            )
        for option, value, known in (
            ("--decoder-engine-layout", self.decoder_engine_layout, ("auto", "single", "split")),
            ("--runtime-json", self.runtime_json_layout, ("single", "split")),
        ):
            if value not in known:
                raise RowpackError(
                    "layout_unknown",
                    "there is no such layout",
                    where=option,
                    found=repr(value),
                    expected=", ".join(known),
                    remedy=f"Name one of these, or leave {option} out.",
                )


@dataclass(frozen=True)
class PreparedModel:
    """The model as every later stage sees it."""

    family: Family
    model: ModelDescription
    plan: WeightPlan
    precision: str
    max_cache_length: int
    tokens: SpecialTokens


def prepare_model(checkpoint: Checkpoint, request: BuildRequest) -> PreparedModel:
    """Choose the family, read the hyper-parameters, and check that every tensor is there with its shape.

    Raises one RowpackError with every missing, misshapen or unexpected tensor, and with every value of the config that
    cannot be built or that the tensors contradict.
    """
    family = find_family(checkpoint.config)
    length = request.max_sequence_length or DEFAULT_MAX_SEQUENCE_LENGTH
    model = describe_model(family, checkpoint, request.precision, length)
    positions = model.max_position_embeddings
    if positions is not None and length > positions:
        if request.max_sequence_length is not None:
            raise RowpackError(
                "max_sequence_length_range",
                "the model has fewer positions than the cache would have rows",
                where="--max-sequence-length",
                found=str(length),
                expected=f"at most {positions}, the checkpoint's max_position_embeddings",
                remedy=f"Give at most {positions}, or leave it out.",
            )
        length = positions
        model = describe_model(family, checkpoint, request.precision, length)
    if request.quantization is not None:
        dtypes = {name: info.dtype for name, info in checkpoint.tensors.items()}
        model = quantize(
            model,
            request.quantization,
            request.head_quantization,
            dtypes,
            embedding_quantization=request.embedding_quantization,
        )
    check_model_tensors(family, checkpoint, model)
    tokens = read_special_tokens(
        checkpoint.config,
        family.text_config(checkpoint.config),
        checkpoint.generation_config,
        checkpoint.tokenizer_config,
        checkpoint.tokenizer_files.get("tokenizer.json"),
        model.vocab_size,
    )
    return PreparedModel(family, model, plan_weights(model.weights), request.precision, length, tokens)
