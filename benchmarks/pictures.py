"""Draw what the benchmarks measured: time against prompt length, bytes, and the roofline.

    python benchmarks/pictures.py docs/pictures growth-qwen.json growth-rwkv.json

Takes the files that ``growth.py --json`` wrote; one picture for each part found in each. Needs matplotlib
(``requirements/benchmarks.txt``), which nothing else here does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Figures = dict[str, Any]

WIDTH_INCHES, HEIGHT_INCHES, DOTS_PER_INCH = 7.5, 4.8, 130
COLOURS = {"rowpack chunked": "#0b6e99", "rowpack token loop": "#7fb8d0", "transformers": "#c8553d"}
MARKERS = {"rowpack chunked": "o", "rowpack token loop": "s", "transformers": "^"}
SHAPE_NAMES = {"qwen3_5-0.8b": "Qwen3.5-0.8B shape", "rwkv4-169m": "RWKV-4 169m shape"}


def main() -> int:
    """Draw every part of every file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("figures", type=Path, nargs="+", help="what growth.py wrote")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    painters: dict[str, Callable[[Any, Figures], None]] = {
        "prompts": paint_prompts,
        "bytes": paint_bytes,
        "roof": paint_roof,
    }
    for source in arguments.figures:
        results = json.loads(source.read_text(encoding="utf-8"))
        for part, paint in painters.items():
            if results.get(part):
                path = arguments.folder / f"{part}-{results['shape']}.png"
                draw(path, results, paint)
                print(path)
    return 0


def draw(path: Path, results: Figures, paint: Callable[[Any, Figures], None]) -> None:
    """Make one picture; ``paint`` fills the axes and sets its title; shape and machine stand below it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = pyplot.subplots(figsize=(WIDTH_INCHES, HEIGHT_INCHES))
    paint(axes, results)
    shape = SHAPE_NAMES.get(results["shape"], results["shape"])
    axes.text(0, 1.015, f"{shape}; {results['short_name']}", transform=axes.transAxes, fontsize=9, color="#555555")
    figure.tight_layout()
    # Without the time of drawing, the same figures give the same file.
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
    pyplot.close(figure)


def set_title(axes: Any, title: str) -> None:
    """Set a title, with room for a line below it."""
    axes.set_title(title, loc="left", fontweight="bold", pad=22)


def paint_prompts(axes: Any, results: Figures) -> None:
    """Draw the time of a prompt against its length, both logarithmic, a line a contender."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for name in dict.fromkeys(entry["contender"] for entry in results["prompts"]):
        entries = [entry for entry in results["prompts"] if entry["contender"] == name]
        tokens, seconds = zip(*((entry["tokens"], entry["prefill_ms"] / 1e3) for entry in entries), strict=True)
        label = f"{name} (float32)"
        axes.plot(tokens, seconds, marker=MARKERS.get(name, "o"), color=COLOURS.get(name), label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g} s" if value >= 1 else f"{value * 1e3:g} ms")
    )
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("prompt length, tokens")
    axes.set_ylabel("time until the last row's logits")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.7)
    axes.legend(frameon=False, loc="upper left")
    set_title(axes, "Time of a prompt against its length")


def paint_bytes(axes: Any, results: Figures) -> None:
    """Draw file and memory of each bundle as two bars, the memory stacked of mapped and own pages."""
    entries = results["bytes"]
    places = range(len(entries))
    thickness = 0.38
    file_gb = [entry["file_bytes"] / 1e9 for entry in entries]
    mapped_gb = [entry["mapped_bytes"] / 1e9 for entry in entries]
    own_gb = [entry["anonymous_bytes"] / 1e9 for entry in entries]
    lower, upper = ([place + shift for place in places] for shift in (thickness / 2, -thickness / 2))
    axes.barh(upper, file_gb, thickness, color="#b8b8b8", label="file")
    axes.barh(lower, mapped_gb, thickness, color="#7fb8d0", label="memory: the file's pages, shared")
    axes.barh(lower, own_gb, thickness, left=mapped_gb, color="#c8553d", label="memory: the process's own")
    for place, total in zip(upper, file_gb, strict=True):
        axes.text(total, place, f" {total:.2f}", va="center", fontsize=8)
    for place, mapped, own in zip(lower, mapped_gb, own_gb, strict=True):
        axes.text(mapped + own, place, f" {mapped + own:.2f}", va="center", fontsize=8)
    engines = {"single": "one engine", "split": "two engines"}
    axes.set_yticks(list(places), [f"{entry['precision']}, {engines[entry['layout']]}" for entry in entries])
    axes.invert_yaxis()
    axes.set_xlabel("GB (10⁹ bytes)")
    axes.set_xlim(0, max([*file_gb, *(sum(pair) for pair in zip(mapped_gb, own_gb, strict=True))]) * 1.1)
    axes.grid(True, axis="x", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.4, -0.13), ncols=3, fontsize=9)
    set_title(axes, "File and memory of bundles with one engine and with two")


def paint_roof(axes: Any, results: Figures) -> None:
    """Draw the machine's limits, and where prompts and a step stand under them."""
    from matplotlib.ticker import FuncFormatter

    roof, points = results["roof"]["roof"], results["roof"]["points"]
    peak, bandwidth = roof["operations_per_second"] / 1e9, roof["bytes_per_second"] / 1e9
    intensities = [point["operations_per_byte"] for point in points]
    left, right, ridge = min(intensities) / 2, max([*intensities, peak / bandwidth]) * 4, peak / bandwidth
    axes.plot([left, ridge, right], [left * bandwidth, peak, peak], color="#444444", linewidth=1.8)
    axes.annotate(
        f"float32 product: {peak:.0f} GFLOP/s", (right, peak), (-4, 6), textcoords="offset points", ha="right"
    )
    middle = (left * ridge) ** 0.5
    place = (middle, middle * bandwidth)
    axes.annotate(f"memory read at {bandwidth:.1f} GB/s", place, (10, -12), textcoords="offset points")
    for point in points:
        place = point["operations_per_byte"], point["operations_per_second"] / 1e9
        is_step = point["label"] == "decode"
        colour = COLOURS["transformers" if is_step else "rowpack chunked"]
        axes.plot(*place, marker="D" if is_step else "o", markersize=7, linestyle="none", color=colour)
        axes.annotate(point["label"], place, (9, 3 if is_step else -10), textcoords="offset points")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_major_formatter(plain)
    axes.yaxis.set_major_formatter(plain)
    axes.set_xlim(left, right)
    axes.set_xlabel("operations for each byte of weights read")
    axes.set_ylabel("GFLOP/s")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.7)
    set_title(axes, "Where prompts and steps stand under the machine's limits")


if __name__ == "__main__":
    sys.exit(main())
