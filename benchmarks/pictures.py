"""Draw what ``growth.py --json`` wrote: a picture for each part that a file holds.

    python benchmarks/pictures.py docs/pictures growth-qwen.json growth-rwkv.json

``time-SHAPE.png`` and ``memory-SHAPE.png`` (prompts), ``layers-SHAPE.png``, ``bytes-SHAPE.png``, ``roof-SHAPE.png``,
and of whatever shape ``wkv.png`` and ``start-up.png``. Needs matplotlib (``requirements/benchmarks.txt``), which
nothing else here does.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from picture_style import Figures, Painter, draw, shape_name
from pictures_of_growth import paint_layers, paint_prompt_memory, paint_prompt_times
from pictures_of_machine import paint_bytes, paint_roof, paint_start_up, paint_wkv


@dataclass(frozen=True)
class Picture:
    """One picture: file name, the parts of which any will do, title, painter, and whether a shape is what it shows."""

    name: str
    parts: tuple[str, ...]
    title: str
    paint: Painter
    of_shape: bool = True
    height: float = 1.0


PICTURES = (
    Picture("time", ("prompts", "long-prompts"), "Time of a prompt against its length, float32", paint_prompt_times),
    Picture("memory", ("prompts", "long-prompts"), "Memory against prompt length, float32", paint_prompt_memory),
    Picture("layers", ("layers",), "Time and memory against the number of layers, float32", paint_layers),
    Picture("bytes", ("bytes",), "File and memory of bundles with one engine and with two", paint_bytes),
    Picture("roof", ("roof",), "Where prompts and steps stand under the machine's limits", paint_roof),
    Picture("wkv", ("wkv",), "Memory that a prompt adds: one RWKV-4 layer, 5,120 wide", paint_wkv, of_shape=False),
    Picture("start-up", ("start-up",), "Start-up of every command", paint_start_up, of_shape=False, height=1.35),
)


def main() -> int:
    """Draw every part of every file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("figures", type=Path, nargs="+", help="what growth.py wrote")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for source in arguments.figures:
        results: Figures = json.loads(source.read_text(encoding="utf-8"))
        for picture in PICTURES:
            if any(results.get(part) for part in picture.parts):
                path, subtitle = arguments.folder / f"{picture.name}.png", results["short_name"]
                if picture.of_shape:
                    path = path.with_name(f"{picture.name}-{results['shape']}.png")
                    subtitle = f"{shape_name(results['shape'])}; {subtitle}"
                draw(path, picture.title, subtitle, results, picture.paint, picture.height)
                print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
