"""Signing vouches for a bundle's very bytes and leaves them alone; whatever is not genuine is refused with a code."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from key_pairs import PASSWORD, KeyPair, write_key_pair

from rowpack.cli import main
from rowpack.signing import sign_bundle
from rowpack_loaders import RowpackError
from rowpack_loaders.signature import default_signature_path, verify_signature

Capture = pytest.CaptureFixture[str]
Keys = dict[str, KeyPair]


def refusal(call: Callable[[], object]) -> RowpackError:
    """Return the error that ``call`` raises."""
    with pytest.raises(RowpackError) as caught:
        call()
    return caught.value


def edited_signature(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the JSON of a signature file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("kind", ["ed25519", "p256", "p384", "p521"])
def test_each_kind_of_key_signs_and_verifies(kind: str, bundle: Path, keys: Keys) -> None:
    before = bundle.read_bytes()
    written = sign_bundle(bundle, keys[kind].private)
    assert written.path == bundle.with_name("tiny.bundle.sigstore.json")
    assert bundle.read_bytes() == before
    assert sorted(path.name for path in bundle.parent.iterdir()) == ["tiny.bundle", "tiny.bundle.sigstore.json"]
    verified = verify_signature(bundle, [keys["other"].public, keys[kind].public])
    assert verified.key == keys[kind].public
    assert verified.key_fingerprint == written.key_fingerprint
    assert verified.digests == written.digests


def test_a_renamed_bundle_is_still_the_signed_one(bundle: Path, keys: Keys, tmp_path: Path) -> None:
    written = sign_bundle(bundle, keys["ed25519"].private)
    renamed = bundle.rename(tmp_path / "other.bundle")
    verified = verify_signature(renamed, [keys["ed25519"].public], signature=written.path)
    assert verified.signed_name == "tiny.bundle"


def test_an_encrypted_key_needs_its_password(bundle: Path, keys: Keys) -> None:
    key = keys["encrypted"].private
    assert refusal(lambda: sign_bundle(bundle, key)).code == "signing_key_password"
    assert refusal(lambda: sign_bundle(bundle, key, password="wrong")).code == "signing_key_malformed"
    assert refusal(lambda: sign_bundle(bundle, keys["p256"].private, password="x")).code == "signing_key_password"
    sign_bundle(bundle, key, password=PASSWORD)
    verify_signature(bundle, [keys["encrypted"].public])


def test_another_key_is_refused(bundle: Path, keys: Keys) -> None:
    sign_bundle(bundle, keys["ed25519"].private)
    error = refusal(lambda: verify_signature(bundle, [keys["other"].public, keys["p256"].public]))
    assert error.code == "signature_wrong_key"
    assert str(keys["other"].public) in str(error.problem.expected)


def test_no_key_in_the_file_is_trusted(bundle: Path, keys: Keys) -> None:
    signature = sign_bundle(bundle, keys["other"].private).path
    honest = sign_bundle(bundle, keys["ed25519"].private, signature=bundle.with_name("honest"))

    def claim(content: dict[str, Any]) -> None:
        content["verificationMaterial"]["publicKey"]["hint"] = honest.key_fingerprint
        content["dsseEnvelope"]["signatures"][0]["keyid"] = honest.key_fingerprint

    edited_signature(signature, claim)
    assert refusal(lambda: verify_signature(bundle, [keys["ed25519"].public])).code == "signature_invalid"


def test_a_changed_statement_is_refused(bundle: Path, keys: Keys) -> None:
    signature = sign_bundle(bundle, keys["ed25519"].private).path

    def lie(content: dict[str, Any]) -> None:
        payload = base64.b64decode(content["dsseEnvelope"]["payload"]).replace(b"tiny", b"huge")
        content["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()

    edited_signature(signature, lie)
    assert refusal(lambda: verify_signature(bundle, [keys["ed25519"].public])).code == "signature_invalid"


def test_a_bundle_that_is_whole_and_another_is_refused(bundle: Path, keys: Keys) -> None:
    from synthetic_bundles import BundleParts

    sign_bundle(bundle, keys["ed25519"].private)
    BundleParts(provenance={"builder": "somebody else"}).write(bundle)
    error = refusal(lambda: verify_signature(bundle, [keys["ed25519"].public]))
    assert error.code == "signature_of_another_file"
    assert "SHA-256" in str(error.problem.found)


def test_a_damaged_bundle_is_neither_signed_nor_verified(bundle: Path, keys: Keys) -> None:
    sign_bundle(bundle, keys["ed25519"].private)
    data = bytearray(bundle.read_bytes())
    data[data.index(b"decode graph")] ^= 1
    bundle.write_bytes(data)
    assert refusal(lambda: verify_signature(bundle, [keys["ed25519"].public])).code == "bundle_digests_mismatch"
    assert refusal(lambda: sign_bundle(bundle, keys["ed25519"].private)).code == "bundle_digests_mismatch"


def test_bytes_that_no_digest_of_the_format_covers_are_signed_too(bundle: Path, keys: Keys) -> None:
    sign_bundle(bundle, keys["ed25519"].private)
    data = bytearray(bundle.read_bytes())
    data[data.index(b'"builder":"tests"') + 11] ^= 1  # provenance
    bundle.write_bytes(data)
    error = refusal(lambda: verify_signature(bundle, [keys["ed25519"].public]))
    assert error.code == "signature_of_another_file"


BROKEN: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("another media type", lambda c: c.update(mediaType="application/json"), "#/mediaType"),
    ("no envelope", lambda c: c.pop("dsseEnvelope"), "#/dsseEnvelope"),
    ("another payload type", lambda c: c["dsseEnvelope"].update(payloadType="text/plain"), "/payloadType"),
    ("payload no base64", lambda c: c["dsseEnvelope"].update(payload="a?b="), "/payload"),
    ("no signatures", lambda c: c["dsseEnvelope"].update(signatures=[]), "/signatures"),
    ("signatures a number", lambda c: c["dsseEnvelope"].update(signatures=3), "/signatures"),
    ("signature a number", lambda c: c["dsseEnvelope"].update(signatures=[3]), "/signatures/0"),
    ("no sig", lambda c: c["dsseEnvelope"].update(signatures=[{"keyid": ""}]), "/signatures/0/sig"),
    ("keyid a number", lambda c: c["dsseEnvelope"].update(signatures=[{"keyid": 1, "sig": ""}]), "/signatures/0/keyid"),
    ("many", lambda c: c["dsseEnvelope"].update(signatures=[{"sig": ""}] * 65), "/signatures"),
]


@pytest.mark.parametrize(("change", "place"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_malformed_envelope_is_refused_with_its_place(
    change: Callable[[dict[str, Any]], object], place: str, bundle: Path, keys: Keys
) -> None:
    signature = sign_bundle(bundle, keys["ed25519"].private).path
    edited_signature(signature, change)
    error = refusal(lambda: verify_signature(bundle, [keys["ed25519"].public]))
    assert error.code == "signature_malformed"
    assert str(error.problem.where).endswith(place)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "json_malformed"),
        (b"[]", "json_not_an_object"),
        (b'{"a":1,"a":2}', "json_duplicate_key"),
        (b"x" * (2**20 + 1), "signature_malformed"),
    ],
)
def test_a_file_that_is_no_signature_is_refused(text: bytes, code: str, bundle: Path, keys: Keys) -> None:
    default_signature_path(bundle).write_bytes(text)
    assert refusal(lambda: verify_signature(bundle, [keys["ed25519"].public])).code == code


def test_missing_files_are_told_apart(bundle: Path, keys: Keys, tmp_path: Path) -> None:
    key = keys["ed25519"]
    assert refusal(lambda: verify_signature(bundle, [key.public])).code == "signature_not_found"
    assert refusal(lambda: verify_signature(bundle, [tmp_path / "no.pem"])).code == "signing_key_not_readable"
    assert refusal(lambda: sign_bundle(bundle, tmp_path)).code == "signing_key_not_readable"
    assert refusal(lambda: sign_bundle(tmp_path / "no.bundle", key.private)).code == "container_not_found"
    nowhere = tmp_path / "no" / "x.sigstore.json"
    assert refusal(lambda: sign_bundle(bundle, key.private, signature=nowhere)).code == "output_folder_missing"
    default_signature_path(bundle).mkdir()
    assert refusal(lambda: verify_signature(bundle, [key.public])).code == "signature_not_readable"


def test_keys_of_the_wrong_kind_are_refused(bundle: Path, keys: Keys, tmp_path: Path) -> None:
    pair = keys["ed25519"]
    assert refusal(lambda: sign_bundle(bundle, pair.public)).code == "signing_key_malformed"
    sign_bundle(bundle, pair.private)
    assert refusal(lambda: verify_signature(bundle, [pair.private])).code == "signing_key_malformed"
    for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256K1())):
        other = write_key_pair(tmp_path, "unsupported", key)
        assert refusal(lambda pair=other: sign_bundle(bundle, pair.private)).code == "signing_key_unsupported"
        assert refusal(lambda pair=other: verify_signature(bundle, [pair.public])).code == "signing_key_unsupported"
    for text in (b"", b"no key", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", b"x" * 70000):
        junk = tmp_path / "junk.pem"
        junk.write_bytes(text)
        assert refusal(lambda key=junk: verify_signature(bundle, [key])).code == "signing_key_malformed"
        assert refusal(lambda key=junk: sign_bundle(bundle, key)).code == "signing_key_malformed"


def test_a_missing_library_names_the_extra(bundle: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "securesystemslib.dsse", None)
    error = refusal(lambda: sign_bundle(bundle, keys["ed25519"].private))
    assert error.code == "signing_library_missing"
    assert "rowpack[signing]" in str(error.problem.remedy)


def signed_by_hand(bundle: Path, key: Path, payload: dict[str, Any]) -> None:
    """Write a genuine signature of any statement."""
    from rowpack import signing

    original = signing.build_statement
    signing.build_statement = lambda digests: json.dumps(payload).encode()
    try:
        signing.sign_bundle(bundle, key)
    finally:
        signing.build_statement = original


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("_type",), "https://in-toto.io/Statement/v0.1"),
        (("predicateType",), "https://slsa.dev/provenance/v1"),
        (("subject",), []),
        (("subject", 0, "digest", "sha256"), "0" * 64),
        (("predicate", "serialization", "method"), "shards"),
        (("predicate", "serialization", "hash_type"), "blake3"),
        (("predicate", "resources", 0, "name"), "other"),
        (("predicate", "resources", 0, "digest"), "ABC"),
        (("predicate", "rowpack", "content_digest"), 7),
        (("predicate",), None),
    ],
    ids=lambda value: "/".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_genuine_statement_of_another_kind_is_refused(
    path: tuple[str | int, ...], value: object, bundle: Path, keys: Keys
) -> None:
    written = sign_bundle(bundle, keys["p256"].private).path
    payload: Any = json.loads(base64.b64decode(json.loads(written.read_text())["dsseEnvelope"]["payload"]))
    part = payload
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    signed_by_hand(bundle, keys["p256"].private, payload)
    error = refusal(lambda: verify_signature(bundle, [keys["p256"].public]))
    assert error.code == "signature_statement_unsupported"
    assert "#/" + "/".join(map(str, path)) in str(error.problem.where)


def test_the_commands(bundle: Path, keys: Keys, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = str(keys["encrypted"].private), str(keys["encrypted"].public)
    monkeypatch.setenv("PASSWORD_OF_THE_KEY", PASSWORD)
    words = ["sign", str(bundle), "--key", private, "--key-password-env", "PASSWORD_OF_THE_KEY"]
    assert main([*words, "--json"]) == 0
    signed = json.loads(capsys.readouterr().out)
    assert main(["verify-signature", str(bundle), "--key", public, "--json"]) == 0
    verified = json.loads(capsys.readouterr().out)
    assert verified["verified"] is True
    assert verified["key_fingerprint"] == signed["key_fingerprint"]
    assert main(words) == 0
    assert main(["verify-signature", str(bundle), "--key", public]) == 0
    assert public in capsys.readouterr().out
    assert main(["verify-signature", str(bundle), "--key", str(keys["other"].public), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "signature_wrong_key"
    monkeypatch.delenv("PASSWORD_OF_THE_KEY")
    assert main(words) == 2
    assert PASSWORD not in capsys.readouterr().err
