"""Keys and a small bundle to sign."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from key_pairs import PASSWORD, KeyPair, write_key_pair

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "container"))


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KeyPair]:
    """One key pair of each kind that is taken, and an encrypted one."""
    folder = tmp_path_factory.mktemp("keys")
    made: dict[str, Any] = {
        "ed25519": ed25519.Ed25519PrivateKey.generate(),
        "p256": ec.generate_private_key(ec.SECP256R1()),
        "p384": ec.generate_private_key(ec.SECP384R1()),
        "p521": ec.generate_private_key(ec.SECP521R1()),
    }
    pairs = {name: write_key_pair(folder, name, key) for name, key in made.items()}
    pairs["other"] = write_key_pair(folder, "other", ed25519.Ed25519PrivateKey.generate())
    pairs["encrypted"] = write_key_pair(folder, "encrypted", ed25519.Ed25519PrivateKey.generate(), PASSWORD)
    return pairs


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A whole small bundle."""
    from synthetic_bundles import BundleParts

    path = tmp_path / "tiny.bundle"
    BundleParts().write(path)
    return path
