"""The secret of one generation."""

from __future__ import annotations

import base64
import hashlib

from peen.entropy import SeededEntropy, SystemEntropy
from peen.worker.credential import matches, new_credential


def test_a_credential_is_32_random_bytes_in_url_safe_text() -> None:
    text, sha256 = new_credential(SystemEntropy())

    assert len(text) == 43
    assert len(base64.urlsafe_b64decode(text + "=")) == 32
    assert sha256 == hashlib.sha256(text.encode()).digest()
    assert new_credential(SystemEntropy())[0] != text


def test_only_the_text_itself_matches() -> None:
    text, sha256 = new_credential(SeededEntropy(1))

    assert matches(text, sha256)
    for other in ("", text[:-1], text + "=", text.swapcase(), "\ud800"):
        assert not matches(other, sha256)
