"""The secret that lets one worker generation in: given on stdin, kept by the controller only as a hash."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

from peen.entropy import Entropy

CREDENTIAL_BYTES: Final = 32


def new_credential(entropy: Entropy) -> tuple[str, bytes]:
    """A new secret as unpadded URL-safe base64 (43 characters), and the SHA-256 of that text (32 bytes)."""
    text = base64.urlsafe_b64encode(entropy.token(CREDENTIAL_BYTES)).rstrip(b"=").decode("ascii")
    return text, _digest(text)


def matches(text: str, sha256: bytes) -> bool:
    """Whether `text` is the secret whose hash is `sha256`; takes the same time whichever byte differs."""
    return hmac.compare_digest(_digest(text), sha256)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
