"""Write bundles as later versions of the format might: what a reader of today must take, and what it must refuse.

Each is a whole bundle with right digests, so that only the version speaks against it. ``EXPECTED`` says what comes of
it: how opening ends, and what the validator finds.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from rowpack.bundle import BundleWriter
from rowpack_loaders import open_bundle

Manifest = dict[str, Any]

PRESENT_VERSION = "1.0"
"""The schema's version when the vectors were made; they are made once."""


def new_optional_key(manifest: Manifest) -> None:
    """Add a key without raising the version: readers take it, the validator objects."""
    manifest["colour"] = "green"


def newer_minor(manifest: Manifest) -> None:
    """Raise the minor and add keys and a list entry at several depths."""
    manifest["schema_version"] = "1.7"
    manifest["colour"] = {"hue": 120}
    manifest["model"]["licence"] = "CC0-1.0"
    manifest["engines"]["decode"]["cache_mode"] = "paged"
    manifest["states"][0]["alignment"] = 64
    manifest["tokens"]["unk"] = {"id": 1, "sources": ["tokenizer.json"]}
    manifest["limits"]["max_batch"] = 1


def unknown_required_feature(manifest: Manifest) -> None:
    """Demand a feature that no reader has; its minor is newer too."""
    manifest["schema_version"] = "1.7"
    manifest["required_features"] = ["paged_cache"]


def newer_major(manifest: Manifest) -> None:
    """Follow a schema in which everything may mean something else."""
    manifest["schema_version"] = "2.0"


def unchanged(manifest: Manifest) -> None:
    """Leave the manifest as it is; the container is what is newer."""


CHANGES: dict[str, Callable[[Manifest], None]] = {
    "new-optional-key": new_optional_key,
    "newer-minor": newer_minor,
    "unknown-required-feature": unknown_required_feature,
    "newer-major": newer_major,
    "newer-container": unchanged,
}

EXPECTED: dict[str, dict[str, Any]] = {
    "new-optional-key": {"open": None, "errors": ["schema_key_unknown"], "warnings": []},
    "newer-minor": {"open": None, "errors": [], "warnings": ["schema_key_unknown"]},
    "unknown-required-feature": {
        "open": "manifest_feature_unsupported",
        "errors": ["manifest_feature_unsupported"],
        "warnings": [],
    },
    "newer-major": {
        "open": "manifest_schema_unsupported",
        "errors": ["manifest_schema_unsupported"],
        "warnings": [],
    },
    "newer-container": {
        "open": "header_format_unsupported",
        "errors": ["header_format_unsupported"],
        "warnings": [],
    },
}


def write_vectors(bundle_path: Path, folder: Path) -> None:
    """Write every vector from a bundle of today, and ``expected.json`` beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, change in CHANGES.items():
        path = folder / f"{name}.bundle"
        _write_changed(bundle_path, path, change)
        if name == "newer-container":
            _raise_container_format(path)
    (folder / "expected.json").write_text(json.dumps(EXPECTED, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_changed(source: Path, target: Path, change: Callable[[Manifest], None]) -> None:
    with open_bundle(source) as bundle:
        manifest: Manifest = deepcopy(bundle.manifest)
        entries = manifest.pop("sections")
        del manifest["content_digest"]
        change(manifest)
        trailer: Any = bundle.trailer()
        with BundleWriter(target, family=bundle.family, backend=bundle.backend, manifest_reserve_bytes=12288) as writer:
            for name in bundle.sections:
                if name in entries:
                    options = {key: entries[name][key] for key in ("media_type", "encoding", "required")}
                    writer.add_section(name, bundle.section_view(name), **options)
            writer.finish(manifest, trailer["provenance"])


def _raise_container_format(path: Path) -> None:
    """Say format 2 in the header, and mend the trailer's digest of the header."""
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", data, 8)
    before = hashlib.sha256(data[: 16 + length]).hexdigest()
    at = data.index(b'"format":1')
    data[at : at + 10] = b'"format":2'
    after = hashlib.sha256(data[: 16 + length]).hexdigest()
    path.write_bytes(bytes(data).replace(before.encode(), after.encode()))
