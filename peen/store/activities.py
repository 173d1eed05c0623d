"""The steps of executions: claimed before any of their work, completed with what they came to, or uncertain."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import msgspec

from peen.errors import StaleClaim, StepConflict
from peen.store import keys
from peen.store.controlevents import add_event
from peen.store.database import Reader, Tx
from peen.store.leases import LEASE_MS
from peen.wire.records import Claim, Completion, KeptProgress


class StepRow(NamedTuple):
    """One step as it stands. `Blobs.take` makes the exact JSON bytes that were saved of `given` and `output`."""

    step: str
    kind: str
    call_id: str | None
    state: str
    attempt: int
    given: bytes
    output: bytes | None


class OpenModelStep(NamedTuple):
    """A step that asks a model, has begun and not ended. `kind` is `model` or `compact`.

    `progress` is what is known of its attempts; None if it has told nothing since its first one.
    """

    step: str
    kind: str
    generation_no: int
    started_at_ms: int
    progress: KeptProgress | None


_decode_progress: Final = msgspec.json.Decoder(KeptProgress).decode
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
_LIVE_CALL: Final = """
SELECT key FROM activity WHERE key >= ? AND key < ? AND state = 'running' AND call_id = ? AND generation_no = ? LIMIT 1
"""
_RESOLVE: Final = """
UPDATE activity SET state = ?, output = ?, resolution = ?, ended_at_ms = ? WHERE key = ? AND state = 'uncertain'
RETURNING key
"""


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


def attempt_of(tx: Tx, execution_no: int, step: str) -> int:
    """Which attempt at the step this is; the first is 1."""
    row = tx.row("SELECT attempt FROM activity WHERE key = ?", (keys.join(execution_no, keys.step_position(step)),))
    assert row is not None, f"step {step} has not begun"
    return int(row[0])


def live_call(tx: Tx, no: int, call_id: str, *, generation_no: int) -> str | None:
    """The step in which this generation carries out that tool call right now; None if it does not."""
    row = tx.row(_LIVE_CALL, (keys.join(no, 0), keys.join(no + 1, 0), call_id, generation_no))
    return None if row is None else keys.step_id(keys.sequence_of(row[0]))


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
