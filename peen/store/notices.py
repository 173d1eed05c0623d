"""Notices: recorded once, shown at once, delivered to the model once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from peen.ids import SessionNo
from peen.store import keys
from peen.store.database import Reader, Tx


class NoticeRow(NamedTuple):
    sequence: int
    type: str
    source: str
    summary: str
    data: bytes | None
    delivery: str
    state: str
    created_at_ms: int


_SELECT: Final = "SELECT key & 0xFFFFFFFF, type, source, summary, data, delivery, state, created_at_ms FROM notice"
_PENDING: Final = _SELECT + " WHERE state = 'pending' AND key > ? AND key < ? ORDER BY key"
_PAGE: Final = _SELECT + " WHERE key > ? AND key < ? ORDER BY key DESC LIMIT ? OFFSET ?"
_BY_KEY: Final = _SELECT + " WHERE key = ?"
_TAKE: Final = "UPDATE session SET notice_sequence = notice_sequence + 1 WHERE no = ? RETURNING notice_sequence"
_ADD: Final = """
INSERT INTO notice (key, type, source, summary, data, delivery, state, created_at_ms, delivered_at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_DELIVERED: Final = "UPDATE notice SET state = 'delivered', delivered_at_ms = ? WHERE key = ? AND state = 'pending'"
_OPENING: Final = "INSERT INTO turn_opening_notice (turn_no, position, notice_key) VALUES (?, ?, ?)"


def add(
    tx: Tx,
    session_no: SessionNo,
    *,
    notice_type: str,
    source: str,
    summary: str,
    data: bytes | None,
    delivery: str,
    is_pending: bool,
    at_ms: int,
) -> NoticeRow:
    """Record a notice. One that is not pending is for clients and handlers: the model is told in another way."""
    taken = tx.row(_TAKE, (session_no,))
    assert taken is not None, f"no session {session_no}"
    state = "pending" if is_pending else "delivered"
    row = NoticeRow(taken[0], notice_type, source, summary, data, delivery, state, at_ms)
    key = keys.join(session_no, row.sequence)
    delivered_at = None if is_pending else at_ms
    tx.execute(_ADD, (key, notice_type, source, summary, data, delivery, state, at_ms, delivered_at))
    return row


def pending(db: Reader | Tx, session_no: SessionNo) -> list[NoticeRow]:
    """What the model has not been told yet, oldest first."""
    return [NoticeRow(*row) for row in db.rows(_PENDING, _bounds(session_no))]


def mark_delivered(
    tx: Tx, session_no: SessionNo, rows: Sequence[NoticeRow], *, at_ms: int, opening_turn_no: int | None = None
) -> None:
    """These reach the model with this transaction; with `opening_turn_no` as the batch that opens that turn."""
    for position, row in enumerate(rows):
        key = keys.join(session_no, row.sequence)
        tx.execute(_DELIVERED, (at_ms, key))
        if opening_turn_no is not None:
            tx.execute(_OPENING, (opening_turn_no, position, key))


def page(db: Reader, session_no: SessionNo, *, limit: int, offset: int) -> list[NoticeRow]:
    """Newest first."""
    return [NoticeRow(*row) for row in db.rows(_PAGE, (*_bounds(session_no), limit, offset))]


def by_sequence(db: Reader | Tx, session_no: SessionNo, sequence: int) -> NoticeRow | None:
    row = db.row(_BY_KEY, (keys.join(session_no, sequence),))
    return None if row is None else NoticeRow(*row)


def _bounds(session_no: SessionNo) -> tuple[int, int]:
    return keys.join(session_no, 0), keys.join(session_no + 1, 0)
