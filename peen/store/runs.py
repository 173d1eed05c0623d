"""Runs of executions, in `workflows.db`: a copy of what `peen.db` says, which alone is the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from peen.ids import SessionNo
from peen.store import keys
from peen.store.database import Database, Reader, Tx
from peen.store.failure import storage_errors


class Run(NamedTuple):
    """One stretch of an execution. `outcome` is `running`, `paused`, `completed`, `failed` or `cancelled`.

    `generation_id` and `holder` say which worker took hold of it, None if none did; `caller` who let it go on, None
    for the first one; `reason` is that of a pause.
    """

    generation_id: bytes | None
    holder: bytes | None
    caller: str | None
    started_at_ms: int
    ended_at_ms: int | None
    outcome: str
    reason: str | None


class Mark(NamedTuple):
    """How far an execution has come: what its runs were made from."""

    execution_no: int
    execution_id: bytes
    event_sequence: int
    state: str


# Of peen.db.
_MARKS: Final = """
SELECT e.no, e.id, e.event_sequence, e.state FROM execution e JOIN session s ON s.no = e.session_no
 WHERE s.deleting_at_ms IS NULL ORDER BY e.no
"""
_MARK: Final = """
SELECT e.no, e.id, e.event_sequence, e.state FROM execution e JOIN session s ON s.no = e.session_no
 WHERE e.id = ? AND s.deleting_at_ms IS NULL
"""
_OF_SESSION: Final = "SELECT id FROM execution WHERE session_no = ? ORDER BY no"
# Of workflows.db.
_SEEN: Final = "SELECT execution_no, execution_id, event_sequence, state FROM seen ORDER BY execution_no"
_SEEN_ONE: Final = "SELECT execution_no, execution_id, event_sequence, state FROM seen WHERE execution_no = ?"
_SEEN_NOS: Final = "SELECT execution_no FROM seen WHERE execution_id = ?"
_RUNS: Final = """
SELECT generation_id, holder, caller, started_at_ms, ended_at_ms, outcome, reason FROM run
 WHERE key >= ? AND key < ? ORDER BY key
"""
_REMOVE: Final = "DELETE FROM run WHERE key >= ? AND key < ?"
_REMOVE_SEEN: Final = "DELETE FROM seen WHERE execution_no = ?"
_ADD: Final = """
INSERT INTO run (key, generation_id, holder, caller, started_at_ms, ended_at_ms, outcome, reason)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_SET_SEEN: Final = """
INSERT OR REPLACE INTO seen (execution_no, execution_id, event_sequence, state) VALUES (?, ?, ?, ?)
"""


def marks(truth: Reader) -> list[Mark]:
    """Of every execution in `peen.db`, but those of sessions that are being deleted."""
    return [Mark(*row) for row in truth.rows(_MARKS)]


def mark(truth: Reader, execution_id: bytes) -> Mark | None:
    """Of one execution in `peen.db`; None if there is none, or its session is being deleted."""
    row = truth.row(_MARK, (execution_id,))
    return None if row is None else Mark(*row)


def of_session(truth: Reader, session_no: SessionNo) -> list[bytes]:
    """Ids of the executions of a session in `peen.db`, also of one that is being deleted."""
    return [execution_id for (execution_id,) in truth.rows(_OF_SESSION, (session_no,))]


def seen(db: Reader) -> list[Mark]:
    """Of every execution that `workflows.db` knows."""
    return [Mark(*row) for row in db.rows(_SEEN)]


def look_up(file: Database, wanted: Mark) -> list[Run] | None:
    """The runs of an execution, in their order; None unless the file has them as far as the execution has come.

    Raises: StorageError.
    """
    with storage_errors(file.path):
        row = file.reader.row(_SEEN_ONE, (wanted.execution_no,))
        if row is None or Mark(*row) != wanted:
            return None
        return [Run(*run) for run in file.reader.rows(_RUNS, _span(wanted.execution_no))]


def put(tx: Tx, of: Mark, found: Sequence[Run]) -> None:
    """Write the runs of an execution anew."""
    remove(tx, of.execution_no)
    for number, run in enumerate(found, start=1):
        tx.execute(_ADD, (keys.join(of.execution_no, number), *run))
    tx.execute(_SET_SEEN, of)


def forget(tx: Tx, execution_id: bytes) -> None:
    """Remove what is known of an execution that is gone."""
    for (no,) in tx.rows(_SEEN_NOS, (execution_id,)):
        remove(tx, no)


def remove(tx: Tx, execution_no: int) -> None:
    """Remove what is known under a number."""
    tx.execute(_REMOVE, _span(execution_no))
    tx.execute(_REMOVE_SEEN, (execution_no,))


def _span(execution_no: int) -> tuple[int, int]:
    return keys.join(execution_no, 0), keys.join(execution_no + 1, 0)
