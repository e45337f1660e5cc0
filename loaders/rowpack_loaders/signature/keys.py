"""Load the keys of signatures from PEM files: Ed25519, and ECDSA on P-256, P-384 or P-521.

The cryptography is securesystemslib's, an optional dependency (extra ``signing``) that is imported when a key is
loaded. Private keys are loaded by ``rowpack.signing``, with the same refusals.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowpack_loaders.errors import RowpackError

KEY_LIMIT_BYTES = 2**16
KEY_TYPES = ("ed25519", "ecdsa")


@dataclass(frozen=True)
class PublicKey:
    """A key that signatures are checked by; ``fingerprint`` is the SHA-256 of its PEM text (the file's hint)."""

    fingerprint: str
    key: Any

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Tell whether ``signature`` is this key's over ``message``."""
        library = signing_library()
        try:
            self.key.verify_signature(library.signer.Signature(self.key.keyid, signature.hex()), message)
        except library.UnverifiedSignatureError:
            return False
        return True


@dataclass(frozen=True)
class SigningLibrary:
    """What is used of securesystemslib and of the package cryptography."""

    signer: Any
    Envelope: Any
    UnverifiedSignatureError: type[Exception]
    serialization: Any
    UnsupportedAlgorithm: type[Exception]


def signing_library() -> SigningLibrary:
    """Import the signing library; raises ``signing_library_missing``."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from securesystemslib import signer
        from securesystemslib.dsse import Envelope
        from securesystemslib.exceptions import UnverifiedSignatureError
    except ImportError as error:
        raise RowpackError(
            "signing_library_missing",
            "The library that signatures are made and checked with is not installed",
            found=str(error),
            expected="securesystemslib with cryptography",
            remedy="Install rowpack with the extra signing: pip install 'rowpack[signing]'",
        ) from error
    return SigningLibrary(signer, Envelope, UnverifiedSignatureError, serialization, UnsupportedAlgorithm)


def load_public_key(path: Path) -> PublicKey:
    """Load a public key; raises ``signing_key_…`` for what cannot be used."""
    library = signing_library()
    data = read_key_file(path)
    if b"PRIVATE KEY-----" in data:
        raise key_malformed(path, "a private key", "a public key: signatures are checked without the secret")
    try:
        key = library.serialization.load_pem_public_key(data)
    except (ValueError, library.UnsupportedAlgorithm) as error:
        raise key_malformed(path, _first_line(error), "a public key in PEM form") from error
    return public_key(library, key, path)


def public_key(library: SigningLibrary, key: Any, path: Path) -> PublicKey:
    """Wrap a public key of the package cryptography; raises ``signing_key_unsupported``."""
    try:
        wrapped = library.signer.SSlibKey.from_crypto(key)
    except ValueError:
        wrapped = None
    if wrapped is None or wrapped.keytype not in KEY_TYPES:
        raise RowpackError(
            "signing_key_unsupported",
            "Bundles are not signed with keys of this kind",
            where=str(path),
            found=type(key).__name__.lstrip("_"),
            expected="Ed25519, or ECDSA on P-256, P-384 or P-521",
            remedy="openssl genpkey -algorithm ed25519 makes such a key",
        )
    encoding, form = library.serialization.Encoding, library.serialization.PublicFormat
    pem = key.public_bytes(encoding.PEM, form.SubjectPublicKeyInfo)
    return PublicKey(hashlib.sha256(pem).hexdigest(), wrapped)


def read_key_file(path: Path) -> bytes:
    """Read a key file; raises ``signing_key_not_readable``, and ``signing_key_malformed`` for one too long."""
    try:
        with path.open("rb") as stream:
            data = stream.read(KEY_LIMIT_BYTES + 1)
    except OSError as error:
        raise RowpackError(
            "signing_key_not_readable",
            "The key file cannot be read",
            where=str(path),
            found=error.strerror or str(error),
            expected="a key file",
            remedy="Check the path and the permissions",
        ) from error
    if len(data) > KEY_LIMIT_BYTES:
        raise key_malformed(path, f"more than {KEY_LIMIT_BYTES} bytes", "a key in PEM form")
    return data


def key_malformed(path: Path, found: str, expected: str) -> RowpackError:
    """Return the error for a file that is not the key it should be."""
    return RowpackError(
        "signing_key_malformed", "The file does not hold such a key", where=str(path), found=found, expected=expected
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
