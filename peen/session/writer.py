"""Who writes for a worker, and what several of its transactions do alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Raw

from peen.ids import SessionNo
from peen.session.spending import Terms
from peen.store import feed
from peen.store.blobs.rows import Blobs
from peen.store.database import Tx
from peen.store.feed import NewEvent
from peen.store.inbox import InboxRow
from peen.wire.records import EventRecord

_encode: Final = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: one worker generation of one session, as the controller knows it, not as the worker says."""

    session_no: SessionNo
    generation_no: int
    blobs: Blobs
    terms: Terms = field(default_factory=Terms)

    def put(self, tx: Tx, value: Raw) -> bytes:
        """What to store for this value: its long parts go into blobs of the session."""
        return self.blobs.put(tx, self.session_no, bytes(value))


@dataclass(frozen=True, slots=True)
class NextTurn:
    """A turn that begins because messages still waited when the last one completed: the first of them opens it."""

    turn_id: str
    message: InboxRow


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """A terminal commit: which turn, how, and the feed sequence of its terminal frame."""

    turn_id: str
    state: str
    reason: str
    feed_sequence: int
    following: NextTurn | None = None


def announce_delivery(tx: Tx, row: InboxRow, *, at_ms: int, generation_no: int) -> None:
    frame = NewEvent("userMessage.delivered", _encode({"message": row.content}))
    feed.append(tx, row.session_no, [frame], at_ms=at_ms, inbox_no=row.no, generation_no=generation_no)


def new_events(events: Sequence[EventRecord]) -> list[NewEvent]:
    return [NewEvent(record.type, bytes(record.data)) for record in events]
