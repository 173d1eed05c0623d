"""The session feed: every frame that clients see, one gap-free counter a session; and the log that refers to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from peen.ids import SessionNo
from peen.store import keys, sessions
from peen.store.database import Reader, Tx


class NewEvent(NamedTuple):
    """One frame to be stored. `data` is the exact JSON that clients get."""

    type: str
    data: bytes


class FeedRow(NamedTuple):
    sequence: int
    type: str
    data: bytes
    request_id: bytes | None
    created_at_ms: int


class EventRow(NamedTuple):
    """A protocol event of a root turn, as a record beside its frame."""

    sequence: int
    type: str
    data: bytes
    turn_id: bytes
    request_id: bytes
    generation_id: bytes | None
    created_at_ms: int


MAX_READ_BYTES: Final = 4 * 1024 * 1024

_INSERT: Final = """
INSERT INTO feed (key, type, data, turn_no, inbox_no, generation_no, created_at_ms) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_AFTER: Final = """
SELECT f.key & 0xFFFFFFFF, f.type, f.data, coalesce(i.request_id, t.request_id), f.created_at_ms
  FROM feed f LEFT JOIN inbox i ON i.no = f.inbox_no LEFT JOIN turn t ON t.no = f.turn_no
 WHERE f.key > ? AND f.key <= ? ORDER BY f.key LIMIT ?
"""
# Pieces of content, frames of children and notices are none; what is skipped is not even looked at.
_EVENTS: Final = """
SELECT f.key & 0xFFFFFFFF, f.type, f.data, coalesce(t.id, i.turn_id), coalesce(i.request_id, t.request_id), g.id,
       f.created_at_ms
  FROM (SELECT key FROM feed
         WHERE key > :low AND key <= :high AND type NOT GLOB 'content_block_*' AND type NOT GLOB 'agent.run.*'
           AND type <> 'notice.created' AND coalesce(turn_no, inbox_no) IS NOT NULL
         ORDER BY key {order} LIMIT :limit OFFSET :offset) wanted
       JOIN feed f ON f.key = wanted.key
       LEFT JOIN inbox i ON i.no = f.inbox_no LEFT JOIN turn t ON t.no = f.turn_no
       LEFT JOIN generation g ON g.no = f.generation_no
 ORDER BY f.key {order}
"""
_LOG: Final = "INSERT INTO session_log (key, type, ref, created_at_ms) VALUES (?, ?, ?, ?)"
_BLOCKS: Final = """
SELECT type, json_extract(data, '$.index') FROM feed
 WHERE turn_no = ? AND type IN ('content_block_start', 'content_block_stop') ORDER BY key
"""

_LAST_BLOCK: Final = """
SELECT max(json_extract(data, '$.index')) FROM feed WHERE turn_no = ? AND type = 'content_block_start'
"""

LOG_TYPES: Final = {
    "userMessage.created": "user.message",
    "turn.started": "session.status_running",
    "turn.resumed": "session.status_running",
    "tool.use": "agent.tool_use",
    "tool.result": "agent.tool_result",
    "turn.completed": "session.status_idle",
    "turn.failed": "session.error",
    "turn.cancelled": "session.status_idle",
}
"""Which frame types the session log refers to, and what it calls them."""


def append(
    tx: Tx,
    session_no: SessionNo,
    events: Sequence[NewEvent],
    *,
    at_ms: int,
    turn_no: int | None = None,
    inbox_no: int | None = None,
    generation_no: int | None = None,
) -> int:
    """Store frames and their log rows; returns the last feed sequence (0 if `events` is empty)."""
    if not events:
        return 0
    refs = log_refs(events)
    taken = sessions.take_sequences(tx, session_no, frames=len(events), logs=len(refs), at_ms=at_ms)
    insert(
        tx, session_no, events, last=taken.feed, at_ms=at_ms, turn_no=turn_no, inbox_no=inbox_no,
        generation_no=generation_no,
    )  # fmt: skip
    before = taken.feed - len(events)
    insert_log(tx, session_no, [(name, before + offset) for name, offset in refs], last=taken.log, at_ms=at_ms)
    return taken.feed


def insert(
    tx: Tx,
    session_no: SessionNo,
    events: Sequence[NewEvent],
    *,
    last: int,
    at_ms: int,
    turn_no: int | None = None,
    inbox_no: int | None = None,
    generation_no: int | None = None,
) -> None:
    """Store frames under sequences that were taken, the last of which is `last`."""
    first = last - len(events) + 1
    key = keys.join(session_no, first)  # neighbours in a session have neighbouring keys
    tx.execute_each(
        _INSERT,
        [
            (key + offset, event.type, event.data, turn_no, inbox_no, generation_no, at_ms)
            for offset, event in enumerate(events)
        ],
    )
    tx.touch(session_no, first, last)


def log_refs(events: Sequence[NewEvent]) -> list[tuple[str, int]]:
    """The log rows of these frames: type, and number of the frame among them, from 1."""
    refs: list[tuple[str, int]] = []
    for number, event in enumerate(events, 1):
        if (log_type := LOG_TYPES.get(event.type)) is not None:
            refs.append((log_type, number))
            if event.type == "turn.failed":
                refs.append(("session.status_idle", number))
    return refs


def insert_log(tx: Tx, session_no: SessionNo, refs: Sequence[tuple[str, int]], *, last: int, at_ms: int) -> None:
    """Store log rows `(type, sequence of the row it refers to)` under sequences that were taken, up to `last`."""
    if refs:
        key = keys.join(session_no, last - len(refs) + 1)
        tx.execute_each(_LOG, [(key + offset, name, ref, at_ms) for offset, (name, ref) in enumerate(refs)])


def after(
    db: Reader,
    session_no: SessionNo,
    cursor: int,
    *,
    limit: int,
    up_to: int = keys.MAX_SEQUENCE,
    max_bytes: int = MAX_READ_BYTES,
) -> list[FeedRow]:
    """Frames with cursor < sequence <= up_to, oldest first; fewer than `limit` if their data passes `max_bytes`.

    The first frame is always included, whatever its size.
    """
    found: list[FeedRow] = []
    size = 0
    reading = db.execute(_AFTER, (keys.join(session_no, cursor), keys.join(session_no, up_to), limit))
    for row in reading:
        size += len(row[2])
        if found and size > max_bytes:
            break
        found.append(FeedRow(*row))
    reading.close()
    return found


def events(db: Reader, session_no: SessionNo, *, limit: int, offset: int, newest_first: bool) -> Iterator[EventRow]:
    """Protocol events of the session's root turns. May look at every frame of the session to skip `offset`."""
    sql = _EVENTS.format(order="DESC" if newest_first else "ASC")
    span = {"low": keys.join(session_no, 0), "high": keys.join(session_no, keys.MAX_SEQUENCE)}
    return map(EventRow._make, db.execute(sql, {**span, "limit": limit, "offset": offset}))


def next_block(db: Reader | Tx, turn_no: int) -> int:
    """The first content block index that the turn has not used."""
    row = db.row(_LAST_BLOCK, (turn_no,))
    return 0 if row is None or row[0] is None else int(row[0]) + 1


def open_blocks(db: Reader | Tx, turn_no: int) -> list[int]:
    """Indexes of content blocks of the turn that were started and never stopped, ascending."""
    still_open: set[int] = set()
    for event_type, index in db.rows(_BLOCKS, (turn_no,)):
        (still_open.add if event_type == "content_block_start" else still_open.discard)(index)
    return sorted(still_open)
