"""Deleting a session: hidden at once, then removed row by row in small transactions, which a restart goes on with."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

import structlog

from peen.errors import SessionBusy, SessionNotFound, StorageError
from peen.ids import SessionNo
from peen.store import jobs, keys, sessions
from peen.store.blobs.rows import release
from peen.store.database import Database, Reader, Tx
from peen.store.sessions import SessionRow

log = structlog.get_logger(__name__)

STEP_ROWS: Final = 2_000
STEP_BYTES: Final = 4 * 1024 * 1024
"""What one transaction removes at most: other sessions wait for the end of it. One row may be larger."""
VACUUM_PAGES: Final = 256
"""Pages that one transaction gives back to the file system."""

# The workspace can be opened anew from here on; no path looks like what stands in its place.
_MARK: Final = """
UPDATE session SET deleting_at_ms = :at, workspace = 'deleted:' || hex(id)
 WHERE no = :no
   AND NOT EXISTS (SELECT 1 FROM turn WHERE session_no = :no AND state = 'running')
   AND NOT EXISTS (SELECT 1 FROM inbox WHERE session_no = :no AND state IN ('opening', 'deferred'))
   AND NOT EXISTS (SELECT 1 FROM job WHERE session_no = :no AND state = 'running')
RETURNING no
"""
_PENDING: Final = "SELECT no FROM session WHERE deleting_at_ms IS NOT NULL ORDER BY no"
_REMOVE_SESSION: Final = "DELETE FROM session WHERE no = :no"
_FREE_PAGES: Final = "PRAGMA freelist_count"
_VACUUM: Final = f"PRAGMA incremental_vacuum({VACUUM_PAGES})"


class Part(NamedTuple):
    """One table. `find` gives (key, bytes) of the session's next rows, `remove` takes one away by its key."""

    table: str
    find: str
    remove: tuple[str, ...]


def _of_session(table: str, *large: str) -> Part:
    """Rows whose key is session << 32 | sequence."""
    find = f"SELECT key, {_size(large)} FROM {table} WHERE key >= :low AND key < :high ORDER BY key LIMIT :limit"
    return Part(table, find, (f"DELETE FROM {table} WHERE key = :key",))


def _of_owner(table: str, owner: str, *large: str) -> Part:
    """Rows whose key is number of their owner << 32 | position."""
    sizes = _size(tuple(f"t.{column}" for column in large))
    find = f"""
        SELECT t.key, {sizes}
          FROM {owner} o CROSS JOIN {table} t ON t.key >= o.no << 32 AND t.key < (o.no + 1) << 32
         WHERE o.session_no = :no ORDER BY o.no, t.key LIMIT :limit
    """
    return Part(table, find, (f"DELETE FROM {table} WHERE key = :key",))


def _numbered(table: str, *large: str) -> Part:
    """Rows with a number of their own; newest first, since a row may refer to an older one of its table."""
    find = f"SELECT no, {_size(large)} FROM {table} WHERE session_no = :no ORDER BY no DESC LIMIT :limit"
    return Part(table, find, (f"DELETE FROM {table} WHERE no = :key",))


def _size(columns: tuple[str, ...]) -> str:
    return " + ".join(f"coalesce(octet_length({column}), 0)" for column in columns) or "0"


