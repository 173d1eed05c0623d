"""Leases: how long a running step, and whoever holds its execution, may go on without a sign of life.

Times are milliseconds of the controller's monotonic clock. They mean nothing to the next controller, whose recovery
releases every execution before it serves anybody.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from peen.errors import StaleClaim
from peen.ids import SessionNo
from peen.store import keys
from peen.store.database import Reader, Tx

LEASE_MS: Final = 60_000
"""From a claim, or from the last renewal."""


class Silent(NamedTuple):
    """A running execution whose holder has let its lease run out."""

    no: int
    session_no: SessionNo
    turn_id: bytes


_RENEW: Final = "UPDATE execution SET lease_until_ms = ? WHERE no = ? AND lease_until_ms > ? RETURNING no"
_RENEW_STEPS: Final = """
UPDATE activity SET lease_until_ms = ?
 WHERE key >= ? AND key < ? AND state = 'running' AND generation_no = ? AND lease_until_ms > ?
"""
_SILENT: Final = """
SELECT e.no, e.session_no, t.id FROM execution e JOIN turn t ON t.no = e.turn_no
 WHERE e.state = 'running' AND e.holder IS NOT NULL AND e.lease_until_ms <= ? ORDER BY e.no
"""
_LIVE_STEP: Final = """
SELECT key FROM activity
 WHERE key >= ? AND key < ? AND state = 'running' AND lease_until_ms > ? ORDER BY key DESC LIMIT 1
"""
_STILL_SILENT: Final = """
SELECT 1 FROM execution WHERE no = ? AND state = 'running' AND holder IS NOT NULL AND lease_until_ms <= ?
"""
_LAPSE: Final = """
UPDATE activity SET state = 'uncertain', ended_at_ms = ?
 WHERE key >= ? AND key < ? AND state = 'running' AND kind = 'effect' AND lease_until_ms <= ?
"""


def renew(tx: Tx, execution_no: int, *, generation_no: int, clock_ms: int) -> None:
    """Let the holder, and every step that it runs, go on for `LEASE_MS` from now.

    The caller has checked who asks. A step whose lease has run out stays as it is.
    Raises: StaleClaim if the holder's own lease has run out: it comes too late, and its work is taken from it.
    """
    until_ms = clock_ms + LEASE_MS
    if tx.row(_RENEW, (until_ms, execution_no, clock_ms)) is None:
        raise StaleClaim("the lease on this execution has run out: stop, and write nothing more")
    low, high = keys.join(execution_no, 0), keys.join(execution_no + 1, 0)
    tx.execute(_RENEW_STEPS, (until_ms, low, high, generation_no, clock_ms))


def silent(db: Reader | Tx, *, clock_ms: int) -> list[Silent]:
    """Executions that run by their record, and whose holder has not renewed in time. Oldest first."""
    return [Silent(*row) for row in db.rows(_SILENT, (clock_ms,))]


def lapse(tx: Tx, execution_no: int, *, clock_ms: int, at_ms: int) -> bool:
    """Call effects whose lease has run out uncertain; True if nothing of the execution has a lease any more.

    False, and nothing changed, if its holder has renewed meanwhile, or it does not run.
    """
    if tx.row(_STILL_SILENT, (execution_no, clock_ms)) is None:
        return False
    span = (keys.join(execution_no, 0), keys.join(execution_no + 1, 0))
    tx.execute(_LAPSE, (at_ms, *span, clock_ms))
    return tx.row(_LIVE_STEP, (*span, clock_ms)) is None
