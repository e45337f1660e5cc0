"""Say of a bundle what a catalog of bundles needs: to choose it, fetch it, and know that it is the right file.

The form is ``schema/catalog_entry.schema.json``. Header, manifest and trailer are read, no section.
"""

from __future__ import annotations

from rowpack_loaders.bundle import Bundle
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest import MANIFEST_SECTION, EngineRecord
from rowpack_loaders.manifest_fields import Fields

ENTRY_VERSION = 1
USES = ("decode", "prefill")


def catalog_entry(bundle: Bundle, *, url: str | None = None, sha256: str | None = None) -> dict[str, object]:
    """Return the entry of an open bundle; ``sha256`` is that of the whole file, where it is known.

    Raises :class:`RowpackError` ``catalog_needs_trailer`` for a bundle without one, by whose digest the file is known,
    and ``manifest_malformed``.
    """
    manifest = Fields(bundle.manifest, "", f"{bundle.path}: {MANIFEST_SECTION}")
    model, producer = manifest.child("model"), manifest.child("producer")
    engines = {use: bundle.engines[use] for use in USES if use in bundle.engines}
    return {
        "entry_version": ENTRY_VERSION,
        "file": {
            "name": bundle.path.name,
            "url": url,
            "length": bundle.container.file_size,
            "file_digest": _file_digest(bundle),
            "sha256": sha256,
        },
        "content_digest": manifest.text("content_digest"),
        "schema_version": manifest.text("schema_version"),
        "required_features": list(manifest.texts("required_features")),
        "producer": {"name": producer.text("name"), "version": producer.text("version")},
        "model": {
            "id": model.text("id"),
            "revision": model.optional_text("revision"),
            "family": model.text("family"),
            "architecture": model.text("architecture"),
            "parameter_count": model.optional_integer("parameter_count"),
            "precision": model.text("precision"),
            "quantization": model.optional_text("quantization"),
        },
        "backend": bundle.backend,
        "decoder_engine_layout": bundle.decoder_engine_layout,
        "engines": [_engine(use, engine, manifest) for use, engine in engines.items()],
        "memory": {
            "weight_bytes": _weight_bytes(manifest, list(engines)),
            "state_bytes": sum(state.fixed_bytes for state in bundle.states),
            "key_value_bytes_per_token": sum(state.bytes_per_token for state in bundle.states),
        },
        "limits": {
            "max_cache_length": bundle.limits.max_cache_length,
            "prefill_rows": bundle.limits.prefill_rows,
        },
        "verified": manifest.optional_child("self_test") is not None,
        "signatures": [],
    }


def _file_digest(bundle: Bundle) -> str:
    trailer = bundle.trailer()
    digest = None if trailer is None else trailer.get("file_digest")
    if not isinstance(digest, str):
        raise RowpackError(
            "catalog_needs_trailer",
            "A catalog knows a file by the digest in its trailer, and the bundle has none",
            where=str(bundle.path),
            found="no trailer" if trailer is None else "a trailer without it",
            expected="a trailer with a file_digest",
            remedy="Build the bundle again, or convert it with rowpack migrate",
        )
    return digest


def _engine(use: str, engine: EngineRecord, manifest: Fields) -> dict[str, object]:
    return {
        "use": use,
        "backend_version": engine.backend_version,
        "target": manifest.child("engines").child(use).child("target").raw,
        "rows": engine.rows.max,
    }


def _weight_bytes(manifest: Fields, uses: list[str]) -> int | None:
    """Return the bytes of one shared copy, or of the copies that the engines hold; None when one is unknown."""
    weights = manifest.optional_child("weights")
    if weights is not None:
        return weights.integer("tensor_bytes")
    engines = manifest.child("engines")
    copies = [engines.child(use).child("resident_bytes").optional_integer("weights") for use in uses]
    known = [copy for copy in copies if copy is not None]
    return sum(known) if len(known) == len(copies) else None