_OPENING_NOTICES: Final = Part(
    "turn_opening_notice",
    """
    SELECT o.turn_no << 32 | o.position, 0 FROM turn t CROSS JOIN turn_opening_notice o ON o.turn_no = t.no
     WHERE t.session_no = :no ORDER BY t.no, o.position LIMIT :limit
    """,
    ("DELETE FROM turn_opening_notice WHERE turn_no = :key >> 32 AND position = :key & 0xFFFFFFFF",),
)
_SNAPSHOTS: Final = Part(
    "snapshot_use",
    """
    SELECT s.no, octet_length(s.content) FROM snapshot_use u JOIN snapshot s ON s.no = u.snapshot_no
     WHERE u.session_no = :no ORDER BY u.snapshot_no LIMIT :limit
    """,
    (
        "DELETE FROM snapshot_use WHERE session_no = :no AND snapshot_no = :key",
        # Other sessions may use the same text.
        "DELETE FROM snapshot WHERE no = :key AND NOT EXISTS (SELECT 1 FROM snapshot_use WHERE snapshot_no = :key)",
    ),
)
_COMPACTIONS: Final = Part(
    "compaction",
    # Newest first: each refers to the one before it.
    """
    SELECT key, octet_length(summary) FROM compaction WHERE key >= :low AND key < :high ORDER BY key DESC LIMIT :limit
    """,
    ("DELETE FROM compaction WHERE key = :key",),
)
PARTS: Final = (
    _of_session("session_log"),
    _OPENING_NOTICES,
    _of_session("notice", "data"),
    _of_session("feed", "data"),
    _of_session("message", "content", "thinking", "tool_calls", "provider_reasoning", "images"),
    _numbered("refused_image", "reason"),
    _numbered("refused_reasoning"),
    _COMPACTIONS,
    _of_owner("activity", "execution", "given", "output"),
    _of_owner("control_event", "execution", "data"),
    _of_owner("model_call", "model_run", "request", "response"),
    _numbered("model_run"),
    _of_owner("job_output", "job", "line_index", "data"),
    _of_owner("job_signal", "job"),
    _numbered("job", "command"),
    _numbered("inbox", "content", "images"),
    _numbered("admission", "provenance"),
    _numbered("execution", "context", "output"),
    _numbered("turn"),
    _numbered("generation"),
    _SNAPSHOTS,
)
"""Every table that holds rows of a session but its blobs, children before what they refer to: after each transaction
the database is sound, whether or not another follows."""


def mark(tx: Tx, session_id: bytes, *, at_ms: int) -> SessionRow:
    """Begin to delete a session: nothing finds it any more, no message is accepted, its workspace is free.

    Raises: SessionNotFound; SessionBusy while a turn runs or is about to, or a command runs; nothing has changed then.
    """
    session = sessions.by_id(tx, session_id)
    if session is None:
        raise SessionNotFound("no such session")
    if tx.row(_MARK, {"no": session.no, "at": at_ms}) is None:
        what = "a command" if jobs.any_runs(tx, session.no) else "a turn"
        raise SessionBusy(f"{what} is running in this session; stop it, or delete the session when it has ended")
    return session


def pending(db: Reader | Tx) -> list[SessionNo]:
    """Sessions that were marked and not removed to the end."""
    return [SessionNo(no) for (no,) in db.rows(_PENDING)]


def step(tx: Tx, session_no: SessionNo, *, rows: int = STEP_ROWS, size: int = STEP_BYTES) -> bool:
    """Remove the next `rows` of a marked session, or `size` bytes of them, and at last itself; True when that is done.

    Needs a transaction in which foreign keys are not enforced, and keeps them sound by its order.
    """
    span = {"no": session_no, "low": keys.join(session_no, 0), "high": keys.join(session_no + 1, 0)}
    for part in PARTS:
        for key, row_bytes in tx.rows(part.find, {**span, "limit": rows + 1}):
            if rows == 0 or size <= 0:
                return False
            for statement in part.remove:
                tx.execute(statement, {"no": session_no, "key": key})
            rows, size = rows - 1, size - row_bytes
    if not release(tx, session_no, rows=rows, size=size):
        return False
    tx.execute(_REMOVE_SESSION, {"no": session_no})
    return True


async def remove(database: Database, session_no: SessionNo, *, rows: int = STEP_ROWS) -> None:
    """Remove a marked session that nobody works on any more, `rows` at a time.

    On a full disk this may use the reserve: it gives space back.
    """
    while not await database.write(partial(step, session_no=session_no, rows=rows), terminal=True, unchecked=True):
        pass  # between two steps the writer serves whoever waits


async def give_back(database: Database) -> None:
    """Return free pages to the file system, a few at a time. A disk that does not take that is no failure."""
    try:
        while await database.write(give_back_some):
            pass
    except StorageError as problem:
        log.warning("free space of the database was not given back", error=str(problem))


def give_back_some(tx: Tx) -> bool:
    """One step of `give_back`; whether another may help."""
    before = _free_pages(tx)
    if before == 0:
        return False
    tx.rows(_VACUUM)
    return 0 < _free_pages(tx) < before


async def finish(database: Database) -> None:
    """Go on with every deletion that the last controller left half-done."""
    left = pending(database.reader)
    for session_no in left:
        await remove(database, session_no)
    if left:
        log.info("deletions were finished", sessions=len(left))
        await give_back(database)


def _free_pages(tx: Tx) -> int:
    row = tx.row(_FREE_PAGES)
    assert row is not None
    return int(row[0])
