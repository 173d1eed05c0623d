"""Names of stored things. Text on the wire; 16 bytes or an integer key inside the store."""

from __future__ import annotations

import hashlib
from typing import NewType
from uuid import UUID

SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
RequestId = NewType("RequestId", str)
ExecutionId = NewType("ExecutionId", str)
GenerationId = NewType("GenerationId", str)

SessionNo = NewType("SessionNo", int)
"""Integer key of a session inside the store, 1 .. 2**31 - 1."""

_DOMAINS = {
    "feed": b"f",
    "notice": b"n",
    "message": b"m",
    "modelRun": b"r",
    "modelCall": b"c",
    "activity": b"a",
    "compaction": b"s",
    "control": b"e",
    "jobOutput": b"o",
    "jobSignal": b"s",
}


def parse_uuid4(text: str) -> UUID | None:
    """The UUID if `text` is a canonical (lower case, dashed) version 4 UUID, else None."""
    try:
        value = UUID(text)
    except ValueError:
        return None
    return value if value.version == 4 and str(value) == text else None


def hashed_uuid4(*parts: bytes) -> UUID:
    """A UUID in the form of version 4 that is made of `parts`: for what is recorded where no chance is at hand."""
    digest = hashlib.blake2b(b"\0".join(parts), digest_size=16).digest()
    return UUID(bytes=digest, version=4)


def derived_id(domain: str, owner: bytes, number: int) -> str:
    """The public UUID of row `number` of one `owner` (16 bytes): the same every time, never stored.

    Version 8 (RFC 9562, "custom"): a hash of owner, kind of row and number, so that live and replayed
    frames carry one id without an index to look it up by.
    """
    digest = hashlib.blake2b(_DOMAINS[domain] + owner + number.to_bytes(8, "big"), digest_size=16).digest()
    value = int.from_bytes(digest, "big")
    # Python's own `version=8` came after 3.11.
    value = value & ~(0xF000 << 64) & ~(0xC000 << 48) | (8 << 76) | (0x8000 << 48)
    text = f"{value:032x}"  # a UUID object takes twice as long, and pages hold thousands
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
