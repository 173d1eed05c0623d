"""Summaries of a session's oldest messages: a chain, whose last one is in force."""

from __future__ import annotations

from typing import Final, NamedTuple

from peen.ids import SessionNo
from peen.store import keys
from peen.store.database import Reader, Tx


class CompactionRow(NamedTuple):
    """`sequence` numbers the summaries of a session from 1; `supersedes` is the number of the one before, or None."""

    sequence: int
    supersedes: int | None
    from_sequence: int
    to_sequence: int
    message_count: int
    input_tokens: int
    summary_tokens: int
    model: str
    prompt_sha256: bytes
    summary: str
    created_at_ms: int


class Covered(NamedTuple):
    """What stands in a range of messages: how many there are, how many no summary covers, how many of running turns."""

    messages: int
    free: int
    running: int


_SELECT: Final = """
SELECT c.key & 0xFFFFFFFF, c.supersedes & 0xFFFFFFFF, c.from_sequence, c.to_sequence, c.message_count, c.input_tokens,
       c.summary_tokens, c.model, p.sha256, c.summary, c.created_at_ms
  FROM compaction c JOIN snapshot p ON p.no = c.prompt_no
"""
_ANY_TIME: Final = (1 << 63) - 1
_HEAD: Final = _SELECT + " WHERE c.key > ? AND c.key < ? ORDER BY c.key DESC LIMIT 1"
_UP_TO: Final = (
    _SELECT
    + """
 WHERE c.key > ? AND c.key < ? AND c.to_sequence <= ? AND c.created_at_ms <= ? ORDER BY c.key DESC LIMIT 1
"""
)
_PAGE: Final = _SELECT + " WHERE c.key > ? AND c.key < ? ORDER BY c.key DESC LIMIT ? OFFSET ?"
_ONE: Final = _SELECT + " WHERE c.key = ?"
_NUMBERS: Final = "SELECT key & 0xFFFFFFFF FROM compaction WHERE key > ? AND key < ? ORDER BY key DESC"
_INSERT: Final = """
INSERT INTO compaction (key, supersedes, from_sequence, to_sequence, message_count, input_tokens, summary_tokens, model,
                        prompt_no, summary, created_at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_COVERED: Final = """
SELECT count(*), count(*) FILTER (WHERE m.compaction_no IS NULL), count(*) FILTER (WHERE t.state = 'running')
  FROM message m JOIN turn t ON t.no = m.turn_no WHERE m.key >= ? AND m.key <= ?
"""
_BOUNDARY: Final = "SELECT count(DISTINCT turn_no) FROM message WHERE key = ? OR key = ?"
_LINK: Final = "UPDATE message SET compaction_no = ? WHERE key >= ? AND key <= ? AND compaction_no IS NULL"


def head(db: Reader | Tx, session_no: SessionNo) -> CompactionRow | None:
    """The summary in force."""
    return _row(db.row(_HEAD, _span(session_no)))


def up_to(
    db: Reader | Tx, session_no: SessionNo, sequence: int, *, made_by_ms: int = _ANY_TIME
) -> CompactionRow | None:
    """The latest summary that covers nothing after that message, of those that were there at `made_by_ms`."""
    return _row(db.row(_UP_TO, (*_span(session_no), sequence, made_by_ms)))


def page(db: Reader, session_no: SessionNo, *, limit: int, offset: int) -> list[CompactionRow]:
    """Newest first."""
    return [CompactionRow._make(row) for row in db.rows(_PAGE, (*_span(session_no), limit, offset))]


def one(db: Reader | Tx, session_no: SessionNo, sequence: int) -> CompactionRow | None:
    return _row(db.row(_ONE, (keys.join(session_no, sequence),)))


def numbers(db: Reader, session_no: SessionNo) -> list[int]:
    """The numbers of all summaries of the session, newest first."""
    return [number for (number,) in db.rows(_NUMBERS, _span(session_no))]


def covered(tx: Tx, session_no: SessionNo, first: int, last: int) -> Covered:
    """What stands in the messages `first` .. `last`."""
    row = tx.row(_COVERED, (keys.join(session_no, first), keys.join(session_no, last)))
    assert row is not None
    return Covered(*row)


def is_boundary(tx: Tx, session_no: SessionNo, sequence: int) -> bool:
    """Whether another turn goes on behind that message."""
    row = tx.row(_BOUNDARY, (keys.join(session_no, sequence), keys.join(session_no, sequence + 1)))
    return row is not None and row[0] == 2


def add(tx: Tx, session_no: SessionNo, row: CompactionRow, *, prompt_no: int) -> None:
    """Store a summary, and link every message that none covered before."""
    first = keys.join(session_no, row.from_sequence)
    last = keys.join(session_no, row.to_sequence)
    supersedes = None if row.supersedes is None else keys.join(session_no, row.supersedes)
    tx.execute(
        _INSERT,
        (
            keys.join(session_no, row.sequence), supersedes, row.from_sequence, row.to_sequence, row.message_count,
            row.input_tokens, row.summary_tokens, row.model, prompt_no, row.summary, row.created_at_ms,
        ),
    )  # fmt: skip
    tx.execute(_LINK, (row.sequence, first, last))


def _span(session_no: SessionNo) -> tuple[int, int]:
    return keys.join(session_no, 0), keys.join(session_no + 1, 0)


def _row(row: tuple[object, ...] | None) -> CompactionRow | None:
    return None if row is None else CompactionRow._make(row)
