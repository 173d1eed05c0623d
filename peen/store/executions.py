"""Executions and their steps: the durable record that the one workflow of root and child writes and reads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from peen.errors import StaleClaim, StepConflict
from peen.ids import SessionNo
from peen.store import generations, keys
from peen.store.database import Reader, Tx
from peen.store.leases import LEASE_MS
from peen.wire.records import Claim, Completion, KeptProgress

_decode_progress: Final = msgspec.json.Decoder(KeptProgress).decode

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


class StepRow(NamedTuple):
    """One step as it stands. `Blobs.take` makes the exact JSON bytes that were saved of `given` and `output`."""

    step: str
    kind: str
    call_id: str | None
    state: str
    attempt: int
    given: bytes
    output: bytes | None


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
_PASS: Final = """
INSERT INTO activity (key, kind, call_id, state, generation_no, given, output, payload_sha256, started_at_ms,
                      ended_at_ms)
VALUES (?1, ?2, ?3, 'completed', ?4, ?5, ?6, ?7, ?8, ?8)
ON CONFLICT (key) DO UPDATE
   SET state = 'completed', output = excluded.output, payload_sha256 = excluded.payload_sha256,
       generation_no = excluded.generation_no, ended_at_ms = excluded.ended_at_ms
 WHERE state = 'interrupted'
