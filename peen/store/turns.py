"""Turns: one request of the user (or of an event) and everything that was done for it."""

from __future__ import annotations

from typing import Final, NamedTuple

from peen.ids import SessionNo
from peen.store.database import Reader, Tx


class TurnRow(NamedTuple):
    no: int
    id: bytes
    session_no: SessionNo
    request_id: bytes
    workspace: str
    model: str
    state: str
    cancel_requested: int
    failure_classification: str
    context_sha256: bytes | None
    prompt_sha256: bytes | None
    generation_id: bytes | None
    started_at_ms: int
    completed_at_ms: int | None


_SELECT: Final = """
SELECT t.no, t.id, t.session_no, t.request_id, t.workspace, t.model, t.state, t.cancel_requested,
       t.failure_classification, c.sha256, p.sha256, g.id, t.started_at_ms, t.completed_at_ms
  FROM turn t LEFT JOIN snapshot c ON c.no = t.context_no LEFT JOIN snapshot p ON p.no = t.prompt_no
              LEFT JOIN generation g ON g.no = t.generation_no
"""
_BY_ID: Final = _SELECT + " WHERE t.id = ?"
_BY_NO: Final = _SELECT + " WHERE t.no = ?"
_PAGE: Final = _SELECT + " WHERE t.session_no = ? ORDER BY t.no DESC LIMIT ? OFFSET ?"
_RUNNING: Final = _SELECT + " WHERE t.state = 'running' AND t.session_no = ? ORDER BY t.no"
_ALL_RUNNING: Final = _SELECT + " WHERE t.state = 'running' ORDER BY t.no"
_OPEN: Final = """
INSERT INTO turn (id, session_no, request_id, workspace, model, state, feed_cursor, context_no, prompt_no, tools_no,
                  generation_no, started_at_ms)
VALUES (:id, :session_no, :request_id, :workspace, :model, 'running', :feed_cursor, :context_no, :prompt_no, :tools_no,
        :generation_no, :at_ms)
RETURNING no
"""
_REQUEST_CANCEL: Final = "UPDATE turn SET cancel_requested = 1 WHERE no = ? AND state = 'running'"
_REOPEN: Final = """
UPDATE turn SET state = 'running', failure_classification = '', cancel_requested = 0, completed_at_ms = NULL,
                feed_cursor = (SELECT feed_sequence FROM session WHERE no = session_no)
 WHERE no = ? AND state NOT IN ('running', 'completed')
RETURNING no
"""
_END: Final = """
UPDATE turn SET state = ?, failure_classification = ?, completed_at_ms = ? WHERE no = ? AND state = 'running'
RETURNING no
"""


def open_turn(
    tx: Tx,
    *,
    turn_id: bytes,
    session_no: SessionNo,
    request_id: bytes,
    workspace: str,
    model: str,
    feed_cursor: int,
    at_ms: int,
    generation_no: int | None = None,
    context_no: int | None = None,
    prompt_no: int | None = None,
    tools_no: int | None = None,
) -> int:
    """Number of the new turn, state `running`. Raises apsw.ConstraintError if the id was opened before."""
    row = tx.row(
        _OPEN,
        {
            "id": turn_id, "session_no": session_no, "request_id": request_id, "workspace": workspace, "model": model,
            "feed_cursor": feed_cursor, "context_no": context_no, "prompt_no": prompt_no, "tools_no": tools_no,
            "generation_no": generation_no, "at_ms": at_ms,
        },
    )  # fmt: skip
    assert row is not None
    return int(row[0])


def end_turn(tx: Tx, no: int, *, state: str, classification: str, at_ms: int) -> bool:
    """End a running turn; False if it had ended before, and then nothing changed."""
    return tx.row(_END, (state, classification, at_ms, no)) is not None


def reopen(tx: Tx, no: int) -> bool:
    """Let an unfinished turn run again: a new segment with the same ids. False if it runs or has completed."""
    return tx.row(_REOPEN, (no,)) is not None


def request_cancel(tx: Tx, no: int) -> None:
    """Record that a running turn was told to end."""
    tx.execute(_REQUEST_CANCEL, (no,))


def by_id(db: Reader | Tx, turn_id: bytes) -> TurnRow | None:
    row = db.row(_BY_ID, (turn_id,))
    return None if row is None else TurnRow(*row)


def by_no(db: Reader | Tx, no: int) -> TurnRow | None:
    row = db.row(_BY_NO, (no,))
    return None if row is None else TurnRow(*row)


def page(db: Reader, session_no: SessionNo, *, limit: int, offset: int) -> list[TurnRow]:
    """Newest first."""
    return [TurnRow(*row) for row in db.rows(_PAGE, (session_no, limit, offset))]


def running(db: Reader | Tx, session_no: SessionNo | None = None) -> list[TurnRow]:
    """Running turns of one session, or of all."""
    rows = db.rows(_ALL_RUNNING) if session_no is None else db.rows(_RUNNING, (session_no,))
    return [TurnRow(*row) for row in rows]
