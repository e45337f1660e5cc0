"""Signatures and OpenSSF's own command line verify each other's."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from key_pairs import KeyPair

from rowpack.signing import sign_bundle
from rowpack_loaders import RowpackError
from rowpack_loaders.signature import verify_signature

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(
        importlib.util.find_spec("model_signing") is None, reason="model-signing (requirements/oracle.txt) is missing"
    ),
]


def model_signing(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line of OpenSSF model signing."""
    command = [sys.executable, "-m", "model_signing", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", ["p256", "p384", "p521"])
def test_model_signing_verifies_what_rowpack_signed(kind: str, bundle: Path, keys: dict[str, KeyPair]) -> None:
    signature = sign_bundle(bundle, keys[kind].private).path
    words = ("verify", "key", "--public_key", keys[kind].public, "--signature", signature, bundle)
    verified = model_signing(*words)
    assert verified.returncode == 0, verified.stderr + verified.stdout
    data = bytearray(bundle.read_bytes())
    data[-1] ^= 1
    bundle.write_bytes(data)
    assert model_signing(*words).returncode != 0


def test_rowpack_verifies_what_model_signing_signed(bundle: Path, keys: dict[str, KeyPair], tmp_path: Path) -> None:
    signature = tmp_path / "model.sig"
    signed = model_signing("sign", "key", "--private_key", keys["p256"].private, "--signature", signature, bundle)
    assert signed.returncode == 0, signed.stderr + signed.stdout
    assert verify_signature(bundle, [keys["p256"].public], signature=signature).signed_name == bundle.name
    with pytest.raises(RowpackError, match="signature_wrong_key"):
        verify_signature(bundle, [keys["p384"].public], signature=signature)
