"""``rowpack export-onnx``: the graphs, for people who bring their own builder."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rowpack.cli.arguments import add_json_option, add_progress_option, argument_errors
from rowpack.cli.command import Command
from rowpack.cli.commands.build import add_model_options, model_options
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="folder of a Hugging Face checkpoint")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder for the files")
    add_model_options(parser)
    add_progress_option(parser)
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Write the exported, decode and prefill graphs and the weights they share."""
    from rowpack.build_stages import BuildRequest, export_onnx

    with argument_errors():
        request = BuildRequest(checkpoint=arguments.checkpoint, output=arguments.output, **model_options(arguments))
    with console.progress(arguments.progress) as progress:
        paths = export_onnx(request, arguments.output, progress)
    if console.as_json:
        console.json_result({"files": [{"path": str(path), "bytes": path.stat().st_size} for path in paths]})
    else:
        for path in paths:
            console.result(str(path))
    return DONE


COMMAND = Command(
    "export-onnx",
    "write the exported, decode and prefill graphs as ONNX files",
    add_arguments,
    run,
    notes="The graphs share one weights.safetensors beside them as external data.",
)
