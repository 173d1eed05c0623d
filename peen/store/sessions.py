"""Sessions: one per canonical workspace directory, with the counters that everything of it shares."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from peen.errors import SessionNotFound
from peen.ids import SessionNo
from peen.store.database import Reader, Tx


class SessionRow(NamedTuple):
    no: SessionNo
    id: bytes
    workspace: str
    agent_space: str
    root_agent: str
    model: str
    created_at_ms: int
    updated_at_ms: int
    last_message_at_ms: int | None
    message_count: int
    completed_turn_count: int
    feed_sequence: int
    message_sequence: int
    stop_revision: int
    active_turn_cursor: int | None
    """Feed sequence before the running turn's first frame; None while no turn runs."""
    paused_executions: int

    @property
    def uuid(self) -> str:
        return str(UUID(bytes=self.id))


_SELECT: Final = """
SELECT s.no, s.id, s.workspace, s.agent_space, s.root_agent, s.model, s.created_at_ms, s.updated_at_ms,
       s.last_message_at_ms, s.message_count, s.completed_turn_count, s.feed_sequence, s.message_sequence,
       s.stop_revision,
       (SELECT max(t.feed_cursor) FROM turn t WHERE t.session_no = s.no AND t.state = 'running'),
       (SELECT count(*) FROM execution e WHERE e.session_no = s.no AND e.state = 'paused')
  FROM session s
"""
_BY_ID: Final = _SELECT + " WHERE s.id = ? AND s.deleting_at_ms IS NULL"
_BY_NO: Final = _SELECT + " WHERE s.no = ?"
_BY_WORKSPACE: Final = _SELECT + " WHERE s.workspace = ?"  # a session that is being deleted has given its own back
_PAGE: Final = _SELECT + " WHERE s.deleting_at_ms IS NULL ORDER BY s.updated_at_ms DESC, s.no DESC LIMIT ? OFFSET ?"
_CREATE: Final = """
INSERT INTO session (id, workspace, agent_space, root_agent, model, created_at_ms, updated_at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (workspace) DO NOTHING
"""
# Without messages the times stay; all of it is one statement, since every commit of a step runs it.
_TAKE: Final = """
UPDATE session SET message_sequence = message_sequence + ?1, message_count = message_count + ?1,
                   feed_sequence = feed_sequence + ?2, log_sequence = log_sequence + ?3,
                   last_message_at_ms = iif(?1, ?4, last_message_at_ms), updated_at_ms = iif(?1, ?4, updated_at_ms)
 WHERE no = ?5 RETURNING message_sequence, feed_sequence, log_sequence
"""
_ADVANCE_STOP: Final = "UPDATE session SET stop_revision = stop_revision + 1 WHERE no = ? RETURNING stop_revision"
_MESSAGE_SEQUENCE: Final = "SELECT message_sequence FROM session WHERE no = ?"
_COUNT_COMPLETED: Final = """
UPDATE session SET completed_turn_count = completed_turn_count + 1, updated_at_ms = ? WHERE no = ?
"""


def open_or_create(
    tx: Tx, *, new_id: bytes, workspace: str, agent_space: str, root_agent: str, model: str, at_ms: int
) -> tuple[SessionRow, bool]:
    """The session of `workspace`, and whether it was made now. An existing one keeps its own agent space."""
    tx.execute(_CREATE, (new_id, workspace, agent_space, root_agent, model, at_ms, at_ms))
    row = tx.row(_BY_WORKSPACE, (workspace,))
    assert row is not None
    session = SessionRow(*row)
    return session, session.id == new_id


def by_id(db: Reader | Tx, session_id: bytes) -> SessionRow | None:
    row = db.row(_BY_ID, (session_id,))
    return None if row is None else SessionRow(*row)


def by_no(db: Reader | Tx, no: SessionNo) -> SessionRow | None:
    """Also one that is being deleted: `by_id` and all lists hide it."""
    row = db.row(_BY_NO, (no,))
    return None if row is None else SessionRow(*row)


def check_kept(tx: Tx, no: SessionNo) -> None:
    """Raises: SessionNotFound if the session is being deleted, or is gone."""
    if tx.row("SELECT 1 FROM session WHERE no = ? AND deleting_at_ms IS NULL", (no,)) is None:
        raise SessionNotFound("this session was deleted")


def by_workspace(db: Reader | Tx, workspace: str) -> SessionRow | None:
    row = db.row(_BY_WORKSPACE, (workspace,))
    return None if row is None else SessionRow(*row)


def page(db: Reader, *, limit: int, offset: int) -> list[SessionRow]:
    """Most recently used first."""
    return [SessionRow(*row) for row in db.rows(_PAGE, (limit, offset))]


def count(db: Reader) -> int:
    row = db.row("SELECT count(*) FROM session WHERE deleting_at_ms IS NULL")
    assert row is not None
    return int(row[0])


class Taken(NamedTuple):
    """The last sequences of a session, of which the new ones are the latest."""

    message: int
    feed: int
    log: int


def take_sequences(tx: Tx, no: SessionNo, *, messages: int = 0, frames: int = 0, logs: int = 0, at_ms: int) -> Taken:
    """So many new sequences of each kind."""
    row = tx.row(_TAKE, (messages, frames, logs, at_ms, no))
    assert row is not None, f"no session {no}"
    return Taken(*row)


def advance_stop(tx: Tx, no: SessionNo) -> int:
    """A new stop revision: what was accepted under an older one does not begin by itself any more."""
    row = tx.row(_ADVANCE_STOP, (no,))
    assert row is not None, f"no session {no}"
    return int(row[0])


def message_sequence(db: Reader | Tx, no: SessionNo) -> int:
    """The last message sequence of the session."""
    row = db.row(_MESSAGE_SEQUENCE, (no,))
    assert row is not None, f"no session {no}"
    return int(row[0])


def count_completed_turn(tx: Tx, no: SessionNo, *, at_ms: int) -> None:
    tx.execute(_COUNT_COMPLETED, (at_ms, no))
