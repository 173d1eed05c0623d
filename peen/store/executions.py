"""Executions: the durable record that the one workflow of root and child writes and reads. Its steps: `activities`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from peen.errors import StaleClaim
from peen.ids import SessionNo
from peen.store import generations
from peen.store.activities import settle
from peen.store.controlevents import add_event
from peen.store.database import Reader, Tx
from peen.store.leases import LEASE_MS

ENGINE_VERSION: Final = 1
STOP: Final = "stop"
"""The pause reason of a Stop."""


class ExecutionRow(NamedTuple):
    no: int
    id: bytes
    session_no: SessionNo
    turn_no: int
    state: str
    pause_reason: str | None
    control_revision: int
    holder: bytes | None
    generation_no: int | None
    model: str
    """That of its turn."""


_SELECT: Final = """
SELECT no, id, session_no, turn_no, state, pause_reason, control_revision, holder, generation_no,
       (SELECT t.model FROM turn t WHERE t.no = turn_no)
  FROM execution
"""
_BY_ID: Final = _SELECT + " WHERE id = ?"
_HELD: Final = """
SELECT e.no, e.id, e.session_no, e.turn_no, e.state, e.pause_reason, e.control_revision, e.holder, e.generation_no,
       t.model, g.no
  FROM execution e JOIN turn t ON t.no = e.turn_no LEFT JOIN generation g ON g.no = ? AND g.ended_at_ms IS NULL
 WHERE e.id = ?
"""
_BY_TURN: Final = _SELECT + " WHERE turn_no = ? AND kind = 'root'"
_CREATE: Final = """
INSERT INTO execution (id, session_no, kind, turn_no, state, stop_revision, holder, generation_no, engine_version,
                       round_limit, tool_parallelism, created_at_ms, lease_until_ms)
SELECT :id, no, 'root', :turn_no, 'running', stop_revision, :holder, :generation_no, :engine, :round_limit,
       :tool_parallelism, :at_ms, :lease_until_ms
  FROM session WHERE no = :session_no
RETURNING no
"""
_END: Final = """
UPDATE execution SET state = ?, holder = NULL, output = ?, ended_at_ms = ? WHERE no = ? AND state = 'running'
"""
_PAUSE: Final = """
UPDATE execution SET state = 'paused', pause_reason = ?, control_revision = control_revision + 1
 WHERE no = ? AND state = 'running'
RETURNING control_revision
"""
_VOID: Final = "UPDATE execution SET holder = NULL WHERE no = ?"
_RUNNING: Final = _SELECT + " WHERE session_no = ? AND state = 'running' ORDER BY no"
_PAUSE_REASON: Final = """
SELECT pause_reason FROM execution WHERE session_no = ? AND state = 'paused' ORDER BY no DESC LIMIT 1
"""
_CREATED: Final = "UPDATE execution SET context = ? WHERE no = ?"
_DETAILS: Final = """
SELECT e.no, e.id, e.session_no, e.turn_no, e.state, e.pause_reason, e.control_revision, e.holder, e.generation_no,
       e.kind, e.round_limit, e.tool_parallelism, e.context, e.created_at_ms, e.ended_at_ms, t.id,
       a.caller, a.created_at_ms
  FROM execution e JOIN turn t ON t.no = e.turn_no LEFT JOIN admission a ON a.execution_no = e.no
"""
_DETAILS_BY_ID: Final = _DETAILS + " WHERE e.id = ?"
_DETAILS_PAGE: Final = _DETAILS + " WHERE e.session_no = ? ORDER BY e.no DESC LIMIT ? OFFSET ?"
_PAUSED: Final = _DETAILS + " WHERE e.state = 'paused' AND e.kind = 'root' ORDER BY e.no"
_PAUSED_OF: Final = _DETAILS + " WHERE e.session_no = ? AND e.state = 'paused' ORDER BY e.no DESC LIMIT ?"
_RESUME: Final = """
UPDATE execution
   SET state = 'running', pause_reason = NULL, holder = NULL, control_revision = control_revision + 1,
       stop_revision = (SELECT stop_revision FROM session WHERE no = session_no)
 WHERE no = ? AND state = 'paused' AND control_revision = ?
