"""Make the parts of ``docs/format.md`` that could drift: key tables from the schemas, bytes from a test vector, rules.

bash scripts/regenerate
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from annotated_hexdump import annotated_hexdump
from schema_tables import key_table

from rowpack_loaders.validation.runner import LAYERS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "format.md"
SHOWN_BUNDLE = ROOT / "schema" / "vectors" / "good" / "tiny-single.bundle"


def hexdump() -> str:
    """Return the whole of a small bundle as bytes."""
    return f"\n```\n{annotated_hexdump(SHOWN_BUNDLE.read_bytes())}\n```\n"


def rule_table() -> str:
    """Return every rule of the validator with the first sentence of what it says of itself."""
    lines = ["| layer | rule |", "| --- | --- |"]
    lines += [f"| {layer} | {text} |" for layer, text in rule_lines()]
    return "\n" + "\n".join(lines) + "\n"


def rule_lines() -> Iterator[tuple[str, str]]:
    """Yield layer and first sentence of each rule."""
    for layer in LAYERS:
        header_only = "" if layer.reads_sections else " ·"
        for rule in layer.rules:
            text = " ".join((rule.__doc__ or "").split("\n\n")[0].split())
            yield f"{layer.name}{header_only}", text


PARTS: dict[str, Callable[[], str]] = {
    "hexdump": hexdump,
    "header keys": lambda: key_table("header"),
    "manifest keys": lambda: key_table("manifest"),
    "runtime.qwen3_5 keys": lambda: key_table("runtime.qwen3_5"),
    "runtime.rwkv keys": lambda: key_table("runtime.rwkv"),
    "golden keys": lambda: key_table("golden"),
    "trailer keys": lambda: key_table("trailer"),
    "rules": rule_table,
}


def generated(document: str) -> str:
    """Return the document with its generated parts made anew."""
    for name, make in PARTS.items():
        pattern = re.compile(rf"(<!-- {re.escape(name)}: [^\n]*-->)\n.*?(<!-- end of {re.escape(name)} -->)", re.DOTALL)
        (found,) = pattern.finditer(document)
        document = f"{document[: found.start()]}{found[1]}{make()}{found[2]}{document[found.end() :]}"
    return document


def main() -> None:
    """Write the document anew."""
    DOCUMENT.write_text(generated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
