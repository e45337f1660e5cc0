"""``rowpack synth``: a checkpoint of a published size with random weights, to measure with."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rowpack.cli.arguments import add_json_option, add_progress_option, whole_number
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE
from rowpack.cli.text_table import count_of
from rowpack.units import format_bytes, parse_bytes
from rowpack_loaders.errors import Problem, RowpackError


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "shape", metavar="SHAPE", help="name of a published model, such as qwen3_5-0.8b, or a config.json"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="a new or empty folder")
    parser.add_argument(
        "--layout", choices=("nested", "flat"), help="of Qwen3.5: as published (nested) or as fine-tunes are"
    )
    parser.add_argument("--format", choices=("safetensors", "torch"), help="of the weight files; default: as published")
    parser.add_argument("--dtype", choices=("BF16", "F16", "F32"), default="BF16")
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N")
    parser.add_argument("--with-vision", action="store_true", help="add the vision tensors of Qwen3.5")
    parser.add_argument("--with-mtp", action="store_true", help="add the multi-token-prediction tensors of Qwen3.5")
    parser.add_argument(
        "--shard-size",
        type=parse_bytes,
        metavar="SIZE",
        dest="shard_bytes",
        help="cut the weights into shards",
    )
    add_progress_option(parser)
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Write the checkpoint."""
    from rowpack.synthesis import synthesize

    named = not arguments.shape.endswith(".json")
    shape = arguments.shape if named else read_config(Path(arguments.shape))
    with console.progress(arguments.progress) as progress, progress.stage("random weights") as stage:
        checkpoint = synthesize(
            shape,
            arguments.output,
            layout=arguments.layout,
            weight_format=arguments.format,
            dtype=arguments.dtype,
            seed=arguments.seed,
            include_visual=arguments.with_vision,
            include_mtp=arguments.with_mtp,
            shard_bytes=arguments.shard_bytes,
            announce=lambda total_bytes: progress.note(
                f"{format_bytes(total_bytes)} of weights to write to {arguments.output}"
            ),
            progress=stage.reach,
        )
    if console.as_json:
        console.json_result({**asdict(checkpoint), "folder": str(checkpoint.folder)})
    else:
        parameters = count_of(checkpoint.parameter_count, "parameter")
        console.result(f"{checkpoint.folder}: {parameters}, {format_bytes(checkpoint.tensor_bytes)}")
    return DONE


def read_config(path: Path) -> dict[str, Any]:
    """Return a ``config.json``; raise ``bad_shape_config`` when it is none."""
    from rowpack.checkpoint.json_files import read_json_object

    problems: list[Problem] = []
    config = read_json_object(path, problems)
    if config is None:
        raise RowpackError.from_problems("bad_shape_config", "the configuration cannot be read", problems)
    return config


COMMAND = Command("synth", "write a random checkpoint in the shape of a published one", add_arguments, run)
