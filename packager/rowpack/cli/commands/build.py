"""``rowpack build``: the main job."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from rowpack.cli.arguments import (
    add_json_option,
    add_progress_option,
    argument_errors,
    compute_capabilities,
    whole_number,
)
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE
from rowpack.units import parse_bytes

if TYPE_CHECKING:
    from rowpack.engines.options import EngineOptions


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="folder of a Hugging Face checkpoint")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.bundle", help="the bundle to write")
    add_model_options(parser)
    parser.add_argument(
        "--decoder-engine-layout",
        choices=("auto", "single", "split"),
        default="auto",
        help="one engine, or a second one for prefill; auto decides by memory",
    )
    parser.add_argument(
        "--target-memory",
        type=parse_bytes,
        metavar="SIZE",
        dest="target_memory_bytes",
        help="memory of the device the bundle is for, such as 24GiB",
    )
    parser.add_argument(
        "--target-gpu", metavar="NAME", help="the device the bundle is for, by its published name, such as L40S"
    )
    parser.add_argument(
        "--ignore-host-memory",
        action="store_true",
        help="try a build that is not expected to fit in this machine's memory",
    )
    parser.add_argument(
        "--no-verify",
        action="store_false",
        dest="verify",
        help="publish without running the engines first; the bundle carries no self-test",
    )
    parser.add_argument(
        "--runtime-json",
        choices=("single", "split"),
        default="single",
        dest="runtime_json_layout",
        help="the layout that runtime.json names to loaders which predate the manifest",
    )
    add_compiler_options(parser)
    parser.add_argument("--model-id", metavar="ID", help="name of the model in the manifest; default: the folder's")
    parser.add_argument("--revision", metavar="REVISION", help="revision of the checkpoint, for the manifest")
    add_progress_option(parser)
    add_json_option(parser)


def add_compiler_options(parser: ArgumentParser) -> None:
    """Declare the options for backends that compile their engines."""
    group = parser.add_argument_group("compiled engines (--backend trt, trt_rtx)")
    group.add_argument(
        "--compute-capability",
        type=compute_capabilities,
        default=(),
        metavar="8.6,8.9,…",
        dest="compute_capabilities",
        help="GPUs that the engines are for (trt_rtx; default: every one from 8.0 on that the library knows)",
    )
    group.add_argument(
        "--hardware-compatibility",
        choices=("ampere_plus", "same_compute_capability"),
        help="let an engine run on more GPUs than the one it is built on, at some cost in speed (trt)",
    )
    group.add_argument(
        "--version-compatible",
        action="store_true",
        help="let an engine run with later versions of the library, at some cost in size (trt)",
    )
    group.add_argument(
        "--workspace",
        type=parse_bytes,
        metavar="SIZE",
        dest="workspace_bytes",
        help="scratch memory that an engine may plan with on its device (default: 1GiB)",
    )
    group.add_argument(
        "--plan-encoding",
        choices=("raw", "shared"),
        help="store the prefill plan as it is, or as what it does not share with the decode plan "
        "(default: shared, and raw with --runtime-json split)",
    )
    group.add_argument(
        "--timing-cache",
        type=Path,
        metavar="FILE",
        help="kernel times measured by an earlier build, read where the file is there and written (trt)",
    )


def compiler_options(arguments: Namespace) -> EngineOptions:
    """Return what ``add_compiler_options`` declared."""
    from rowpack.engines.options import EngineOptions

    return EngineOptions(
        compute_capabilities=arguments.compute_capabilities,
        hardware_compatibility=arguments.hardware_compatibility,
        version_compatible=arguments.version_compatible,
        workspace_bytes=arguments.workspace_bytes,
        timing_cache=arguments.timing_cache,
        plan_encoding=arguments.plan_encoding,
    )


def add_model_options(parser: ArgumentParser) -> None:
    """Declare the options that ``build`` and ``export-onnx`` share: what decides the graphs."""
    parser.add_argument("--backend", default="ort", help="what will run the engines (default: ort)")
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), default="fp32")
    parser.add_argument(
        "--quantization",
        choices=("fp8", "nvfp4", "int8", "int4", "w8a8"),
        help="store the large projections in a smaller type: int8, int4, w8a8 (ort; with fp32; w8a8 multiplies in "
        "whole numbers, on processors with VNNI or AMX), fp8, nvfp4 (trt, trt_rtx; with fp16 or bf16)",
    )
    parser.add_argument(
        "--head-quantization",
        choices=("none", "int8", "int4", "w8a8"),
        help="how the output projection is stored beside projections in whole numbers (default: as they are)",
    )
    parser.add_argument(
        "--embedding-quantization",
        choices=("none", "int8", "int4", "w8a8"),
        help="how the embedding is stored beside projections in whole numbers (default: none, as in the checkpoint)",
    )
    parser.add_argument(
        "--max-sequence-length",
        type=whole_number(1),
        metavar="N",
        help="longest sequence in tokens (default: 4096, or less where the model takes less)",
    )
    parser.add_argument(
        "--prefill-rows",
        type=int,
        default=64,
        metavar="N",
        help="most prompt rows of one prefill call, up to 512 (default: 64); more suit a GPU, not a processor",
    )
    parser.add_argument(
        "--lowering",
        choices=("plain", "fused", "auto"),
        help="how mixers are computed: by plain operators, by the runtime's fused ones, or by those that are faster "
        "(default: plain; auto with projections in whole numbers)",
    )
    parser.add_argument(
        "--allow-missing-tokenizer",
        action="store_true",
        help="build a bundle that takes token ids only when the checkpoint has no tokenizer",
    )


class ModelOptions(TypedDict):
    """The fields of a build request that decide the graphs."""

    backend: str
    precision: str
    quantization: str | None
    head_quantization: str | None
    embedding_quantization: str | None
    max_sequence_length: int | None
    prefill_rows: int
    lowering: str | None
    allow_missing_tokenizer: bool


def model_options(arguments: Namespace) -> ModelOptions:
    """Return what ``add_model_options`` declared."""
    return {
        "backend": arguments.backend,
        "precision": arguments.precision,
        "quantization": arguments.quantization,
        "head_quantization": arguments.head_quantization,
        "embedding_quantization": arguments.embedding_quantization,
        "max_sequence_length": arguments.max_sequence_length,
        "prefill_rows": arguments.prefill_rows,
        "lowering": arguments.lowering,
        "allow_missing_tokenizer": arguments.allow_missing_tokenizer,
    }


def run(arguments: Namespace, console: Console) -> int:
    """Build the bundle and print its report."""
    from rowpack import BuildRequest, build

    with argument_errors():
        request = BuildRequest(
            checkpoint=arguments.checkpoint,
            output=arguments.output,
            decoder_engine_layout=arguments.decoder_engine_layout,
            target_memory_bytes=arguments.target_memory_bytes,
            target_gpu=arguments.target_gpu,
            ignore_host_memory=arguments.ignore_host_memory,
            verify=arguments.verify,
            runtime_json_layout=arguments.runtime_json_layout,
            model_id=arguments.model_id,
            revision=arguments.revision,
            engine_options=compiler_options(arguments),
            **model_options(arguments),
        )
    with console.progress(arguments.progress) as progress:
        report = build(request, progress)
    if console.as_json:
        console.json_result(report.as_json())
    else:
        from rowpack.cli.build_summary import build_summary

        console.result(build_summary(report))
    return DONE


COMMAND = Command("build", "pack a checkpoint into a bundle", add_arguments, run)
