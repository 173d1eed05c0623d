"""The transcript: rows in the order the model receives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from peen.ids import SessionNo
from peen.store import feed, keys, sessions
from peen.store.database import Reader, Tx, Value
from peen.store.feed import NewEvent
from peen.store.images import decode_refs, encode_refs
from peen.store.sessions import Taken
from peen.store.spending import NOTHING_SPENT, Spent
from peen.wire.records import NOTHING, MessageRecord, ToolCallRecord
from peen.wire.turncalls import HistoryMessage


class MessageRow(NamedTuple):
    sequence: int
    turn_id: bytes
    workspace: str
    role: str
    content: str
    model: str | None
    thinking: str | None
    tool_calls: bytes | None
    tool_call_id: str | None
    is_error: int
    incomplete: int
    injected: int
    injected_kind: str | None
    created_at_ms: int
    images: bytes | None
    compaction: int | None
    """Number of the summary that covers it."""


_INSERT: Final = """
INSERT INTO message (key, turn_no, role, content, model, thinking, tool_calls, tool_call_id, is_error, injected,
                     injected_kind, provider_reasoning, images, created_at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_PAGE: Final = """
SELECT m.key & 0xFFFFFFFF, t.id, t.workspace, m.role, m.content, m.model, m.thinking, m.tool_calls, m.tool_call_id,
       m.is_error, m.incomplete, m.injected, m.injected_kind, m.created_at_ms, m.images, m.compaction_no
  FROM message m JOIN turn t ON t.no = m.turn_no
 WHERE m.key > :low AND m.key <= :high ORDER BY m.key {order} LIMIT :limit OFFSET :offset
"""
_SELECT_HISTORY: Final = """
SELECT key & 0xFFFFFFFF, turn_no, role, content, model, thinking, tool_calls, tool_call_id, is_error, injected,
       injected_kind, provider_reasoning, images
  FROM message
"""
_HISTORY: Final = _SELECT_HISTORY + " WHERE key > ? AND key <= ? ORDER BY key"
_OF_TURN: Final = _SELECT_HISTORY + " WHERE turn_no = ? ORDER BY key"
_MARK_INCOMPLETE: Final = "UPDATE message SET incomplete = 1 WHERE turn_no = ? AND role IN ('assistant', 'tool')"
_OPENING: Final = "SELECT content FROM message WHERE turn_no = ? AND role = 'user' ORDER BY key LIMIT 1"
_CALLS: Final = "SELECT tool_calls FROM message WHERE turn_no = ? AND tool_calls IS NOT NULL ORDER BY key"
_RESULTS: Final = "SELECT tool_call_id, is_error FROM message WHERE turn_no = ? AND role = 'tool'"
_TOOL_CALLS: Final = msgspec.json.Decoder(list[ToolCallRecord])
_WITH_IMAGES: Final = _SELECT_HISTORY + " WHERE images IS NOT NULL AND key > ? AND key <= ? ORDER BY key"


def append(tx: Tx, session_no: SessionNo, messages: Sequence[MessageRecord], *, turn_no: int, at_ms: int) -> int:
    """Store messages; returns the last message sequence of the session (0 if `messages` is empty)."""
    if not messages:
        return 0
    return append_with_events(tx, session_no, messages, (), turn_no=turn_no, at_ms=at_ms).message


def append_with_events(
    tx: Tx,
    session_no: SessionNo,
    messages: Sequence[MessageRecord],
    events: Sequence[NewEvent],
    *,
    turn_no: int,
    generation_no: int | None = None,
    spent: Spent = NOTHING_SPENT,
    at_ms: int,
) -> Taken:
    """Store messages, frames, and the log rows of both; add `spent` to what the session has used."""
    replies = [number for number, message in enumerate(messages, 1) if message.role == "assistant"]
    shown = feed.log_refs(events)
    taken = sessions.take_sequences(
        tx,
        session_no,
        messages=len(messages),
        frames=len(events),
        logs=len(replies) + len(shown),
        spent=spent,
        at_ms=at_ms,
    )
    before, frames_before = taken.message - len(messages), taken.feed - len(events)
    if messages:
        key = keys.join(session_no, before + 1)
        tx.execute_each(
            _INSERT, [_row(key + offset, turn_no, message, at_ms) for offset, message in enumerate(messages)]
        )
    if events:
        feed.insert(tx, session_no, events, last=taken.feed, at_ms=at_ms, turn_no=turn_no, generation_no=generation_no)
    refs = [("agent.message", before + number) for number in replies]
    refs += [(name, frames_before + number) for name, number in shown]
    feed.insert_log(tx, session_no, refs, last=taken.log, at_ms=at_ms)
    return taken


def _row(key: int, turn_no: int, message: MessageRecord, at_ms: int) -> tuple[Value, ...]:
    calls = None if message.tool_calls is None else msgspec.json.encode(message.tool_calls)
    reasoning = None if message.provider_reasoning == NOTHING else bytes(message.provider_reasoning)
    images = encode_refs(message.images)
    return (
        key, turn_no, message.role, message.content, message.model, message.thinking, calls, message.tool_call_id,
        int(message.is_error), int(message.injected), message.injected_kind, reasoning, images, at_ms,
    )  # fmt: skip


def page(
    db: Reader, session_no: SessionNo, *, limit: int, offset: int, newest_first: bool, max_bytes: int
) -> tuple[list[MessageRow], bool]:
    """At most `limit` messages, and whether more follow; fewer if their texts pass `max_bytes`, but at least one."""
    sql = _PAGE.format(order="DESC" if newest_first else "ASC")
    bounds = {"low": keys.join(session_no, 0), "high": keys.join(session_no, keys.MAX_SEQUENCE)}
    found: list[MessageRow] = []
    size, has_more = 0, False
    reading = db.execute(sql, {**bounds, "limit": limit + 1, "offset": offset})
    for row in map(MessageRow._make, reading):
        size += len(row.content.encode()) + len((row.thinking or "").encode()) + len(row.tool_calls or b"")
        if len(found) == limit or (found and size > max_bytes):
            has_more = True
            break
        found.append(row)
    reading.close()
    return found, has_more


def history(
    db: Reader | Tx, session_no: SessionNo, *, after: int, up_to: int, max_bytes: int
) -> tuple[list[HistoryMessage], bool]:
    """Messages with after < sequence <= up_to, and whether more follow: a page ends before it passes `max_bytes`.

    The first message is always included, whatever its size.
    """
    found: list[HistoryMessage] = []
    size = 0
    cursor = db.execute(_HISTORY, (keys.join(session_no, after), keys.join(session_no, up_to)))
    for row in cursor:
        message = _history_message(row)
        record = message.message
        # Six bytes is the longest JSON escape of one character.
        size += 512 + 6 * (len(record.content) + len(record.thinking or "")) + len(row[6] or b"")
        size += len(record.provider_reasoning) + len(row[12] or b"")
        if found and size > max_bytes:
            cursor.close()
            return found, True
        found.append(message)
    return found, False


def of_turn(db: Reader | Tx, turn_no: int) -> list[HistoryMessage]:
    """Every message of one turn, in order."""
    return [_history_message(row) for row in db.rows(_OF_TURN, (turn_no,))]


def _history_message(row: tuple[Any, ...]) -> HistoryMessage:
    sequence, turn_no, role, content, model, thinking, calls, call_id, is_error, injected, kind, reasoning, images = row
    record = MessageRecord(
        role=role, content=content, model=model, thinking=thinking,
        tool_calls=None if calls is None else _TOOL_CALLS.decode(calls),
        tool_call_id=call_id, is_error=bool(is_error), injected=bool(injected), injected_kind=kind,
        provider_reasoning=NOTHING if reasoning is None else Raw(reasoning), images=decode_refs(images),
    )  # fmt: skip
    return HistoryMessage(sequence=sequence, turn=turn_no, message=record)


def with_images(db: Reader | Tx, session_no: SessionNo, *, after: int) -> list[HistoryMessage]:
    """The stored messages behind `after` that have images, in order."""
    span = (keys.join(session_no, after), keys.join(session_no, keys.MAX_SEQUENCE))
    return [_history_message(row) for row in db.rows(_WITH_IMAGES, span)]


def first_of_turn(db: Reader | Tx, turn_no: int) -> int:
    """Sequence of the turn's first message; 0 if it has none."""
    row = db.row("SELECT min(key) & 0xFFFFFFFF FROM message WHERE turn_no = ?", (turn_no,))
    return 0 if row is None or row[0] is None else int(row[0])


def mark_complete(tx: Tx, turn_no: int) -> None:
    """The turn goes on: its replies and results are no longer those of a turn that did not finish."""
    tx.execute("UPDATE message SET incomplete = 0 WHERE turn_no = ?", (turn_no,))


def mark_incomplete(tx: Tx, turn_no: int) -> None:
    """The turn did not finish: its replies and results are marked, its user messages are not."""
    tx.execute(_MARK_INCOMPLETE, (turn_no,))


def opening_text(db: Reader | Tx, turn_no: int) -> str:
    """The message that the turn opened with."""
    row = db.row(_OPENING, (turn_no,))
    return "" if row is None else str(row[0])


def calls_of(db: Reader | Tx, turn_no: int) -> list[tuple[ToolCallRecord, str]]:
    """Every tool call of the turn in order, with its outcome: `succeeded`, `failed` or `noResult`."""
    results = {call_id: "failed" if is_error else "succeeded" for call_id, is_error in db.rows(_RESULTS, (turn_no,))}
    calls = (call for (encoded,) in db.rows(_CALLS, (turn_no,)) for call in _TOOL_CALLS.decode(encoded))
    return [(call, results.get(call.id, "noResult")) for call in calls]
