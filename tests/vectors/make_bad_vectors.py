"""Write ``schema/vectors``: two good bundles, and every broken one as a recipe with what it must cause.

    bash scripts/regenerate

A test makes the same again and compares.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bad_container_vectors
import bad_engine_vectors
import bad_file_vectors
import bad_manifest_vectors
import bad_section_table_vectors
import bad_section_vectors
from bad_vector import SINGLE, SPLIT, BadVector
from forged_bundles import good_bundle
from vector_recipes import recipe_of

VECTORS = Path(__file__).resolve().parents[2] / "schema" / "vectors"
GOOD = VECTORS / "good"
BAD = VECTORS / "bad"
LAYOUTS = {SPLIT: "split", SINGLE: "single"}
MODULES = (
    bad_file_vectors,
    bad_container_vectors,
    bad_section_table_vectors,
    bad_manifest_vectors,
    bad_section_vectors,
    bad_engine_vectors,
)


def vectors() -> Iterator[BadVector]:
    """Yield every vector; a name is used once."""
    seen: set[str] = set()
    for module in MODULES:
        for vector in module.VECTORS.vectors:
            if vector.name in seen:
                raise ValueError(f"two vectors are called {vector.name}")
            seen.add(vector.name)
            yield vector


def recipe(vector: BadVector) -> dict[str, Any]:
    """Return the content of ``recipe.json``."""
    pieces = list(vector.pieces)
    if vector.data is not None:
        pieces = recipe_of(vector.data, good_bundle(LAYOUTS[vector.base]))
    uses_base = vector.kind != "file" or any("base" in piece for piece in pieces)
    return {"kind": vector.kind, "base": f"good/{vector.base}" if uses_base else None, "pieces": pieces}


def files() -> Iterator[tuple[Path, bytes]]:
    """Yield the path and content of every file below ``schema/vectors`` that is made here."""
    for name, layout in LAYOUTS.items():
        yield GOOD / name, good_bundle(layout)
    for vector in vectors():
        yield BAD / vector.name / "recipe.json", as_json(recipe(vector))
        yield BAD / vector.name / "expected.json", as_json(vector.expectation())


def as_json(value: object) -> bytes:
    """Return JSON that a person can read, one piece a line."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    return (text + "\n").encode()


def main() -> None:
    """Write every file anew."""
    shutil.rmtree(BAD, ignore_errors=True)
    for path, content in files():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