RETURNING key
"""
_CLAIM: Final = """
INSERT INTO activity (key, kind, call_id, state, generation_no, given, started_at_ms, lease_until_ms)
VALUES (?, ?, ?, 'running', ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE
   SET state = 'running', attempt = attempt + 1, generation_no = excluded.generation_no,
       started_at_ms = excluded.started_at_ms, ended_at_ms = NULL, lease_until_ms = excluded.lease_until_ms,
       progress = NULL
 WHERE state = 'interrupted' OR (state = 'running' AND kind <> 'effect' AND lease_until_ms <= ?)
RETURNING attempt
"""
_COMPLETE: Final = """
UPDATE activity SET state = ?, output = ?, payload_sha256 = ?, ended_at_ms = ?, lease_until_ms = 0, progress = NULL
 WHERE key = ? AND state = 'running' AND generation_no = ? AND lease_until_ms > ?
RETURNING key
"""
_PAYLOAD: Final = "SELECT state, payload_sha256 FROM activity WHERE key = ?"
_UNSETTLED: Final = "SELECT key FROM activity WHERE key >= ? AND key < ? AND state = 'running' LIMIT 1"
_UNCERTAIN: Final = """
UPDATE activity SET state = CASE WHEN kind = 'effect' THEN 'uncertain' ELSE 'interrupted' END, ended_at_ms = ?,
                    progress = NULL
 WHERE key >= ? AND key < ? AND state = 'running'
"""
_STEPS: Final = """
SELECT key, kind, call_id, state, attempt, given, output FROM activity WHERE key >= ? AND key < ? ORDER BY key
"""
_OPEN_MODEL_STEPS: Final = """
SELECT key, kind, generation_no, started_at_ms, progress FROM activity
 WHERE key >= ? AND key < ? AND state = 'running' AND kind IN ('compact', 'model') ORDER BY key
"""
_NOTE: Final = """
UPDATE activity SET progress = ? WHERE key = ? AND state = 'running' AND generation_no = ? RETURNING key
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
_LIVE_CALL: Final = """
SELECT key FROM activity WHERE key >= ? AND key < ? AND state = 'running' AND call_id = ? AND generation_no = ? LIMIT 1
"""
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
_RESOLVE: Final = """
UPDATE activity SET state = ?, output = ?, resolution = ?, ended_at_ms = ? WHERE key = ? AND state = 'uncertain'
RETURNING key
"""
_EVENTS: Final = "SELECT type, data, created_at_ms FROM control_event WHERE key >= ? AND key < ? ORDER BY key"
_EVENT: Final = """
INSERT INTO control_event (key, type, data, created_at_ms)
SELECT no << 32 | event_sequence, ?, ?, ? FROM execution WHERE no = ?
"""
_TAKE_EVENT: Final = "UPDATE execution SET event_sequence = event_sequence + 1 WHERE no = ?"


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


def claim(
    tx: Tx, execution_no: int, claim: Claim, *, given: bytes, generation_no: int, at_ms: int, clock_ms: int = 0
) -> None:
    """Save the input of a step, as `Blobs.put` made it, and mark it running under a lease from `clock_ms` on.

    That comes before any of its work.

    A step that was interrupted, or has lost its lease, and may be done again, gets another attempt with the input that
    was saved first.
    Raises: StepConflict if the step runs, has ended, or may have had an effect that nobody has looked at.
    """
    key = keys.join(execution_no, keys.step_position(claim.step))
    lease = (clock_ms + LEASE_MS, clock_ms)
    row = tx.row(_CLAIM, (key, claim.kind, claim.call_id, generation_no, given, at_ms, *lease))
    if row is None:
        raise StepConflict(f"step {claim.step} cannot begin: it has begun before and was not interrupted")


def complete(
    tx: Tx,
    execution_no: int,
    completion: Completion,
    *,
    output: bytes,
    payload: bytes,
    generation_no: int,
    at_ms: int,
    clock_ms: int = 0,
) -> bool:
    """Save the outcome of a running step, its `output` as `Blobs.put` made it; False if exactly this was saved before
    (and nothing changes).

    `payload` is everything that commits with the completion: a repeat must be identical in all of it.
    Raises: StepConflict if the step was completed with another payload; StaleClaim if it is not running, or its lease
    has run out.
    """
    key = keys.join(execution_no, keys.step_position(completion.step))
    digest = hashlib.sha256(payload).digest()
    state = "failed" if completion.failed else "completed"
    if tx.row(_COMPLETE, (state, output, digest, at_ms, key, generation_no, clock_ms)) is not None:
        return True
    row = tx.row(_PAYLOAD, (key,))
    if row is None or row[0] not in ("completed", "failed"):
        raise StaleClaim(f"step {completion.step} is not running under a lease of this worker generation")
    if row[1] != digest:
        raise StepConflict(f"step {completion.step} was completed before with another result")
    return False


def add_passed(
    tx: Tx, execution_no: int, claim: Claim, completion: Completion, *, generation_no: int, at_ms: int
) -> None:
    """A step that had nothing to do: begun and completed at once. Raises: StepConflict if it has begun before."""
    key = keys.join(execution_no, keys.step_position(claim.step))
    output = bytes(completion.output)
    digest = hashlib.sha256(output).digest()
    row = (key, claim.kind, claim.call_id, generation_no, bytes(claim.given), output, digest, at_ms)
    if tx.row(_PASS, row) is None:
        raise StepConflict(f"step {claim.step} cannot be passed over: it has begun before")


def is_settled(tx: Tx, execution_no: int) -> bool:
    """Whether no step of the execution is still running."""
    return tx.row(_UNSETTLED, (keys.join(execution_no, 0), keys.join(execution_no + 1, 0))) is None


def settle(tx: Tx, execution_no: int, *, at_ms: int) -> None:
    """Close steps that were cut off: effects become uncertain, everything else may simply be done again."""
    tx.execute(_UNCERTAIN, (at_ms, keys.join(execution_no, 0), keys.join(execution_no + 1, 0)))


def steps(db: Reader | Tx, execution_no: int) -> list[StepRow]:
    """Every step so far, in the order of the workflow."""
    rows = db.rows(_STEPS, (keys.join(execution_no, 0), keys.join(execution_no + 1, 0)))
    return [StepRow(keys.step_id(keys.sequence_of(key)), *rest) for key, *rest in rows]


class OpenModelStep(NamedTuple):
    """A step that asks a model, has begun and not ended. `kind` is `model` or `compact`.

    `progress` is what is known of its attempts; None if it has told nothing since its first one.
    """

    step: str
    kind: str
    generation_no: int
    started_at_ms: int
    progress: KeptProgress | None


def open_model_steps(tx: Tx, execution_no: int) -> list[OpenModelStep]:
    rows = tx.rows(_OPEN_MODEL_STEPS, (keys.join(execution_no, 0), keys.join(execution_no + 1, 0)))
    return [
        OpenModelStep(
            keys.step_id(keys.sequence_of(key)), kind, generation_no, started_at_ms,
            None if progress is None else _decode_progress(progress),
        )
        for key, kind, generation_no, started_at_ms, progress in rows
    ]  # fmt: skip


def note_progress(tx: Tx, execution_no: int, step: str, progress: KeptProgress, *, generation_no: int) -> None:
    """Keep with a running step how far it has come. Raises: StaleClaim if it does not run under that generation."""
    key = keys.join(execution_no, keys.step_position(step))
    if tx.row(_NOTE, (msgspec.json.encode(progress), key, generation_no)) is None:
        raise StaleClaim(f"step {step} is not running under this worker generation")


def add_event(tx: Tx, execution_no: int, event_type: str, data: dict[str, object], *, at_ms: int) -> None:
    tx.execute(_TAKE_EVENT, (execution_no,))
    tx.execute(_EVENT, (event_type, msgspec.json.encode(data), at_ms, execution_no))


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


def attempt_of(tx: Tx, execution_no: int, step: str) -> int:
    """Which attempt at the step this is; the first is 1."""
    row = tx.row("SELECT attempt FROM activity WHERE key = ?", (keys.join(execution_no, keys.step_position(step)),))
    assert row is not None, f"step {step} has not begun"
    return int(row[0])


def live_call(tx: Tx, no: int, call_id: str, *, generation_no: int) -> str | None:
    """The step in which this generation carries out that tool call right now; None if it does not."""
    row = tx.row(_LIVE_CALL, (keys.join(no, 0), keys.join(no + 1, 0), call_id, generation_no))
    return None if row is None else keys.step_id(keys.sequence_of(row[0]))


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


def resolve(
    tx: Tx, execution_no: int, step: str, *, output: bytes | None, resolution: dict[str, object], at_ms: int
) -> bool:
    """Record what somebody decided about an uncertain step: `output` is what it came to, None allows another attempt.

    False if the step is not uncertain (any more).
    """
    key = keys.join(execution_no, keys.step_position(step))
    state = "interrupted" if output is None else "completed"
    if tx.row(_RESOLVE, (state, output, msgspec.json.encode(resolution), at_ms, key)) is None:
        return False
    add_event(tx, execution_no, "activity.resolved", {"step": step, **resolution}, at_ms=at_ms)
    return True


def events(db: Reader | Tx, execution_no: int) -> list[tuple[str, bytes, int]]:
    """Control history: type, data as JSON, time in ms; oldest first."""
    rows = db.rows(_EVENTS, (keys.join(execution_no, 0), keys.join(execution_no + 1, 0)))
    return [(event_type, data, at_ms) for event_type, data, at_ms in rows]
