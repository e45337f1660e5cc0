"""``rowpack run``: generate from a prompt."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from rowpack.cli.arguments import add_json_option, argument_errors, token_ids, whole_number
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE
from rowpack.cli.loading import add_runtime_option, load_bundle
from rowpack.cli.text_table import count_of

if TYPE_CHECKING:
    from rowpack_loaders.generation import Generation


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="text to continue")
    prompt.add_argument("--prompt-ids", type=token_ids, metavar="1,2,3", help="token ids to continue")
    add_runtime_option(parser)
    parser.add_argument("--max-new-tokens", type=whole_number(1), default=64, metavar="N", help="default: 64")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token (default)"
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens that make up P")
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
    from rowpack_loaders.sampling import SamplingParameters

    choice = {name: getattr(arguments, name) for name in ("temperature", "top_k", "top_p", "seed")}
    with argument_errors():
        # Refused here, an unusable value costs no loading.
        SamplingParameters(**choice)
    with load_bundle(arguments) as decoder:
        stream = decoder.has_tokenizer and not console.as_json
        generation = decoder.generate(
            arguments.prompt_ids if arguments.prompt is None else arguments.prompt,
            arguments.max_new_tokens,
            **choice,
            prefill=arguments.prefill,
            on_token=(lambda _, text: console.stream(text)) if stream else None,
        )
    if console.as_json:
        console.json_result(generation.as_json())
        return DONE
    console.result("" if stream else ",".join(map(str, generation.token_ids)))
    console.say(timing_text(generation))
    return DONE


def timing_text(generation: Generation) -> str:
    """Return how the prompt was run, how fast tokens came, and why they ended, as one line."""
    prefill, decode = generation.prefill, generation.decode
    calls = f"{prefill.mode}, {count_of(len(prefill.chunks), 'call')}"
    words = f"{count_of(prefill.tokens, 'prompt token')} in {prefill.ms:.1f} ms ({calls})"
    words += f", {count_of(len(generation.token_ids), 'new token')}"
    if decode.ms_per_token is not None:
        words += f" at {decode.ms_per_token:.2f} ms each"
    ending = "an end token" if generation.finish_reason == "stop" else "--max-new-tokens"
    return f"{words}, ended by {ending}"


COMMAND = Command("run", "generate text from a prompt", add_arguments, run)
