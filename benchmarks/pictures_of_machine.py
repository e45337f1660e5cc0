"""Draw bytes of bundles, the roof over the machine, WKV's memory, and the start-up of commands."""

from __future__ import annotations

from typing import Any

from growing_shapes import WKV_HIDDEN, wkv_tensor_bytes
from picture_style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, SOFT_INK, VERMILION, Figures, grid


def paint_bytes(axes: Any, results: Figures) -> None:
    """Draw file and memory of each bundle as two bars, the memory stacked of mapped and own pages."""
    entries = results["bytes"]
    places = range(len(entries))
    thickness = 0.38
    largest = max(entry["file_bytes"] for entry in entries)
    unit, per_unit = ("GB (10⁹ bytes)", 1e9) if largest >= 1e9 else ("MB (10⁶ bytes)", 1e6)
    digits = 2 if per_unit == 1e9 else 0
    files, mapped, own = (
        [entry[key] / per_unit for entry in entries] for key in ("file_bytes", "mapped_bytes", "anonymous_bytes")
    )
    lower, upper = ([place + shift for place in places] for shift in (thickness / 2, -thickness / 2))
    axes.barh(upper, files, thickness, color=GREY, label="file")
    axes.barh(lower, mapped, thickness, color=SKY, label="memory: mapped pages, shared")
    axes.barh(lower, own, thickness, left=mapped, color=VERMILION, label="memory: the process's own")
    ends = [*zip(upper, files, strict=True)]
    ends += [(place, sum(pair)) for place, pair in zip(lower, zip(mapped, own, strict=True), strict=True)]
    for place, total in ends:
        axes.text(total, place, f" {total:,.{digits}f}", va="center", fontsize=8)
    engines = {"single": "one engine", "split": "two engines"}
    axes.set_yticks(list(places), [f"{entry['precision']}, {engines[entry['layout']]}" for entry in entries])
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.set_xlim(0, max(total for _, total in ends) * 1.1)
    grid(axes, "x")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.4, -0.12), ncols=3, fontsize=9)


def paint_roof(axes: Any, results: Figures) -> None:
    """Draw the machine's limits, and where prompts and steps stand under them."""
    from matplotlib.ticker import FuncFormatter

    roof, points = results["roof"]["roof"], results["roof"]["points"]
    peak, bandwidth = roof["operations_per_second"] / 1e9, roof["bytes_per_second"] / 1e9
    intensities = [point["operations_per_byte"] for point in points]
    left, right, ridge = min(intensities) / 2, max([*intensities, peak / bandwidth]) * 4, peak / bandwidth
    # Far enough up the slope that the words end before it and begin right of the axis.
    on_slope = left**0.2 * ridge**0.8
    axes.plot([left, ridge, right], [left * bandwidth, peak, peak], color=INK, linewidth=1.8)
    axes.annotate(
        f"float32 product: {peak:.0f} GFLOP/s", (right, peak), (-4, 6), textcoords="offset points", ha="right"
    )
    axes.annotate(
        f"memory read at {bandwidth:.1f} GB/s",
        (on_slope, on_slope * bandwidth),
        (-10, 4),
        textcoords="offset points",
        ha="right",
    )
    step_styles = iter(zip("DsP^", (VERMILION, GREEN, ORANGE, PURPLE), strict=True))
    for point in points:
        place = point["operations_per_byte"], point["operations_per_second"] / 1e9
        share = place[1] / min(peak, place[0] * bandwidth)
        label = f"{point['label']}: {100 * share:.0f} %"
        is_prompt = point["label"].startswith("prompt")
        marker, color = ("o", BLUE) if is_prompt else next(step_styles)
        axes.plot(*place, marker=marker, markersize=7, linestyle="none", color=color, label="" if is_prompt else label)
        if is_prompt:
            axes.annotate(label, place, (9, -4), textcoords="offset points", fontsize=9, va="top")
    # Steps of one width of weights lie close to each other's.
    axes.legend(loc="lower right", fontsize=9, frameon=False)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_major_formatter(plain)
    axes.yaxis.set_major_formatter(plain)
    axes.set_xlim(left, right)
    least = min(left * bandwidth, *(point["operations_per_second"] / 1e9 for point in points))
    axes.set_ylim(bottom=0.7 * least)
    axes.set_xlabel("operations for each byte of weights read")
    axes.set_ylabel("GFLOP/s (percentages: of what is attainable there)")
    grid(axes)


def paint_wkv(axes: Any, results: Figures) -> None:
    """Draw what a prompt adds to a process in both forms, beside the size of the exponents written out."""
    entries = results["wkv"]
    rows = sorted({entry["rows"] for entry in entries})
    thickness = 0.27
    held = {
        (entry["rows"], entry["block_rows"] == entry["rows"]): (
            (entry["anonymous_bytes"] - entry["loaded_anonymous_bytes"]) / 1e6
        )
        for entry in entries
    }
    blocks = min(entry["block_rows"] for entry in entries)
    groups = (
        (f"[rows + 1, rows, {WKV_HIDDEN:,}] in float32", GREY, [wkv_tensor_bytes(n, WKV_HIDDEN) / 1e6 for n in rows]),
        ("memory, written out", ORANGE, [held[n, True] for n in rows]),
        (f"memory, blocks of {blocks} rows (as built)", BLUE, [held[n, False] for n in rows]),
    )
    for number, (label, colour, heights) in enumerate(groups):
        places = [place + (number - 1) * thickness for place in range(len(rows))]
        axes.bar(places, heights, thickness, color=colour, label=label)
        for place, height in zip(places, heights, strict=True):
            axes.text(place, height, f"{height:,.0f}", ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(rows)), [str(count) for count in rows])
    axes.set_xlabel("rows of a chunk")
    axes.set_ylabel("MB")
    grid(axes, "y")
    axes.legend(frameon=False, loc="upper left", fontsize=9)


def paint_start_up(axes: Any, results: Figures) -> None:
    """Draw the median times of each command's help and smallest run, with the range of the rounds."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    entries = results["start-up"]
    thickness = 0.38
    for number, (key, label, colour) in enumerate(
        (("help_s", "--help", SKY), ("run_s", "smallest run", BLUE)),
    ):
        measured = [(place, entry[key]) for place, entry in enumerate(entries) if entry[key]]
        places = [place + (number - 0.5) * thickness for place, _ in measured]
        medians = [1e3 * taken["median"] for _, taken in measured]
        ranges = [
            [1e3 * (taken["median"] - taken["least"]) for _, taken in measured],
            [1e3 * (taken["most"] - taken["median"]) for _, taken in measured],
        ]
        axes.barh(places, medians, thickness, color=colour, label=label)
        axes.errorbar(medians, places, xerr=ranges, fmt="none", ecolor=SOFT_INK, elinewidth=0.8)
        for place, (_, taken) in zip(places, measured, strict=True):
            axes.text(1e3 * taken["most"], place, f" {1e3 * taken['median']:,.0f}", va="center", fontsize=7.5)
    axes.set_yticks(range(len(entries)), [entry["command"] for entry in entries])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(y=0.01)
    axes.set_xlim(
        right=2e3 * max(taken["most"] for entry in entries for taken in (entry["help_s"], entry["run_s"]) if taken)
    )
    axes.set_xlabel("ms, of the whole process")
    grid(axes, "x")
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, fontsize=9, borderaxespad=0.2)
