"""Draw what grows: time and memory of prompts, time and memory of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from picture_style import BLUE, GREEN, INK, ORANGE, PURPLE, SKY, VERMILION, Figures, grid, seconds_words, tokens_axis

LINES = {
    "rowpack chunked": (BLUE, "o"),
    "rowpack token loop": (SKY, "s"),
    "transformers": (VERMILION, "^"),
    "llama.cpp": (ORANGE, "v"),
    "ONNX Runtime GenAI": (PURPLE, "D"),
}
OTHER_LINE = (GREEN, "x")
Line = tuple[str, list[Figures], dict[str, Any]]


def paint_prompt_times(axes: Any, results: Figures) -> None:
    """Draw the time of a prompt against its length, a line a contender."""
    plot_prompts(axes, results, lambda entry: entry["prefill_ms"] / 1e3, seconds_words, steps=(1.0,))
    axes.set_ylabel("time until the last row's logits")


def paint_prompt_memory(axes: Any, results: Figures) -> None:
    """Draw the memory of a process of its own after prompts up to each length; pages of mapped files are not in it."""
    steps = (1.0, 2.0, 5.0)
    plot_prompts(axes, results, lambda entry: entry["anonymous_bytes"] / 1e6, lambda mb: f"{mb:,g} MB", steps=steps)
    axes.set_ylabel("the process's own memory after the prompt")


def plot_prompts(
    axes: Any,
    results: Figures,
    value: Callable[[Figures], float],
    words: Callable[[float], str],
    *,
    steps: tuple[float, ...],
) -> None:
    """Plot a value against prompt length, both logarithmic; ``steps`` are the marks in each power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for label, entries, style in prompt_lines(results):
        axes.plot([entry["tokens"] for entry in entries], [value(entry) for entry in entries], label=label, **style)
    tokens_axis(axes, lengths_of(results))
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: words(number)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    grid(axes)
    legend_below(axes)


def legend_below(axes: Any) -> None:
    """Put the legend under the axis, where no line runs: the whole model in one column, its first layers in another."""
    columns = 2 if len(axes.get_lines()) > 3 else 3
    axes.legend(frameon=False, loc="upper center", fontsize=9, bbox_to_anchor=(0.5, -0.13), ncols=columns)


def prompt_lines(results: Figures) -> Iterator[Line]:
    """Yield label, entries and style of each line: the whole model solid, its first layers dashed."""
    thin = results.get("long-prompts") or {}
    for entries, layers in ((results.get("prompts", []), ""), (thin.get("prompts", []), thin.get("layers", ""))):
        for name in dict.fromkeys(entry["contender"] for entry in entries):
            colour, marker = LINES.get(name, OTHER_LINE)
            style = {"color": colour, "marker": marker, "markersize": 5}
            if layers:
                style |= {"linestyle": "--", "markerfacecolor": "white", "linewidth": 1.1}
            label = f"{name}, {layers}" if layers else name
            yield label, [entry for entry in entries if entry["contender"] == name], style


def lengths_of(results: Figures) -> list[int]:
    """Return every prompt length that was measured."""
    entries = [*results.get("prompts", []), *(results.get("long-prompts") or {}).get("prompts", [])]
    return sorted({entry["tokens"] for entry in entries})


def paint_layers(axes: Any, results: Figures) -> None:
    """Draw the time of a prompt and of a step against the number of layers, and the memory on an axis to the right."""
    entries = results["layers"]
    sizes = [entry["size"] for entry in entries]
    tokens = entries[0]["prompt_tokens"]
    right = axes.twinx()
    right.spines["right"].set_visible(True)
    lines = [
        *axes.plot(
            sizes, [e["prefill_ms"] for e in entries], marker="o", color=BLUE, label=f"prompt of {tokens} tokens, ms"
        ),
        *axes.plot(sizes, [10 * e["decode_ms"] for e in entries], marker="s", color=SKY, label="ten steps, ms"),
        *right.plot(
            sizes,
            [e["mapped_bytes"] / 1e6 for e in entries],
            marker="^",
            color=VERMILION,
            linestyle="--",
            label="mapped weights, MB (right)",
        ),
        *right.plot(
            sizes,
            [e["anonymous_bytes"] / 1e6 for e in entries],
            marker="v",
            color=ORANGE,
            linestyle="--",
            label="the process's own memory, MB (right)",
        ),
    ]
    for each in (axes, right):
        each.set_ylim(bottom=0)
        each.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(left=0)
    axes.set_xticks(sizes)
    axes.set_xlabel("layers")
    axes.set_ylabel("ms", color=INK)
    right.set_ylabel("MB", color=INK)
    grid(axes)
    axes.legend(handles=lines, frameon=False, loc="upper left", fontsize=9)
