"""Accepted messages: from the moment of acceptance until the model has them, or they are listed as undelivered."""

from __future__ import annotations

from typing import Final, NamedTuple

from peen.ids import SessionNo
from peen.store.database import Reader, Tx


class InboxRow(NamedTuple):
    no: int
    session_no: SessionNo
    frame_id: bytes
    digest: bytes
    request_id: bytes
    turn_id: bytes | None
    turn_no: int | None
    state: str
    content: str
    settings: bytes
    directory: str
    feed_cursor: int


_SELECT: Final = """
SELECT no, session_no, frame_id, digest, request_id, turn_id, turn_no, state, content, settings, directory, feed_cursor
  FROM inbox
"""
_BY_FRAME: Final = _SELECT + " WHERE session_no = ? AND frame_id = ?"
_BY_TURN: Final = _SELECT + " WHERE session_no = ? AND turn_id = ? ORDER BY no LIMIT 1"
_OPENING: Final = _SELECT + " WHERE state = 'opening' ORDER BY no"
_ACCEPT: Final = """
INSERT INTO inbox (session_no, frame_id, digest, request_id, turn_id, state, content, settings, directory, feed_cursor,
                   created_at_ms)
SELECT no, :frame_id, :digest, :request_id, :turn_id, 'opening', :content, :settings, workspace, feed_sequence, :at_ms
  FROM session WHERE no = :session_no
RETURNING no
"""
_SETTLE: Final = "UPDATE inbox SET state = ?, turn_no = ? WHERE no = ?"


def accept(
    tx: Tx,
    session_no: SessionNo,
    *,
    frame_id: bytes,
    digest: bytes,
    request_id: bytes,
    turn_id: bytes,
    content: str,
    settings: bytes,
    at_ms: int,
) -> int:
    """Number of the accepted message that will open turn `turn_id`. Raises apsw.ConstraintError for a known frame."""
    row = tx.row(
        _ACCEPT,
        {
            "session_no": session_no, "frame_id": frame_id, "digest": digest, "request_id": request_id,
            "turn_id": turn_id, "content": content, "settings": settings, "at_ms": at_ms,
        },
    )  # fmt: skip
    assert row is not None, f"no session {session_no}"
    return int(row[0])


def by_frame(db: Reader | Tx, session_no: SessionNo, frame_id: bytes) -> InboxRow | None:
    row = db.row(_BY_FRAME, (session_no, frame_id))
    return None if row is None else InboxRow(*row)


def by_turn(db: Reader | Tx, session_no: SessionNo, turn_id: bytes) -> InboxRow | None:
    """The message that opened, or is to open, turn `turn_id`."""
    row = db.row(_BY_TURN, (session_no, turn_id))
    return None if row is None else InboxRow(*row)


def opening(db: Reader | Tx) -> list[InboxRow]:
    """Accepted messages whose turn was never opened, in order of acceptance, of all sessions."""
    return [InboxRow(*row) for row in db.rows(_OPENING)]


def settle(tx: Tx, no: int, *, state: str, turn_no: int | None) -> None:
    tx.execute(_SETTLE, (state, turn_no, no))
