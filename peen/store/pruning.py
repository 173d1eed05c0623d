"""Which sessions nobody has used for long, and giving one of them up if that is still so."""

from __future__ import annotations

from typing import Final, NamedTuple

from peen.errors import SessionBusy, SessionNotFound
from peen.ids import SessionNo
from peen.store import deletion
from peen.store.database import Reader, Tx
from peen.store.sessions import SessionRow

# A message changes both times; making a session sets only one.
_IS_OLD: Final = "deleting_at_ms IS NULL AND max(updated_at_ms, coalesce(last_message_at_ms, 0)) < :before"
_PAUSED: Final = "EXISTS (SELECT 1 FROM execution e WHERE e.session_no = session.no AND e.state = 'paused')"
_OLD: Final = f"SELECT no, id, {_PAUSED} FROM session WHERE {_IS_OLD} ORDER BY no"
_STILL_OLD: Final = f"SELECT id FROM session WHERE no = :no AND {_IS_OLD} AND NOT {_PAUSED}"
_PAGES: Final = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"


class OldSession(NamedTuple):
    no: SessionNo
    id: bytes
    is_paused: bool
    """Whether an execution of it is paused: work that somebody may want to go on with."""


def old_sessions(db: Reader | Tx, *, before_ms: int) -> list[OldSession]:
    """Sessions whose last message and last change are older than `before_ms`, running ones included."""
    return [OldSession(no, session_id, bool(paused)) for no, session_id, paused in db.rows(_OLD, {"before": before_ms})]


def mark_old(tx: Tx, no: SessionNo, *, before_ms: int, at_ms: int) -> SessionRow | None:
    """Begin to delete the session; None, and nothing has changed, if it was used meanwhile, runs or has paused work."""
    row = tx.row(_STILL_OLD, {"no": no, "before": before_ms})
    if row is None:
        return None
    try:
        return deletion.mark(tx, row[0], at_ms=at_ms)
    except (SessionBusy, SessionNotFound):
        return None


def size_bytes(db: Reader | Tx) -> int:
    """Size of the database in bytes, free pages included."""
    row = db.row(_PAGES)
    assert row is not None
    return int(row[0])
