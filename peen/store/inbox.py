"""Accepted messages: from the moment of acceptance until the model has them, or they are listed as undelivered."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from peen.errors import SessionNotFound
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
    was_queued: int
    feed_cursor: int
    is_stopped: int
    images: bytes | None
    """JSON list of `ImageRef`; None where there are none."""


_SELECT: Final = """
SELECT no, session_no, frame_id, digest, request_id, turn_id, turn_no, state, content, settings, directory,
       was_queued, feed_cursor, is_stopped, images
  FROM inbox
"""
_BY_FRAME: Final = _SELECT + " WHERE session_no = ? AND frame_id = ?"
_BY_TURN: Final = _SELECT + " WHERE session_no = ? AND turn_id = ? ORDER BY no LIMIT 1"
_OPENING: Final = _SELECT + " WHERE state IN ('opening', 'deferred') ORDER BY no"
_ADD: Final = """
INSERT INTO inbox (session_no, frame_id, digest, request_id, turn_id, state, content, settings, directory, was_queued,
                   feed_cursor, images, created_at_ms)
SELECT no, :frame_id, :digest, :request_id, :turn_id, :state, :content, :settings, workspace, :state = 'queued',
       feed_sequence, :images, :at_ms
  FROM session WHERE no = :session_no AND deleting_at_ms IS NULL
RETURNING no
"""
_QUEUED: Final = _SELECT + " WHERE state = 'queued' AND session_no = ? AND turn_id = ? ORDER BY no"
_COUNT_QUEUED: Final = "SELECT count(*) FROM inbox WHERE state = 'queued' AND session_no = ? AND turn_id = ?"
_ANYTHING: Final = """
SELECT EXISTS (SELECT 1 FROM notice WHERE state = 'pending' AND key >= ?1 << 32 AND key < (?1 + 1) << 32)
    OR EXISTS (SELECT 1 FROM inbox WHERE state = 'queued' AND session_no = ?1
                                     AND turn_id = (SELECT id FROM turn WHERE no = ?2))
"""
_FORWARD: Final = """
UPDATE inbox SET turn_id = :next, state = CASE WHEN no = :first THEN 'deferred' ELSE state END
 WHERE state = 'queued' AND session_no = :session_no AND turn_id = :turn_id
"""
_BY_REQUEST: Final = _SELECT + " WHERE session_no = ? AND request_id = ?"
_STOPPED: Final = (
    _SELECT
    + """ WHERE state = 'queued' AND session_no = ?
            AND EXISTS (SELECT 1 FROM turn t WHERE t.id = inbox.turn_id AND t.state <> 'running') ORDER BY no"""
)
_STOP: Final = "UPDATE inbox SET is_stopped = 1 WHERE session_no = ? AND state IN ('opening', 'deferred')"
_DEFER: Final = "UPDATE inbox SET state = 'deferred', turn_id = ? WHERE no = ?"
_SETTLE: Final = "UPDATE inbox SET state = ?, turn_no = ? WHERE no = ?"


def add(
    tx: Tx,
    session_no: SessionNo,
    *,
    state: Literal["opening", "queued"],
    frame_id: bytes,
    digest: bytes,
    request_id: bytes,
    turn_id: bytes,
    content: str,
    settings: bytes,
    images: bytes | None,
    at_ms: int,
) -> int:
    """Number of an accepted message that opens turn `turn_id`, or waits for it.

    Raises: apsw.ConstraintError for a frame that was accepted before; SessionNotFound if the session is gone.
    """
    row = tx.row(
        _ADD,
        {
            "session_no": session_no, "frame_id": frame_id, "digest": digest, "request_id": request_id,
            "turn_id": turn_id, "state": state, "content": content, "settings": settings, "images": images,
            "at_ms": at_ms,
        },
    )  # fmt: skip
    if row is None:
        raise SessionNotFound("metadata.sessionId: this session was deleted")
    return int(row[0])


def queued(db: Reader | Tx, session_no: SessionNo, turn_id: bytes) -> list[InboxRow]:
    """Messages that wait for turn `turn_id`, in order of acceptance."""
    return [InboxRow(*row) for row in db.rows(_QUEUED, (session_no, turn_id))]


def anything_waits(tx: Tx, session_no: SessionNo, turn_no: int) -> bool:
    """Whether a message for that turn or a notice is still to be delivered: every round asks, and mostly nothing is."""
    row = tx.row(_ANYTHING, (session_no, turn_no))
    return row is not None and bool(row[0])


def count_queued(db: Reader | Tx, session_no: SessionNo, turn_id: bytes) -> int:
    row = db.row(_COUNT_QUEUED, (session_no, turn_id))
    assert row is not None
    return int(row[0])


def forward(tx: Tx, session_no: SessionNo, turn_id: bytes, *, next_turn_id: bytes) -> InboxRow | None:
    """Hand what still waits for an ended turn to the next one, which the first of them opens; that first message."""
    waiting = queued(tx, session_no, turn_id)
    if not waiting:
        return None
    bindings = {"next": next_turn_id, "first": waiting[0].no, "session_no": session_no, "turn_id": turn_id}
    tx.execute(_FORWARD, bindings)
    return waiting[0]


def by_frame(db: Reader | Tx, session_no: SessionNo, frame_id: bytes) -> InboxRow | None:
    row = db.row(_BY_FRAME, (session_no, frame_id))
    return None if row is None else InboxRow(*row)


def by_turn(db: Reader | Tx, session_no: SessionNo, turn_id: bytes) -> InboxRow | None:
    """The message that opened, or is to open, turn `turn_id`: the first of all that belong to it."""
    row = db.row(_BY_TURN, (session_no, turn_id))
    return None if row is None else InboxRow(*row)


def opening(db: Reader | Tx) -> list[InboxRow]:
    """Accepted messages that were to open a turn and never did, in order of acceptance, of all sessions."""
    return [InboxRow(*row) for row in db.rows(_OPENING)]


def by_request(db: Reader | Tx, session_no: SessionNo, request_id: bytes) -> InboxRow | None:
    row = db.row(_BY_REQUEST, (session_no, request_id))
    return None if row is None else InboxRow(*row)


def stopped(db: Reader | Tx, session_no: SessionNo) -> list[InboxRow]:
    """Messages that a Stop left waiting: their turn has ended, and nobody has decided about them."""
    return [InboxRow(*row) for row in db.rows(_STOPPED, (session_no,))]


def stop(tx: Tx, session_no: SessionNo) -> None:
    """Messages that have not opened their turns yet never will."""
    tx.execute(_STOP, (session_no,))


def defer(tx: Tx, no: int, *, turn_id: bytes) -> None:
    """Let a waiting message open turn `turn_id`."""
    tx.execute(_DEFER, (turn_id, no))


def settle(tx: Tx, no: int, *, state: str, turn_no: int | None) -> None:
    tx.execute(_SETTLE, (state, turn_no, no))
