"""Write and read what is signed: an in-toto statement of the OpenSSF model-signing kind about one file.

    {"_type": "https://in-toto.io/Statement/v1",
     "subject": [{"name": "x.bundle", "digest": {"sha256": SHA-256 over the resources' digests, as bytes}}],
     "predicateType": "https://model_signing/signature/v1.0",
     "predicate": {"serialization": {"method": "files", "hash_type": "sha256", …},
                   "resources": [{"name": ".", "algorithm": "sha256", "digest": SHA-256 of the whole file}],
                   "rowpack": {"content_digest", "file_digest", "manifest_sha256", "file_bytes"}}}

``rowpack`` is this project's addition, which verifiers of the v1.0 predicate ignore; the rest is what the command
``model_signing`` writes for a single file and checks.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from rowpack_loaders.bundle_digests import BundleDigests
from rowpack_loaders.digests import canonical_json
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.signature.json_reader import JsonReader
from rowpack_loaders.strict_json import parse_json_object

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"

_WHOLE_FILE = "."
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class SignedFacts:
    """What a statement claims of a file; the digests of the format are None where another program signed."""

    name: str
    sha256: str
    content_digest: str | None
    file_digest: str | None


def build_statement(digests: BundleDigests) -> bytes:
    """Return the statement about the bundle as canonical JSON."""
    return canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": digests.path.name, "digest": {"sha256": _root_digest(digests.sha256)}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "serialization": {
                    "method": "files",
                    "hash_type": "sha256",
                    "allow_symlinks": False,
                    "ignore_paths": [],
                },
                "resources": [{"name": _WHOLE_FILE, "algorithm": "sha256", "digest": digests.sha256}],
                "rowpack": {
                    "content_digest": digests.content_digest,
                    "file_digest": digests.file_digest,
                    "manifest_sha256": digests.manifest_sha256,
                    "file_bytes": digests.file_bytes,
                },
            },
        }
    )


def read_statement(payload: bytes, where: str) -> SignedFacts:
    """Return what a signed statement claims.

    Raises ``signature_statement_unsupported`` for a statement of another kind, about a folder, or with other digests
    than SHA-256, and what parsing JSON raises.
    """

    def refusal(pointer: str, found: str, expected: str) -> RowpackError:
        return RowpackError(
            "signature_statement_unsupported",
            "The signed statement is not one about a single bundle",
            where=f"{where}#{pointer}",
            found=found,
            expected=expected,
            remedy="Sign the bundle with rowpack sign, or with model_signing on the file itself",
        )

    reader = JsonReader(refusal)
    statement = parse_json_object(payload, where=where)
    reader.text(statement, "_type", "", wanted=STATEMENT_TYPE)
    reader.text(statement, "predicateType", "", wanted=PREDICATE_TYPE)
    predicate = reader.member(statement, "predicate", "")
    serialization = reader.member(predicate, "serialization", "/predicate")
    reader.text(serialization, "method", "/predicate/serialization", wanted="files")
    reader.text(serialization, "hash_type", "/predicate/serialization", wanted="sha256")
    (resource,) = reader.entries(predicate, "resources", "/predicate", most=1)
    reader.text(resource, "name", "/predicate/resources/0", wanted=_WHOLE_FILE)
    reader.text(resource, "algorithm", "/predicate/resources/0", wanted="sha256")
    sha256 = reader.text(resource, "digest", "/predicate/resources/0")
    if _SHA256.fullmatch(sha256) is None:
        raise refusal("/predicate/resources/0/digest", repr(sha256)[:128], "64 lower-case hexadecimal digits")
    (subject,) = reader.entries(statement, "subject", "", most=1)
    root = reader.member(subject, "digest", "/subject/0")
    reader.text(root, "sha256", "/subject/0/digest", wanted=_root_digest(sha256))
    own = reader.as_object(predicate.get("rowpack", {}), "/predicate/rowpack")
    return SignedFacts(
        name=reader.text(subject, "name", "/subject/0"),
        sha256=sha256,
        content_digest=reader.optional_text(own, "content_digest", "/predicate/rowpack"),
        file_digest=reader.optional_text(own, "file_digest", "/predicate/rowpack"),
    )


def _root_digest(*resource_sha256: str) -> str:
    """Return the digest over the resources' digests, in their order."""
    return hashlib.sha256(b"".join(map(bytes.fromhex, resource_sha256))).hexdigest()
