"""Sessions: one per canonical workspace directory, with the counters that everything of it shares."""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from uuid import UUID

from peen.errors import SessionNotFound
from peen.ids import SessionNo
from peen.store.database import Reader, Tx
from peen.store.spending import MOST, NOTHING_SPENT, Spent


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
    budget_tokens: int
    """0 is no limit, here and in `budget_cost`, which is trillionths of a dollar."""
    budget_cost: int
    spent: Spent

    @property
    def uuid(self) -> str:
        return str(UUID(bytes=self.id))


_SELECT: Final = """
SELECT s.no, s.id, s.workspace, s.agent_space, s.root_agent, s.model, s.created_at_ms, s.updated_at_ms,
       s.last_message_at_ms, s.message_count, s.completed_turn_count, s.feed_sequence, s.message_sequence,
       s.stop_revision,
       (SELECT max(t.feed_cursor) FROM turn t WHERE t.session_no = s.no AND t.state = 'running'),
       (SELECT count(*) FROM execution e WHERE e.session_no = s.no AND e.state = 'paused'),
       s.budget_tokens, s.budget_cost,
       s.prompt_tokens, s.completion_tokens, s.reasoning_tokens, s.cache_read_tokens, s.cache_write_tokens, s.cost,
       s.unpriced_calls
  FROM session s
"""
_BY_ID: Final = _SELECT + " WHERE s.id = ? AND s.deleting_at_ms IS NULL"
_BY_NO: Final = _SELECT + " WHERE s.no = ?"
_BY_WORKSPACE: Final = _SELECT + " WHERE s.workspace = ?"  # a session that is being deleted has given its own back
_PAGE: Final = _SELECT + " WHERE s.deleting_at_ms IS NULL ORDER BY s.updated_at_ms DESC, s.no DESC LIMIT ? OFFSET ?"
_CREATE: Final = """
INSERT INTO session (id, workspace, agent_space, root_agent, model, created_at_ms, updated_at_ms, budget_tokens,
                     budget_cost)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (workspace) DO NOTHING
"""
_SET_BUDGET: Final = "UPDATE session SET budget_tokens = ?, budget_cost = ? WHERE no = ?"
_TAKEN: Final = """
message_sequence, feed_sequence, log_sequence, budget_tokens, budget_cost, prompt_tokens, completion_tokens,
reasoning_tokens, cache_read_tokens, cache_write_tokens, cost, unpriced_calls
"""
# Without messages the times stay; all of it is one statement, since every commit of a step runs it.
_TAKE: Final = f"""
UPDATE session SET message_sequence = message_sequence + ?1, message_count = message_count + ?1,
                   feed_sequence = feed_sequence + ?2, log_sequence = log_sequence + ?3,
                   last_message_at_ms = iif(?1, ?4, last_message_at_ms), updated_at_ms = iif(?1, ?4, updated_at_ms),
                   prompt_tokens = min(coalesce(prompt_tokens + ?6, prompt_tokens, ?6), {MOST}),
                   completion_tokens = min(coalesce(completion_tokens + ?7, completion_tokens, ?7), {MOST}),
                   reasoning_tokens = min(coalesce(reasoning_tokens + ?8, reasoning_tokens, ?8), {MOST}),
                   cache_read_tokens = min(coalesce(cache_read_tokens + ?9, cache_read_tokens, ?9), {MOST}),
                   cache_write_tokens = min(coalesce(cache_write_tokens + ?10, cache_write_tokens, ?10), {MOST}),
                   cost = min(cost + ?11, {MOST}), unpriced_calls = unpriced_calls + ?12
 WHERE no = ?5 RETURNING {_TAKEN}
"""
_STANDING: Final = f"SELECT {_TAKEN} FROM session WHERE no = ?"
_ADVANCE_STOP: Final = "UPDATE session SET stop_revision = stop_revision + 1 WHERE no = ? RETURNING stop_revision"
_MESSAGE_SEQUENCE: Final = "SELECT message_sequence FROM session WHERE no = ?"
_COUNT_COMPLETED: Final = """
UPDATE session SET completed_turn_count = completed_turn_count + 1, updated_at_ms = ? WHERE no = ?
"""


def open_or_create(
    tx: Tx,
    *,
    new_id: bytes,
    workspace: str,
    agent_space: str,
    root_agent: str,
    model: str,
    at_ms: int,
    budget: tuple[int, int] | None = None,
) -> tuple[SessionRow, bool]:
    """The session of `workspace`, and whether it was made now. An existing one keeps its own agent space.

    `budget` is tokens and trillionths of a dollar, 0 for no limit; None leaves an existing one its own.
    """
    limits = budget or (0, 0)
    tx.execute(_CREATE, (new_id, workspace, agent_space, root_agent, model, at_ms, at_ms, *limits))
    session = by_workspace(tx, workspace)
    assert session is not None
    created = session.id == new_id
    if budget is not None and not created:
        tx.execute(_SET_BUDGET, (*budget, session.no))
        session = session._replace(budget_tokens=budget[0], budget_cost=budget[1])
    return session, created


def by_id(db: Reader | Tx, session_id: bytes) -> SessionRow | None:
    row = db.row(_BY_ID, (session_id,))
    return None if row is None else _session(row)


def by_no(db: Reader | Tx, no: SessionNo) -> SessionRow | None:
    """Also one that is being deleted: `by_id` and all lists hide it."""
    row = db.row(_BY_NO, (no,))
    return None if row is None else _session(row)


def check_kept(tx: Tx, no: SessionNo) -> None:
    """Raises: SessionNotFound if the session is being deleted, or is gone."""
    if tx.row("SELECT 1 FROM session WHERE no = ? AND deleting_at_ms IS NULL", (no,)) is None:
        raise SessionNotFound("this session was deleted")


def by_workspace(db: Reader | Tx, workspace: str) -> SessionRow | None:
    row = db.row(_BY_WORKSPACE, (workspace,))
    return None if row is None else _session(row)


def page(db: Reader, *, limit: int, offset: int) -> list[SessionRow]:
    """Most recently used first."""
    return [_session(row) for row in db.rows(_PAGE, (limit, offset))]


def count(db: Reader) -> int:
    row = db.row("SELECT count(*) FROM session WHERE deleting_at_ms IS NULL")
    assert row is not None
    return int(row[0])


class Taken(NamedTuple):
    """The last sequences of a session, of which the new ones are the latest; its budget, and what it has used."""

    message: int
    feed: int
    log: int
    budget_tokens: int
    budget_cost: int
    spent: Spent


def take_sequences(
    tx: Tx,
    no: SessionNo,
    *,
    messages: int = 0,
    frames: int = 0,
    logs: int = 0,
    spent: Spent = NOTHING_SPENT,
    at_ms: int,
) -> Taken:
    """So many new sequences of each kind; `spent` is added to what the session has used."""
    row = tx.row(_TAKE, (messages, frames, logs, at_ms, no, *spent))
    assert row is not None, f"no session {no}"
    return _taken(row)


def standing(db: Reader | Tx, no: SessionNo) -> Taken:
    """As `take_sequences`, without taking any."""
    row = db.row(_STANDING, (no,))
    assert row is not None, f"no session {no}"
    return _taken(row)


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


def _session(row: tuple[Any, ...]) -> SessionRow:
    return SessionRow._make((*row[:18], Spent._make(row[18:])))


def _taken(row: tuple[Any, ...]) -> Taken:
    return Taken._make((*row[:5], Spent._make(row[5:])))
