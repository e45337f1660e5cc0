"""How every picture looks: size, colours that colour-blind people tell apart, title, axes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
Painter = Callable[[Any, Figures], None]

WIDTH_INCHES, HEIGHT_INCHES, DOTS_PER_INCH = 7.5, 4.8, 120
BLUE, SKY, VERMILION, GREEN, ORANGE, PURPLE = "#0072b2", "#56b4e9", "#d55e00", "#009e73", "#e69f00", "#cc79a7"
"""From the palette of Okabe and Ito, made for colour-blind readers."""
INK, SOFT_INK, GRID, GREY = "#222222", "#555555", "#dddddd", "#b8b8b8"
SHAPE_NAMES = {"qwen3_5-0.8b": "Qwen3.5-0.8B shape", "rwkv4-169m": "RWKV-4 169m shape"}


def draw(path: Path, title: str, subtitle: str, results: Figures, paint: Painter, height: float = 1.0) -> None:
    """Make one picture with a title and a line below it; ``height`` is a multiple of the usual one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": SOFT_INK,
            "text.color": INK,
            "figure.facecolor": "white",
            "axes.facecolor": "white",
        }
    )
    figure, axes = pyplot.subplots(figsize=(WIDTH_INCHES, HEIGHT_INCHES * height), layout="constrained")
    axes.set_title(title, loc="left", fontweight="bold", pad=22)
    axes.annotate(subtitle, (0, 1), (0, 6), "axes fraction", "offset points", fontsize=9, color=SOFT_INK)
    paint(axes, results)
    # Without the time of drawing and the version, the same figures give the same file.
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
    pyplot.close(figure)


def shape_name(shape: str) -> str:
    """Return a shape's name for people."""
    return SHAPE_NAMES.get(shape, f"{shape} shape")


def grid(axes: Any, axis: str = "both") -> None:
    """Draw thin lines behind everything else."""
    axes.grid(True, which="major", axis=axis, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def tokens_axis(axes: Any, lengths: list[int]) -> None:
    """Make the horizontal axis one of prompt lengths, logarithmic, marked where something was measured."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("prompt length, tokens")


def seconds_words(value: float) -> str:
    """Return seconds as a person says them: ms below one."""
    return f"{value:,g} s" if value >= 1 else f"{value * 1e3:g} ms"
