"""Admitted continuations: paused executions that somebody has asked to go on, and that wait for another turn's end."""

from __future__ import annotations

from typing import Final, NamedTuple

from peen.ids import SessionNo
from peen.store.database import Reader, Tx


class AdmissionRow(NamedTuple):
    """`provenance` is JSON: which call of an agent asked, or nothing."""

    execution_no: int
    execution_id: bytes
    control_revision: int
    caller: str
    is_automatic: int
    provenance: bytes


_ADMIT: Final = """
INSERT INTO admission (session_no, execution_no, control_revision, caller, is_automatic, provenance, created_at_ms)
VALUES (:session_no, :execution_no, :control_revision, :caller, :is_automatic, :provenance, :at_ms)
ON CONFLICT (execution_no) DO UPDATE
   SET control_revision = excluded.control_revision, caller = excluded.caller, is_automatic = excluded.is_automatic,
       provenance = excluded.provenance, created_at_ms = excluded.created_at_ms
 WHERE admission.control_revision <> excluded.control_revision
RETURNING no
"""
_FIRST: Final = """
SELECT e.no, e.id, a.control_revision, a.caller, a.is_automatic, a.provenance
  FROM admission a JOIN execution e ON e.no = a.execution_no
 WHERE a.session_no = ? ORDER BY a.no LIMIT 1
"""
_SESSIONS: Final = """
SELECT a.session_no FROM admission a JOIN session s ON s.no = a.session_no
 WHERE s.deleting_at_ms IS NULL GROUP BY a.session_no ORDER BY min(a.no)
"""
_DROP: Final = "DELETE FROM admission WHERE execution_no = ? RETURNING no"
_DROP_ALL: Final = "DELETE FROM admission WHERE session_no = ? RETURNING execution_no"


def admit(
    tx: Tx,
    session_no: SessionNo,
    execution_no: int,
    *,
    control_revision: int,
    caller: str,
    is_automatic: bool,
    provenance: bytes,
    at_ms: int,
) -> bool:
    """Let a paused execution go on when its turn comes; False if that was admitted at this revision before."""
    row = tx.row(
        _ADMIT,
        {
            "session_no": session_no, "execution_no": execution_no, "control_revision": control_revision,
            "caller": caller, "is_automatic": is_automatic, "provenance": provenance, "at_ms": at_ms,
        },
    )  # fmt: skip
    return row is not None


def first(db: Reader | Tx, session_no: SessionNo) -> AdmissionRow | None:
    """The one that was admitted before all others of the session; None if nothing waits."""
    row = db.row(_FIRST, (session_no,))
    return None if row is None else AdmissionRow(*row)


def waiting_sessions(db: Reader | Tx) -> list[SessionNo]:
    """Sessions in which something waits, by when the first of it was admitted."""
    return [SessionNo(no) for (no,) in db.rows(_SESSIONS)]


def drop(tx: Tx, execution_no: int) -> bool:
    """Forget that an execution was admitted; whether it was."""
    return tx.row(_DROP, (execution_no,)) is not None


def drop_all(tx: Tx, session_no: SessionNo) -> list[int]:
    """Forget everything that was admitted in a session; the numbers of the executions."""
    return sorted(no for (no,) in tx.rows(_DROP_ALL, (session_no,)))
