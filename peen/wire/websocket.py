"""The frame header of RFC 6455, for frames that the server sends: unmasked, whole, uncompressed.

Frames of the feed are the same bytes for every socket, so header and payload are put together once.
"""

from __future__ import annotations

from typing import Final

PING: Final = b"\x89\x00"
"""A ping without payload. Whoever answers it with anything is alive."""

_TEXT: Final = 0x81  # FIN and opcode 1
_SHORT: Final = 126  # lengths below it stand in the second byte
_MEDIUM: Final = 1 << 16  # lengths below it take two more bytes, others eight


def text_frame(payload: bytes) -> bytes:
    """A complete text frame: header and `payload`, which must be UTF-8."""
    size = len(payload)
    if size < _SHORT:
        return bytes((_TEXT, size)) + payload
    if size < _MEDIUM:
        return b"\x81\x7e" + size.to_bytes(2, "big") + payload
    return b"\x81\x7f" + size.to_bytes(8, "big") + payload


def payload_of(frame: bytes) -> bytes:
    """What `text_frame` was given. For a reader in the same process, which needs no header."""
    length = frame[1]
    return frame[2 if length < _SHORT else 4 if length == _SHORT else 10 :]
