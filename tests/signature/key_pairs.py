"""PEM files of keys for tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization

PASSWORD = "open sesame"


@dataclass(frozen=True)
class KeyPair:
    """The two PEM files of a key."""

    private: Path
    public: Path


def write_key_pair(folder: Path, name: str, key: Any, password: str | None = None) -> KeyPair:
    """Write a key as PEM files, the private one encrypted if there is a password."""
    encryption: Any = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password.encode())
    pem = serialization.Encoding.PEM
    pair = KeyPair(folder / f"{name}.pem", folder / f"{name}.pub.pem")
    pair.private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption))
    pair.public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return pair
