"""Jobs: commands with what they printed, how they ended, and the signals that were asked for."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple

from peen.errors import StaleClaim
from peen.ids import SessionNo
from peen.store import keys
from peen.store.database import Reader, Tx
from peen.wire.joboutput import NumberedPiece, OutputChunk, Piece, chunk_of, pieces_of, streams_of

BOTH: Final = 3


class Allowance(NamedTuple):
    """What may be stored of a job's output: `max_bytes` in all (0: no limit), nothing if there is a `refusal`."""

    max_bytes: int = 0
    max_text: str = ""
    refusal: str = ""


class Missing(NamedTuple):
    """Output that is not stored, and from where on and why; nothing is missing where `text` is empty."""

    unstored_bytes: int = 0
    text: str = ""


ALL: Final = Allowance()
NOTHING_MISSING: Final = Missing()


class JobRow(NamedTuple):
    no: int
    id: bytes
    session_no: SessionNo
    turn_id: bytes
    execution_no: int
    generation_id: bytes
    call_id: str
    pid: int | None
    purpose: str
    command: str
    directory: str
    state: str
    exit_code: int
    failure_detail: str
    unstored_bytes: int
    output_missing: str
    is_detached: bool
    line_count: int
    byte_count: int
    started_at_ms: int
    ended_at_ms: int | None


class SignalRow(NamedTuple):
    number: int
    signal: str
    accepted: bool
    state_at_request: str
    requested_at_ms: int


class StoredPiece(NamedTuple):
    piece: NumberedPiece
    created_at_ms: int


_SELECT: Final = """
SELECT j.no, j.id, j.session_no, t.id, j.execution_no, g.id, j.call_id, j.pid, j.purpose, j.command, j.directory,
       j.state, j.exit_code, j.failure_detail, j.unstored_bytes, j.output_missing, j.is_detached, j.line_count,
       j.byte_count, j.started_at_ms, j.ended_at_ms
  FROM job j JOIN turn t ON t.no = j.turn_no JOIN generation g ON g.no = j.generation_no
"""
_BY_ID: Final = f"{_SELECT} WHERE j.id = ? AND j.session_no = ?"
_BY_NO: Final = f"{_SELECT} WHERE j.no = ?"
_PAGE: Final = f"""
{_SELECT} WHERE j.session_no = :session AND (:state IS NULL OR j.state = :state)
   AND (NOT :known OR j.is_detached OR j.state = 'interrupted')
 ORDER BY j.no DESC LIMIT :limit OFFSET :offset
"""
_RUNNING: Final = "SELECT EXISTS (SELECT 1 FROM job WHERE session_no = ? AND state = 'running')"
_LEFT: Final = """
SELECT no FROM job WHERE session_no = ? AND generation_no = ? AND state = 'running' ORDER BY no
"""
_CREATE: Final = """
INSERT INTO job (id, session_no, turn_no, execution_no, generation_no, call_id, purpose, command, directory, state,
                 started_at_ms)
VALUES (:id, :session, :turn, :execution, :generation, :call, :purpose, :command, :directory, 'running', :at)
"""
# Whoever writes about a running job must be the generation that runs it, and be alive.
_MINE: Final = """
 WHERE id = :id AND session_no = :session AND generation_no = :generation AND state = 'running'
   AND EXISTS (SELECT 1 FROM generation WHERE no = :generation AND ended_at_ms IS NULL)
"""
_STARTED: Final = f"UPDATE job SET pid = :pid {_MINE} RETURNING no"
_WRITTEN: Final = f"SELECT no, line_count, byte_count, unstored_bytes, output_missing FROM job {_MINE}"
_MISS: Final = "UPDATE job SET unstored_bytes = ?, output_missing = ? WHERE no = ?"
_DETACH: Final = f"UPDATE job SET pid = :pid, is_detached = 1 {_MINE} RETURNING no"
_GROW: Final = f"""
UPDATE job SET line_count = :first - 1 + :lines, byte_count = byte_count + :bytes {_MINE} AND line_count = :first - 1
RETURNING no
"""
_END: Final = f"""
UPDATE job SET state = :state, exit_code = :exit_code, failure_detail = :detail, ended_at_ms = :at,
               pid = coalesce(:pid, pid), unstored_bytes = :unstored, output_missing = :missing
 {_MINE} RETURNING no
"""
_LOSE: Final = """
UPDATE job SET state = 'interrupted', failure_detail = :detail, ended_at_ms = :at WHERE no = :no AND state = 'running'
RETURNING no
"""
_KEEP: Final = "INSERT INTO job_output (key, streams, line_index, data, created_at_ms) VALUES (?, ?, ?, ?, ?)"
_OUTPUT: Final = """
SELECT key & 0xFFFFFFFF, line_index, data, created_at_ms FROM job_output
 WHERE key >= coalesce((SELECT max(key) FROM job_output WHERE key > :base AND key <= :base + :after + 1), :base)
   AND key < :end AND streams & :streams
 ORDER BY key
"""
_ADD_SIGNAL: Final = """
INSERT INTO job_signal (key, signal, accepted, state_at_request, requested_at_ms)
SELECT :base + 1 + count(*), :signal, :accepted, :state, :at FROM job_signal WHERE key >= :base AND key < :end
"""
_SIGNALS: Final = """
SELECT key & 0xFFFFFFFF, signal, accepted, state_at_request, requested_at_ms FROM job_signal
 WHERE key >= ? AND key < ? ORDER BY key LIMIT ? OFFSET ?
"""


