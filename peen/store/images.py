"""Images of messages: references in rows, bytes as blobs of the session, and those that a provider has refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from peen.ids import SessionNo
from peen.store.blobs.errors import BlobMissing
from peen.store.blobs.rows import missing
from peen.store.database import Reader, Tx
from peen.wire.records import ImageRef, RefusedImage

_decode: Final = msgspec.json.Decoder(list[ImageRef]).decode

_REFUSE: Final = """
INSERT INTO refused_image (session_no, sha256, model, up_to_sequence, turn_no, reason, at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (session_no, sha256, model) DO UPDATE
   SET up_to_sequence = excluded.up_to_sequence, turn_no = excluded.turn_no, reason = excluded.reason,
       at_ms = excluded.at_ms
"""
_REFUSED: Final = """
SELECT lower(hex(sha256)), reason, up_to_sequence FROM refused_image
 WHERE session_no = :session AND model = coalesce(:model, model) ORDER BY sha256, at_ms
"""


def encode_refs(refs: Sequence[ImageRef]) -> bytes | None:
    """For a column: None where there are none."""
    return msgspec.json.encode(refs) if refs else None


def decode_refs(stored: bytes | None) -> list[ImageRef]:
    return [] if stored is None else _decode(stored)


def check_stored(tx: Tx, session_no: SessionNo, refs: Iterable[ImageRef]) -> None:
    """Raises: BlobMissing unless the session has the bytes of all of them."""
    wanted = sorted({bytes.fromhex(ref.sha256) for ref in refs})
    if lost := missing(tx, session_no, wanted):
        raise BlobMissing(lost)


def refuse(
    tx: Tx, session_no: SessionNo, refused: RefusedImage, *, model: str, up_to_sequence: int, turn_no: int, at_ms: int
) -> None:
    """The provider of `model` does not take this image: in the messages that are stored now, a note stands in its place
    for that model."""
    digest = bytes.fromhex(refused.sha256)
    tx.execute(_REFUSE, (session_no, digest, model, up_to_sequence, turn_no, refused.reason, at_ms))


def refused(db: Reader | Tx, session_no: SessionNo, model: str | None = None) -> list[RefusedImage]:
    """What was refused in this session for `model`; without one for any, and an image may be there more than once."""
    return [
        RefusedImage(sha256=sha256, reason=reason, up_to_sequence=up_to)
        for sha256, reason, up_to in db.rows(_REFUSED, {"session": session_no, "model": model})
    ]