RETURNING control_revision
"""
_ADOPT: Final = """
UPDATE execution SET holder = ?, generation_no = ?, lease_until_ms = ?
 WHERE no = ? AND state = 'running' AND holder IS NULL
RETURNING no
"""
_ABANDON: Final = """
UPDATE execution SET state = 'cancelled', holder = NULL, ended_at_ms = ?, control_revision = control_revision + 1
 WHERE no = ? AND state = 'paused' AND control_revision = ?
RETURNING control_revision
"""


def create_root(
    tx: Tx,
    *,
    execution_id: bytes,
    session_no: SessionNo,
    turn_no: int,
    holder: bytes,
    generation_no: int,
    round_limit: int,
    tool_parallelism: int,
    at_ms: int,
    clock_ms: int = 0,
) -> int:
    """Number of the new root execution, held by `holder` of that generation, with a lease from `clock_ms` on."""
    row = tx.row(
        _CREATE,
        {
            "id": execution_id, "session_no": session_no, "turn_no": turn_no, "holder": holder,
            "generation_no": generation_no, "engine": ENGINE_VERSION, "round_limit": round_limit,
            "tool_parallelism": tool_parallelism, "at_ms": at_ms, "lease_until_ms": clock_ms + LEASE_MS,
        },
    )  # fmt: skip
    assert row is not None
    return int(row[0])


def held(tx: Tx, execution_id: bytes, *, holder: bytes, generation_no: int) -> ExecutionRow:
    """The execution, if this holder of this generation may write to it now.

    One that a Stop has paused is still held until its turn has ended, for results of tools that had begun before.
    Raises: StaleClaim if it does not exist, has ended, is paused otherwise, or somebody else holds it; if the
    generation has ended, whether its process knows it or not.
    """
    found = tx.row(_HELD, (generation_no, execution_id))
    if found is None or found[-1] is None:
        generations.check_live(tx, generation_no)
        raise StaleClaim("no such execution")
    row = ExecutionRow(*found[:-1])
    is_open = row.state == "running" or (row.state == "paused" and row.pause_reason == STOP)
    if not is_open or row.holder != holder or row.generation_no != generation_no:
        raise StaleClaim(f"this execution is {row.state} and not held by the writer: stop, and write nothing more")
    return row


def running(db: Reader | Tx, session_no: SessionNo) -> list[ExecutionRow]:
    return [ExecutionRow(*row) for row in db.rows(_RUNNING, (session_no,))]


def by_id(db: Reader | Tx, execution_id: bytes) -> ExecutionRow | None:
    row = db.row(_BY_ID, (execution_id,))
    return None if row is None else ExecutionRow(*row)


def root_of(db: Reader | Tx, turn_no: int) -> ExecutionRow | None:
    row = db.row(_BY_TURN, (turn_no,))
    return None if row is None else ExecutionRow(*row)


def end(tx: Tx, no: int, *, state: str, output: bytes, at_ms: int) -> None:
    tx.execute(_END, (state, output, at_ms, no))


def fence(tx: Tx, no: int, *, reason: str, at_ms: int) -> None:
    """Pause a running execution under a new control revision: no step begins any more."""
    row = tx.row(_PAUSE, (reason, no))
    if row is not None:
        add_event(tx, no, "execution.paused", {"reason": reason, "controlRevision": row[0]}, at_ms=at_ms)


def release(tx: Tx, no: int, *, at_ms: int) -> None:
    """Void the holder of a paused execution: from here on it writes nothing. Steps that were cut off are closed."""
    settle(tx, no, at_ms=at_ms)
    tx.execute(_VOID, (no,))


def pause(tx: Tx, no: int, *, reason: str, at_ms: int) -> None:
    """Pause a running execution and void its holder, at once."""
    fence(tx, no, reason=reason, at_ms=at_ms)
    release(tx, no, at_ms=at_ms)


def pause_reason(db: Reader | Tx, session_no: SessionNo) -> str | None:
    """Why the newest paused execution of the session is paused; None if none is."""
    row = db.row(_PAUSE_REASON, (session_no,))
    return None if row is None else row[0]


class ExecutionDetails(NamedTuple):
    """An execution with what it was started with. `context` is the JSON of its frozen settings.

    `admitted_by` says who wants it to go on when other turns have ended; None if nobody does.
    """

    no: int
    id: bytes
    session_no: SessionNo
    turn_no: int
    state: str
    pause_reason: str | None
    control_revision: int
    holder: bytes | None
    generation_no: int | None
    kind: str
    round_limit: int
    tool_parallelism: int
    context: bytes | None
    created_at_ms: int
    ended_at_ms: int | None
    turn_id: bytes
    admitted_by: str | None = None
    admitted_at_ms: int | None = None


def keep_context(tx: Tx, no: int, context: bytes) -> None:
    """Freeze the settings that the execution was started with."""
    tx.execute(_CREATED, (context, no))


def saved_context(db: Reader | Tx, no: int) -> dict[str, Any]:
    """The settings that the execution was started with."""
    row = db.row("SELECT context FROM execution WHERE no = ?", (no,))
    found: dict[str, Any] = {} if row is None or row[0] is None else msgspec.json.decode(row[0])
    return found


def details(db: Reader | Tx, execution_id: bytes) -> ExecutionDetails | None:
    row = db.row(_DETAILS_BY_ID, (execution_id,))
    return None if row is None else ExecutionDetails(*row)


def page(db: Reader, session_no: SessionNo, *, limit: int, offset: int) -> list[ExecutionDetails]:
    """Newest first."""
    return [ExecutionDetails(*row) for row in db.rows(_DETAILS_PAGE, (session_no, limit, offset))]


def paused_roots(db: Reader | Tx) -> list[ExecutionDetails]:
    """Every paused root execution, of all sessions, oldest first."""
    return [ExecutionDetails(*row) for row in db.rows(_PAUSED)]


def paused_of(db: Reader | Tx, session_no: SessionNo, *, limit: int) -> list[ExecutionDetails]:
    """The paused executions of one session, newest first."""
    return [ExecutionDetails(*row) for row in db.rows(_PAUSED_OF, (session_no, limit))]


def resume(
    tx: Tx,
    no: int,
    *,
    control_revision: int,
    at_ms: int,
    caller: str,
    provenance: Mapping[str, str] | None = None,
) -> int | None:
    """Let a paused execution run again under a new control revision; None if it is not paused at this revision.

    Nobody holds it until a worker adopts it. `provenance` goes into the event beside `caller`.
    """
    row = tx.row(_RESUME, (no, control_revision))
    if row is None:
        return None
    data = {"controlRevision": row[0], "caller": caller, **(provenance or {})}
    add_event(tx, no, "execution.resumed", data, at_ms=at_ms)
    return int(row[0])


def adopt(tx: Tx, no: int, *, holder: bytes, generation_no: int, clock_ms: int = 0) -> None:
    """Take hold of a resumed execution, with a lease from `clock_ms` on.

    Raises: StaleClaim if somebody holds it, or it does not run.
    """
    if tx.row(_ADOPT, (holder, generation_no, clock_ms + LEASE_MS, no)) is None:
        raise StaleClaim("this execution is not waiting for a worker")


def abandon(tx: Tx, no: int, *, control_revision: int, at_ms: int, caller: str) -> bool:
    """End a paused execution as cancelled; False if it is not paused at this revision."""
    row = tx.row(_ABANDON, (at_ms, no, control_revision))
    if row is None:
        return False
    add_event(tx, no, "execution.abandoned", {"controlRevision": row[0], "caller": caller}, at_ms=at_ms)
    return True
