"""Signatures of bundles: detached files that say who vouches for which bytes. Nothing here touches a bundle."""

from __future__ import annotations

from rowpack_loaders.signature.signature_file import SIGNATURE_SUFFIX, default_signature_path
from rowpack_loaders.signature.verification import VerifiedSignature, verify_signature

__all__ = ["SIGNATURE_SUFFIX", "VerifiedSignature", "default_signature_path", "verify_signature"]
