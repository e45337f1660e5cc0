"""``rowpack run``: generate from a prompt."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rowpack.cli.arguments import add_json_option, argument_errors, token_ids, whole_number
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="text to continue")
    prompt.add_argument("--prompt-ids", type=token_ids, metavar="1,2,3", help="token ids to continue")
    parser.add_argument("--max-new-tokens", type=whole_number(1), default=64, metavar="N", help="default: 64")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token (default)"
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the likeliest tokens that make up P"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="makes a draw repeatable")
    parser.add_argument(
        "--prefill",
        choices=("auto", "chunked", "token-loop"),
        default="auto",
        help="run the prompt in chunks, or row by row through the decode engine (default: auto)",
    )
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Generate, streaming the text as it comes; how long it took is said beside it."""
    from rowpack_loaders import load
    from rowpack_loaders.sampling import SamplingParameters

    with argument_errors():
        sampling = SamplingParameters(arguments.temperature, arguments.top_k, arguments.top_p, arguments.seed)
    prompt = arguments.prompt if arguments.prompt is not None else arguments.prompt_ids
    with load(arguments.bundle) as decoder:
        generation = decoder.generate(
            prompt,
            max_new_tokens=arguments.max_new_tokens,
            sampling=sampling,
            prefill=arguments.prefill,
            on_text=None if console.as_json else console.stream,
        )
    if console.as_json:
        console.json_result(generation.as_json())
    return DONE


COMMAND = Command("run", "generate text from a prompt", add_arguments, run)
