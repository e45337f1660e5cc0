"""docs/format.md says what schemas, vectors and validator do: its generated parts are made again, its code is run."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from format_document import DOCUMENT, PARTS, ROOT, SHOWN_BUNDLE, generated
from schema_tables import key_rows

from rowpack_loaders import open_bundle
from rowpack_loaders.schema_data import load_schema, schema_names

WRITERS = {"checkpoint", "request", "family", "gate", "backend", "verification", "writer", "migration"}
USES = {"load", "check", "verify", "show"}


def document() -> str:
    """Return the document."""
    return DOCUMENT.read_text(encoding="utf-8")


def test_the_generated_parts_are_those_of_today() -> None:
    assert document() == generated(document()), "run: bash scripts/regenerate"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_drifts_is_noticed(part: str) -> None:
    start = document().index(f"<!-- {part}:")
    end = document().index(f"<!-- end of {part} -->")
    changed = document()[: end - 5] + "x" + document()[end - 4 :]
    assert start < end
    assert generated(changed) == document()


def test_every_key_of_the_manifest_has_a_writer_and_a_use() -> None:
    rows = list(key_rows(load_schema("manifest")))
    assert [row.path for row in rows if row.written_by not in WRITERS or row.use not in USES] == []
    counted = re.compile(r"(?:^|[._])(?:bytes|length|rows|percent)$|_bytes$|_bytes_per_token$|_cache_length$")
    unitless = [row.path for row in rows if counted.search(row.path) and "integer" in row.kind and not row.unit]
    assert unitless == []


def test_words_for_writers_and_uses_are_explained() -> None:
    for word in sorted(WRITERS | USES):
        assert f"| {word} |" in document()


def test_every_schema_is_named() -> None:
    for name in schema_names():
        assert f"schema/{name}.schema.json" in document()


def test_the_reader_shown_reads_the_bundle_shown() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", document(), re.DOTALL)
    assert len(program.splitlines()) <= 40
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, str(SHOWN_BUNDLE)], capture_output=True, text=True, check=True, timeout=60
    )
    with open_bundle(SHOWN_BUNDLE) as bundle:
        manifest: Any = bundle.manifest
        assert done.stdout.split() == [manifest["model"]["id"], *bundle.sections]


def test_links_lead_somewhere() -> None:
    for path in re.findall(r"`((?:schema|docs|tests)/[\w./-]+)`", document()):
        assert (ROOT / path).exists(), path
