"""``rowpack bench``: how fast a bundle runs on this machine."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from rowpack.cli.arguments import add_json_option, add_progress_option, whole_number
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack.cli.exit_codes import DONE
from rowpack.cli.loading import add_runtime_option, load_bundle
from rowpack.cli.text_table import count_of, format_table

if TYPE_CHECKING:
    from rowpack_loaders.benchmark import BenchmarkReport


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    add_runtime_option(parser)
    parser.add_argument("--prompt-tokens", type=whole_number(1), default=142, metavar="N", help="default: 142")
    parser.add_argument("--new-tokens", type=whole_number(1), default=32, metavar="N", help="default: 32")
    parser.add_argument(
        "--repeats", type=whole_number(1), default=5, metavar="N", help="figures are medians of these (default: 5)"
    )
    parser.add_argument("--threads", type=whole_number(1), metavar="N", help="default: one for each physical core")
    parser.add_argument(
        "--thread-wait",
        choices=("auto", "spin", "sleep"),
        default="auto",
        help="how idle threads of ONNX Runtime wait: spin (fastest on idle cores), sleep, or auto, by what else runs",
    )
    add_progress_option(parser)
    add_json_option(parser)


def run(arguments: Namespace, console: Console) -> int:
    """Time prefill and decode apart, chunked against token loop."""
    from rowpack_loaders.benchmark import run_benchmark

    with (
        load_bundle(arguments, threads=arguments.threads, thread_wait=arguments.thread_wait) as decoder,
        console.progress(arguments.progress) as progress,
        progress.stage("benchmark") as stage,
    ):
        report = run_benchmark(
            decoder,
            prompt_tokens=arguments.prompt_tokens,
            new_tokens=arguments.new_tokens,
            repeats=arguments.repeats,
            on_repeat=lambda done, total: stage.describe(f"{done} of {total} rounds"),
        )
    if console.as_json:
        console.json_result(report.as_json())
    else:
        console.result(report_text(report))
    return DONE


def report_text(report: BenchmarkReport) -> str:
    """Return the figures as a table below what was measured and on what."""
    rows = [("", "median", "best", "tokens/s", "engine calls")]
    for figure in report.prefill:
        name = f"prefill of {count_of(report.prompt_tokens, 'token')}, {figure.mode}"
        times = (f"{figure.median_ms:.2f} ms", f"{figure.best_ms:.2f} ms")
        rows.append((name, *times, f"{figure.tokens_per_second:,.0f}", str(len(figure.chunks))))
    decode = report.decode
    times = (f"{decode.median_ms_per_token:.3f} ms", f"{decode.best_ms_per_token:.3f} ms")
    rows.append(("decode of one token", *times, f"{decode.tokens_per_second:,.0f}", "1"))
    lines = [
        f"{report.bundle}: {report.model_id}, {report.precision}, {report.decoder_engine_layout}",
        f"{report.backend} {report.backend_version}, {count_of(report.threads, 'thread')}, {report.processor}",
        format_table(rows, right_aligned=(1, 2, 3, 4)),
    ]
    if report.prefill_speedup is not None:
        lines.append(f"chunks are {report.prefill_speedup:g} times as fast as the token loop")
    return "\n".join(lines)


COMMAND = Command("bench", "time prefill and decode, chunked against token loop", add_arguments, run)