class Owner(NamedTuple):
    """The worker generation that runs a job."""

    session_no: SessionNo
    generation_no: int


def create(
    tx: Tx,
    owner: Owner,
    *,
    job_id: bytes,
    turn_no: int,
    execution_no: int,
    call_id: str,
    purpose: str,
    command: str,
    directory: str,
    at_ms: int,
) -> None:
    """A job in state `running`, whose process is about to start."""
    tx.execute(
        _CREATE,
        {
            "id": job_id, "session": owner.session_no, "turn": turn_no, "execution": execution_no,
            "generation": owner.generation_no, "call": call_id, "purpose": purpose, "command": command,
            "directory": directory, "at": at_ms,
        },
    )  # fmt: skip


def started(tx: Tx, owner: Owner, job_id: bytes, *, pid: int) -> None:
    """Raises: StaleClaim, as everything here that names an owner, unless that one runs the job."""
    _mine(tx, _STARTED, owner, job_id, pid=pid)


def detach(tx: Tx, owner: Owner, job_id: bytes, *, pid: int) -> None:
    """The handle is returned while the command goes on."""
    _mine(tx, _DETACH, owner, job_id, pid=pid)


def append(
    tx: Tx,
    owner: Owner,
    job_id: bytes,
    chunks: Sequence[OutputChunk],
    *,
    at_ms: int,
    allowance: Allowance = ALL,
    missing: Missing = NOTHING_MISSING,
) -> Missing:
    """Keep output that follows what is there, as far as that is allowed; what was left out of it.

    Once some was left out, nothing of this job is kept any more: what is stored is its beginning, without a gap.
    `missing` is what the worker has left out so far.
    Raises: ValidationFailed; StaleClaim, also for a gap.
    """
    row = _mine(tx, _WRITTEN, owner, job_id)
    no, line_count, byte_count, *kept_so_far = row
    stored = Missing(*kept_so_far)
    text, left_out = stored.text or missing.text, 0
    for chunk in chunks:
        streams_of(chunk)  # whether it is well-formed
        kept, reason = _allowed(chunk, byte_count, allowance)
        if kept is not None and not text:
            size = {"first": kept.first, "lines": kept.count, "bytes": len(kept.data)}
            _mine(tx, _GROW, owner, job_id, **size)
            tx.execute(_KEEP, (keys.join(no, kept.first), streams_of(kept), kept.index, kept.data, at_ms))
            line_count, byte_count = line_count + kept.count, byte_count + len(kept.data)
            left_out += len(chunk.data) - len(kept.data)
        else:
            left_out += len(chunk.data)
        if reason and not text:
            text = f"what it printed behind number {line_count} is not stored: {reason}"
    if not text:
        return NOTHING_MISSING
    told = Missing(max(stored.unstored_bytes, missing.unstored_bytes), text)
    # Not for each refused chunk: the worker counts, and tells now and then.
    if told != stored:
        first = left_out if stored == NOTHING_MISSING else 0
        tx.execute(_MISS, (told.unstored_bytes + first, text, no))
    return Missing(left_out, text)


def end(
    tx: Tx,
    owner: Owner,
    job_id: bytes,
    *,
    state: str,
    exit_code: int,
    detail: str,
    pid: int | None,
    at_ms: int,
    chunks: Sequence[OutputChunk] = (),
    allowance: Allowance = ALL,
    missing: Missing = NOTHING_MISSING,
) -> JobRow:
    """The last output, and the job as it has ended. `missing` is all that the worker has left out."""
    last = append(tx, owner, job_id, chunks, at_ms=at_ms, allowance=allowance, missing=missing)
    (no,) = _mine(
        tx, _END, owner, job_id, state=state, exit_code=exit_code, detail=detail, pid=pid, at=at_ms,
        unstored=missing.unstored_bytes + last.unstored_bytes if last.text else 0, missing=last.text,
    )  # fmt: skip
    row = tx.row(_BY_NO, (no,))
    assert row is not None
    return _row(row)


