"""Write and read the detached signature: a Sigstore bundle (v0.3, JSON) around a DSSE envelope.

    {"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
     "verificationMaterial": {"publicKey": {"hint": SHA-256 of the public key's PEM text}, "tlogEntries": []},
     "dsseEnvelope": {"payload": base64, "payloadType": "application/vnd.in-toto+json",
                      "signatures": [{"sig": base64, "keyid": ""}]}}

It names no key to be trusted: ``hint`` only tells which key to look for. What is signed is the envelope's
pre-authentication encoding (github.com/secure-systems-lab/dsse, protocol.md).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from rowpack_loaders.digests import canonical_json
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.signature.json_reader import JsonReader
from rowpack_loaders.signature.statement import PAYLOAD_TYPE
from rowpack_loaders.strict_json import parse_json_object

SIGNATURE_SUFFIX = ".sigstore.json"
MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
SIGNATURE_LIMIT_BYTES = 2**20
MOST_SIGNATURES = 64


@dataclass(frozen=True)
class Signature:
    """One signature of an envelope; ``key_id`` is a note of the signer's that nobody vouches for."""

    key_id: str
    value: bytes


@dataclass(frozen=True)
class SignatureFile:
    """A parsed signature file; nothing in it has been verified."""

    payload: bytes
    payload_type: str
    signatures: tuple[Signature, ...]
    key_hint: str | None


def default_signature_path(bundle: Path) -> Path:
    """Return where a bundle's signature is looked for: beside it."""
    return bundle.with_name(bundle.name + SIGNATURE_SUFFIX)


def encode_signature_file(file: SignatureFile) -> bytes:
    """Return the text of a signature file."""
    return canonical_json(
        {
            "mediaType": MEDIA_TYPE,
            "verificationMaterial": {"publicKey": {"hint": file.key_hint}, "tlogEntries": []},
            "dsseEnvelope": {
                "payload": base64.b64encode(file.payload).decode("ascii"),
                "payloadType": file.payload_type,
                "signatures": [
                    {"sig": base64.b64encode(signature.value).decode("ascii"), "keyid": signature.key_id}
                    for signature in file.signatures
                ],
            },
        }
    )


def read_signature_file(path: Path) -> SignatureFile:
    """Read the signature file at ``path``.

    Raises ``signature_not_found``, ``signature_not_readable`` and ``signature_malformed``, and what parsing JSON
    raises. Keys this program does not know are left alone: transparency logs add some.
    """
    where = str(path)
    content = parse_json_object(_read(path), where=where)

    def refusal(pointer: str, found: str, expected: str) -> RowpackError:
        return RowpackError(
            "signature_malformed",
            "The file is not a signature in the form of a Sigstore bundle with a DSSE envelope",
            where=f"{where}#{pointer}",
            found=found,
            expected=expected,
            remedy="Sign the bundle with rowpack sign or model_signing",
        )

    reader = JsonReader(refusal)
    reader.text(content, "mediaType", "", wanted=MEDIA_TYPE)
    envelope = reader.member(content, "dsseEnvelope", "")
    payload_type = reader.text(envelope, "payloadType", "/dsseEnvelope", wanted=PAYLOAD_TYPE)
    signatures = []
    for index, entry in enumerate(reader.entries(envelope, "signatures", "/dsseEnvelope", most=MOST_SIGNATURES)):
        pointer = f"/dsseEnvelope/signatures/{index}"
        key_id = reader.optional_text(entry, "keyid", pointer) or ""
        signatures.append(Signature(key_id, reader.decoded(entry, "sig", pointer)))
    return SignatureFile(
        payload=reader.decoded(envelope, "payload", "/dsseEnvelope"),
        payload_type=payload_type,
        signatures=tuple(signatures),
        key_hint=_key_hint(content),
    )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(SIGNATURE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise RowpackError(
            "signature_not_found",
            "There is no signature file",
            where=str(path),
            found="nothing",
            expected="a detached signature, as rowpack sign writes it beside the bundle",
            remedy="Name it with --signature, or ask whoever published the bundle",
        ) from None
    except OSError as error:
        raise RowpackError(
            "signature_not_readable",
            "The signature file cannot be read",
            where=str(path),
            found=error.strerror or str(error),
            expected="a detached signature",
        ) from error
    if len(data) > SIGNATURE_LIMIT_BYTES:
        raise RowpackError(
            "signature_malformed",
            "The file is too long to be a signature",
            where=str(path),
            found=f"more than {SIGNATURE_LIMIT_BYTES} bytes",
            expected=f"at most {SIGNATURE_LIMIT_BYTES} bytes",
        )
    return data


def _key_hint(content: dict[str, object]) -> str | None:
    material = content.get("verificationMaterial")
    public_key = material.get("publicKey") if isinstance(material, dict) else None
    hint = public_key.get("hint") if isinstance(public_key, dict) else None
    return hint if isinstance(hint, str) else None
