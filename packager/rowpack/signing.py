"""Sign bundles: write a detached file that vouches for a bundle's bytes, without touching them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowpack.bundle.output_file import OutputFile
from rowpack_loaders.bundle_digests import BundleDigests, Progress, digest_bundle
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.signature.keys import key_malformed, public_key, read_key_file, signing_library
from rowpack_loaders.signature.signature_file import (
    Signature,
    SignatureFile,
    default_signature_path,
    encode_signature_file,
)
from rowpack_loaders.signature.statement import PAYLOAD_TYPE, build_statement


@dataclass(frozen=True)
class WrittenSignature:
    """A signature file that was written, and what it vouches for."""

    path: Path
    key_fingerprint: str
    digests: BundleDigests

    def as_json(self) -> dict[str, object]:
        """Return the object that ``rowpack sign --json`` prints."""
        return {
            "path": str(self.digests.path),
            "signature": str(self.path),
            "key_fingerprint": self.key_fingerprint,
            "sha256": self.digests.sha256,
            "content_digest": self.digests.content_digest,
            "file_digest": self.digests.file_digest,
        }


def sign_bundle(
    bundle: str | os.PathLike[str],
    key: str | os.PathLike[str],
    *,
    password: str | None = None,
    signature: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> WrittenSignature:
    """Sign ``bundle`` with the private ``key`` (PEM, Ed25519 or ECDSA) and write the signature beside it.

    A bundle whose recorded digests are not those of its bytes is refused (``bundle_digests_mismatch``): nobody should
    vouch for a damaged file. ``password`` opens an encrypted key. An existing signature file is replaced whole.
    Raises ``signing_…`` for the key, and what :func:`digest_bundle` raises.
    """
    path = Path(bundle)
    signature_path = default_signature_path(path) if signature is None else Path(signature)
    library = signing_library()
    private_key = _load_private_key(library, Path(key), password)
    public = public_key(library, private_key.public_key(), Path(key))
    digests = digest_bundle(path, progress=progress)
    envelope = library.Envelope(build_statement(digests), PAYLOAD_TYPE, {})
    made = library.signer.CryptoSigner(private_key, public.key).sign(envelope.pae())
    file = SignatureFile(
        payload=envelope.payload,
        payload_type=envelope.payload_type,
        signatures=(Signature(public.fingerprint, bytes.fromhex(made.signature)),),
        key_hint=public.fingerprint,
    )
    output = OutputFile(signature_path)
    try:
        output.write(memoryview(encode_signature_file(file)), 0)
        output.publish()
    finally:
        output.discard()
    return WrittenSignature(signature_path, public.fingerprint, digests)


def _load_private_key(library: Any, path: Path, password: str | None) -> Any:
    data = read_key_file(path)
    if b"PUBLIC KEY-----" in data:
        raise key_malformed(path, "a public key", "a private key")
    try:
        return library.serialization.load_pem_private_key(data, None if password is None else password.encode())
    except TypeError as error:  # a password without an encrypted key, or the reverse
        encrypted = password is None
        raise RowpackError(
            "signing_key_password",
            "The key is encrypted, and no password was given"
            if encrypted
            else "A password was given, and the key is not encrypted",
            where=str(path),
            found=f"{'an encrypted' if encrypted else 'a plain'} key, {'no' if encrypted else 'a'} password",
            expected="a password for an encrypted key, and none for another",
            remedy="Name the environment variable that holds it with --key-password-env"
            if encrypted
            else "Leave --key-password-env out",
        ) from error
    except (ValueError, library.UnsupportedAlgorithm) as error:
        wrong = "a private key in PEM form" if password is None else "a private key in PEM form, and its password"
        raise key_malformed(path, str(error).strip().splitlines()[0][:200], wrong) from error
