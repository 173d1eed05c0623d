"""Control events of executions: who paused, resumed, adopted, decided or abandoned, and when."""

from __future__ import annotations

from typing import Final

import msgspec

from peen.store import keys
from peen.store.database import Reader, Tx

_EVENTS: Final = "SELECT type, data, created_at_ms FROM control_event WHERE key >= ? AND key < ? ORDER BY key"
_EVENT: Final = """
INSERT INTO control_event (key, type, data, created_at_ms)
SELECT no << 32 | event_sequence, ?, ?, ? FROM execution WHERE no = ?
"""
_TAKE_EVENT: Final = "UPDATE execution SET event_sequence = event_sequence + 1 WHERE no = ?"


def add_event(tx: Tx, execution_no: int, event_type: str, data: dict[str, object], *, at_ms: int) -> None:
    tx.execute(_TAKE_EVENT, (execution_no,))
    tx.execute(_EVENT, (event_type, msgspec.json.encode(data), at_ms, execution_no))


def events(db: Reader | Tx, execution_no: int) -> list[tuple[str, bytes, int]]:
    """Control history: type, data as JSON, time in ms; oldest first."""
    rows = db.rows(_EVENTS, (keys.join(execution_no, 0), keys.join(execution_no + 1, 0)))
    return [(event_type, data, at_ms) for event_type, data, at_ms in rows]