def end_left(tx: Tx, owner: Owner, *, detail: str, at_ms: int) -> list[JobRow]:
    """End, as interrupted, what a generation that is gone still ran; these, oldest first."""
    found = []
    for (no,) in tx.rows(_LEFT, owner):
        tx.execute(_LOSE, {"no": no, "detail": detail, "at": at_ms})
        row = tx.row(_BY_NO, (no,))
        assert row is not None
        found.append(_row(row))
    return found


def add_signal(tx: Tx, job: JobRow, *, signal: str, at_ms: int) -> bool:
    """Record that somebody asked for a signal; whether the job ran, so that it can be sent."""
    accepted = job.state == "running"
    bounds = {"base": keys.join(job.no, 0), "end": keys.join(job.no + 1, 0)}
    tx.execute(_ADD_SIGNAL, {**bounds, "signal": signal, "accepted": accepted, "state": job.state, "at": at_ms})
    return accepted


def by_id(db: Reader | Tx, session_no: SessionNo, job_id: bytes) -> JobRow | None:
    row = db.row(_BY_ID, (job_id, session_no))
    return None if row is None else _row(row)


def page(
    db: Reader | Tx,
    session_no: SessionNo,
    *,
    limit: int,
    offset: int,
    state: str | None = None,
    known_only: bool = False,
) -> list[JobRow]:
    """Newest first. `known_only` leaves out commands whose end was, or will be, told by their call."""
    bindings = {
        "session": session_no, "state": state, "known": int(known_only), "limit": limit, "offset": offset,
    }  # fmt: skip
    return [_row(row) for row in db.rows(_PAGE, bindings)]


def any_runs(db: Reader | Tx, session_no: SessionNo) -> bool:
    """Whether a command of the session runs."""
    row = db.row(_RUNNING, (session_no,))
    return row is not None and bool(row[0])


def output(db: Reader, job_no: int, *, after: int, streams: int = BOTH) -> Generator[StoredPiece, None, None]:
    """Pieces behind number `after`, in order. Who stops early closes the generator."""
    base, past = keys.join(job_no, 0), keys.join(job_no + 1, 0)
    cursor = db.execute(_OUTPUT, {"base": base, "end": past, "after": after, "streams": streams})
    try:
        for first, index, data, created_at_ms in cursor:
            for piece in pieces_of(first, index, data, after=after):
                if streams & 1 << piece.stream:
                    yield StoredPiece(piece, created_at_ms)
    finally:
        cursor.close()


def signals(db: Reader | Tx, job_no: int, *, limit: int, offset: int) -> list[SignalRow]:
    """Oldest first."""
    bounds = (keys.join(job_no, 0), keys.join(job_no + 1, 0))
    return [
        SignalRow(number, signal, bool(accepted), state, at_ms)
        for number, signal, accepted, state, at_ms in db.rows(_SIGNALS, (*bounds, limit, offset))
    ]


def _allowed(chunk: OutputChunk, byte_count: int, allowance: Allowance) -> tuple[OutputChunk | None, str]:
    """What may be kept of a chunk, and why not all of it."""
    if allowance.refusal:
        return None, allowance.refusal
    room = allowance.max_bytes - byte_count
    if not allowance.max_bytes or len(chunk.data) <= room:
        return chunk, ""
    kept: list[Piece] = []
    for piece in pieces_of(chunk.first, chunk.index, chunk.data):
        room -= len(piece.data)
        if room < 0:
            break
        kept.append(Piece(piece.stream, piece.goes_on, piece.data))
    return chunk_of(chunk.first, kept) if kept else None, allowance.max_text


def _mine(tx: Tx, statement: str, owner: Owner, job_id: bytes, **values: int | str | None) -> tuple[Any, ...]:
    bindings = {"id": job_id, "session": owner.session_no, "generation": owner.generation_no, **values}
    row = tx.row(statement, bindings)
    if row is None:
        raise StaleClaim("this job does not run under this worker generation (any more)")
    return row


def _row(row: tuple[object, ...]) -> JobRow:
    found = JobRow._make(row)
    return found._replace(is_detached=bool(found.is_detached))
