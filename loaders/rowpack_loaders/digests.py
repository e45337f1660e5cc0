"""Compute the two digests of a bundle, and the canonical JSON they are taken over.

``file_digest`` names the file: with gaps required to be zero it covers every byte before the trailer.
``content_digest`` names what must reproduce on another machine: it leaves out engine plans, which their
compilers do not reproduce, and what is the build machine's own: how the layout was decided (by the memory that was
found or given; the outcome, ``decoder_engine_layout``, stays), and the golden vectors, whose last digits are those
of its processor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from rowpack_loaders.container_header import SectionRange

DIGEST_PREFIX = "sha256:"
UNREPRODUCIBLE_SUFFIX = ".plan"
PLACE_KEYS = ("length", "sha256", "extents")
LEFT_OUT_KEYS = ("content_digest", "layout_decision")


def canonical_json(value: object) -> bytes:
    """Return ``value`` as canonical JSON: UTF-8, keys sorted by code point, no spaces, no NaN.

    Floats are written in the shortest form that reads back the same (Python's ``repr``), always with a
    fraction or an exponent, so that an integer and a float never look alike.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return text.encode("utf-8")


def content_digest(manifest: Mapping[str, object]) -> str:
    """Return ``sha256:…`` over the canonical manifest without what need not reproduce.

    Left out: ``content_digest`` itself and ``layout_decision``; ``length``, ``sha256`` and ``extents`` of sections
    whose name ends in ``.plan`` and of the section that ``self_test`` names; ``executed`` of ``self_test``.
    """
    kept = {key: value for key, value in manifest.items() if key not in LEFT_OUT_KEYS}
    sections, self_test = kept.get("sections"), kept.get("self_test")
    golden = self_test.get("section") if isinstance(self_test, Mapping) else None
    if isinstance(sections, Mapping):
        kept["sections"] = {
            name: _without(entry, PLACE_KEYS) if name.endswith(UNREPRODUCIBLE_SUFFIX) or name == golden else entry
            for name, entry in sections.items()
        }
    if "self_test" in kept:
        kept["self_test"] = _without(self_test, ("executed",))
    return DIGEST_PREFIX + hashlib.sha256(canonical_json(kept)).hexdigest()


def file_digest(
    header_sha256: str, sections: Mapping[str, SectionRange], digests: Mapping[str, str], payload_start: int
) -> str:
    """Return ``sha256:…`` over ``{"header": …, "sections": {name: {"length", "offset", "sha256"}}}``.

    ``header_sha256`` is taken over the bytes before the payload (magic, length and header); ``digests`` holds
    the SHA-256 of every section's stored bytes; offsets are those of the header.
    """
    table = {
        name: {
            "length": section.length_bytes,
            "offset": section.offset_bytes - payload_start,
            "sha256": digests[name],
        }
        for name, section in sections.items()
    }
    canonical = canonical_json({"header": header_sha256, "sections": table})
    return DIGEST_PREFIX + hashlib.sha256(canonical).hexdigest()


def _without(entry: object, keys: tuple[str, ...]) -> object:
    if not isinstance(entry, Mapping):
        return entry
    return {key: value for key, value in entry.items() if key not in keys}
