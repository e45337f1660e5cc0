"""Verify that somebody whose public key you have vouches for the very bytes of a bundle."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rowpack_loaders.bundle_digests import BundleDigests, Progress, digest_bundle
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.signature.keys import PublicKey, load_public_key, signing_library
from rowpack_loaders.signature.signature_file import SignatureFile, default_signature_path, read_signature_file
from rowpack_loaders.signature.statement import SignedFacts, read_statement


@dataclass(frozen=True)
class VerifiedSignature:
    """What was verified: the signed digests are those of the file, by the key of this fingerprint."""

    signature: Path
    key: Path
    key_fingerprint: str
    signed_name: str
    digests: BundleDigests

    def as_json(self) -> dict[str, object]:
        """Return the object that ``rowpack verify-signature --json`` prints."""
        return {
            "verified": True,
            "path": str(self.digests.path),
            "signature": str(self.signature),
            "key": str(self.key),
            "key_fingerprint": self.key_fingerprint,
            "signed_name": self.signed_name,
            "sha256": self.digests.sha256,
            "content_digest": self.digests.content_digest,
            "file_digest": self.digests.file_digest,
        }


def verify_signature(
    bundle: str | os.PathLike[str],
    keys: Sequence[str | os.PathLike[str]],
    *,
    signature: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> VerifiedSignature:
    """Verify the detached signature of ``bundle`` by one of the public ``keys`` (PEM files).

    ``signature`` defaults to the file beside the bundle. The envelope is verified before a byte of the bundle is
    read, and nothing of the file is believed before that. Raises ``signature_wrong_key`` when no signature is of one
    of the keys, ``signature_invalid`` when the file names such a key and was changed since, and
    ``signature_of_another_file`` when the bundle is not the signed one; needs no network.
    """
    path = Path(bundle)
    signature_path = default_signature_path(path) if signature is None else Path(signature)
    loaded = [(Path(key), load_public_key(Path(key))) for key in keys]
    file = read_signature_file(signature_path)
    key_path, key = _verifying_key(file, loaded, signature_path)
    facts = read_statement(file.payload, f"{signature_path}: signed statement")
    digests = digest_bundle(path, progress=progress)
    _check_digests(facts, digests, signature_path)
    return VerifiedSignature(signature_path, key_path, key.fingerprint, facts.name, digests)


def _verifying_key(file: SignatureFile, keys: Sequence[tuple[Path, PublicKey]], where: Path) -> tuple[Path, PublicKey]:
    """Return the first of ``keys`` that made one of the signatures."""
    message = signing_library().Envelope(file.payload, file.payload_type, {}).pae()
    for signature in file.signatures:
        for path, key in keys:
            if key.verifies(signature.value, message):
                return path, key
    named = [path for path, key in keys if key.fingerprint == file.key_hint]
    if named:
        raise RowpackError(
            "signature_invalid",
            "The signature does not belong to what the file says was signed",
            where=str(where),
            found="a statement or signature that was changed",
            expected=f"a signature by {named[0]}",
            remedy="Get the signature from its publisher again",
        )
    raise RowpackError(
        "signature_wrong_key",
        "No signature in the file is by one of the given keys",
        where=str(where),
        found=f"a signature by the key {file.key_hint or 'of which the file says nothing'}",
        expected=", ".join(f"{path} ({key.fingerprint})" for path, key in keys),
        remedy="Give the public key of whoever signed, if you trust them",
    )


def _check_digests(facts: SignedFacts, digests: BundleDigests, where: Path) -> None:
    claims = (
        ("SHA-256", facts.sha256, digests.sha256),
        ("content digest", facts.content_digest, digests.content_digest),
        ("file digest", facts.file_digest, digests.file_digest),
    )
    for name, signed, found in claims:
        if signed is not None and signed != found:
            raise RowpackError(
                "signature_of_another_file",
                "The signature is genuine, and the bundle is not the file that was signed",
                where=str(digests.path),
                found=f"{name} {found}",
                expected=f"{name} {signed}, in {where}",
                remedy="Get bundle and signature again, from one place",
            )
