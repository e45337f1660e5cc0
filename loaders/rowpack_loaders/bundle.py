"""Open a bundle: a checked container and its manifest, decided upon before any engine is touched."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType

from rowpack_loaders import manifest as records
from rowpack_loaders.container import DEFAULT_SECTION_LIMIT_BYTES, Container
from rowpack_loaders.container_header import Header, SectionRange
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.older import describe_older, is_older
from rowpack_loaders.strict_json import parse_json_object

MANIFEST_LIMIT_BYTES = 16 * 2**20
MANIFEST_VALUES_LIMIT = 200_000


class Bundle:
    """An open bundle. ``manifest`` is the raw dictionary; the properties are typed readings of it.

    Use :func:`open_bundle`; the object is a context manager. Opening checks header and manifest by the
    digests in the trailer, where there is one; ``rowpack_loaders.validate`` checks every section. A bundle from
    before the manifest (:attr:`is_older`) shows one made of what it says, and unknown for the rest.
    """

    def __init__(self, container: Container, manifest: dict[str, object]) -> None:
        self.container = container
        self.manifest = manifest

    @property
    def path(self) -> Path:
        """The path the bundle was opened by."""
        return self.container.path

    @property
    def is_older(self) -> bool:
        """Whether the file has no manifest of its own; it can be inspected and converted, not loaded."""
        return is_older(self.container)

    @property
    def header(self) -> Header:
        """The container's header."""
        return self.container.header

    @property
    def family(self) -> str:
        """The model family, such as ``qwen3_5``."""
        return self.container.family

    @property
    def backend(self) -> str:
        """The backend whose engines the bundle holds, such as ``ort``."""
        return self.container.backend

    @property
    def sections(self) -> dict[str, SectionRange]:
        """Every section by name, with its absolute byte range."""
        return self.container.sections

    @cached_property
    def decoder_engine_layout(self) -> str:
        """``single`` (one engine) or ``split`` (a decode and a prefill engine)."""
        return records.read_layout(self.manifest, self._where)

    @cached_property
    def engines(self) -> dict[str, records.EngineRecord]:
        """The engines by name: ``decode``, and ``prefill`` in a split bundle."""
        return records.read_engines(self.manifest, self._where)

    @cached_property
    def states(self) -> tuple[records.StateRecord, ...]:
        """The state table."""
        return records.read_states(self.manifest, self._where)

    @cached_property
    def limits(self) -> records.Limits:
        """The limits of a sequence and of one prefill call."""
        return records.read_limits(self.manifest, self._where)

    @cached_property
    def tokens(self) -> records.Tokens:
        """The vocabulary size and the special tokens."""
        return records.read_tokens(self.manifest, self._where)

    def require_manifest(self) -> None:
        """Refuse a bundle from before the manifest, where no digest vouches for engines: they are programs."""
        if self.is_older:
            raise RowpackError(
                "container_form_superseded",
                "A bundle from before the manifest cannot be used: nothing vouches for its engines",
                where=str(self.path),
                found=f"the form {self.header.form.name} without a manifest",
                expected="a bundle with a manifest",
                remedy="Convert it with rowpack migrate OLD -o NEW",
            )

    def section_view(self, name: str) -> memoryview:
        """Return a read-only view of a section over the one mapping of the file; nothing is copied."""
        return self.container.section_view(name)

    def section_mapping(self) -> Mapping[str, memoryview]:
        """Return a view of every section by name, all over the same mapping."""
        return self.container.section_mapping()

    def read_section(self, name: str, *, limit_bytes: int = DEFAULT_SECTION_LIMIT_BYTES) -> bytes:
        """Return the stored bytes of a section; refuse one longer than ``limit_bytes`` unread."""
        return self.container.read_section(name, limit_bytes=limit_bytes)

    def trailer(self) -> dict[str, object] | None:
        """Return the trailer's JSON object, or None."""
        return self.container.trailer()

    def close(self) -> None:
        """Close the file; views that are still in use stay valid."""
        self.container.close()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Bundle({str(self.path)!r}, family={self.family!r}, backend={self.backend!r})"

    @property
    def _where(self) -> str:
        return f"{self.path}: {MANIFEST_SECTION}"


def open_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Open the bundle at ``path`` and read its manifest; raise :class:`RowpackError` for what cannot be used.

    Refused beside what :meth:`Container.open` refuses: a manifest that is not strict JSON, another schema major,
    an unknown entry of ``required_features``, a header or manifest without the digest that the trailer gives, and
    an older container that does not say what it holds. Unknown optional keys are left alone.
    """
    container = Container.open(path)
    try:
        manifest = describe_older(container) if is_older(container) else read_manifest(container)
        return Bundle(container, manifest)
    except BaseException:
        container.close()
        raise


def read_manifest(container: Container) -> dict[str, object]:
    """Return the stored manifest of an open container as :func:`open_bundle` accepts it."""
    where = f"{container.path}: {MANIFEST_SECTION}"
    stored = container.read_section(MANIFEST_SECTION, limit_bytes=MANIFEST_LIMIT_BYTES)
    manifest = parse_json_object(stored, where=where, max_values=MANIFEST_VALUES_LIMIT)
    records.check_version(manifest, where)
    _check_trailer_digests(container, stored)
    return manifest


def preamble_sha256(container: Container) -> str:
    """Return the SHA-256 of the bytes before the payload: magic, header length and header."""
    return hashlib.sha256(container.read_at(0, container.payload_start)).hexdigest()


def _check_trailer_digests(container: Container, manifest: bytes) -> None:
    trailer = container.trailer()
    if trailer is None:
        return
    actual = {
        "header_sha256": preamble_sha256(container),
        "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
    }
    for key, digest in actual.items():
        if trailer.get(key) != digest:
            raise RowpackError(
                "trailer_digest_mismatch",
                "The bundle's header or manifest is not the one its trailer was written for",
                where=f"{container.path}: trailer#/{key}",
                found=str(trailer.get(key))[:80],
                expected=digest,
                remedy="The file was damaged or changed: build or copy it again",
            )
