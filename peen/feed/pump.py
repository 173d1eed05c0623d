"""Committed rows go out: read once, rendered once, handed as the same bytes to every socket."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import structlog
import trio

from peen.feed.fanout import Fanout
from peen.feed.project import render
from peen.ids import SessionNo
from peen.store import feed, sessions
from peen.store.database import Database, Reader, Touched
from peen.wire.websocket import text_frame

log = structlog.get_logger(__name__)

ROWS_AT_ONCE: Final = 256
BYTES_AT_ONCE: Final = 512 * 1024
"""Far below what a socket may hold back, so that one that reads can empty itself between two batches."""


@dataclass(slots=True)
class _Head:
    """Where one session's feed stands: what is committed, what went out, and who waits for that."""

    no: SessionNo
    session: bytes
    session_id: str
    published: int
    committed: int
    barriers: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)


class FeedPump:
    """Publishes each session's rows in sequence order, right after their commit.

    Owns:  how far each session has been published. Borrows: the store's reader, the fan-out.
    Ends:  when its owner cancels it; `flush` before that publishes what is committed.
    """

    def __init__(self, reader: Reader, fanout: Fanout) -> None:
        self._reader, self._fanout = reader, fanout
        self._heads: dict[SessionNo, _Head] = {}
        self._dirty: dict[SessionNo, None] = {}
        self._wake = trio.Event()
        self._order = itertools.count()

    def attach(self, database: Database) -> None:
        """Hear of the commits of `database`."""
        database.on_commit = self.committed

    def committed(self, touched: Touched) -> None:
        """Rows were committed. Called before the writers of these rows are woken."""
        for no, (first, last) in touched.items():
            head = self._head(no, first - 1)
            if head is not None:
                head.committed = max(head.committed, last)
                self._dirty[no] = None
        self._wake.set()

    def when_published(self, no: SessionNo, sequence: int, action: Callable[[], None]) -> None:
        """Run `action` once frame `sequence` of the session has been handed to every socket: now, if it has been.

        Actions of one session run in the order of their sequences, then of their registration.
        """
        head = self._heads.get(no)
        if head is None or head.published >= sequence:
            action()
            return
        heapq.heappush(head.barriers, (sequence, next(self._order), action))

    def announce(self, session_id: str, payload: bytes) -> None:
        """Hand an unsequenced frame (an acknowledgement) to all who hear the session."""
        self._fanout.publish(session_id, [text_frame(payload)])

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            # No deadline: this is the pump's idle state; its owner cancels it.
            await self._wake.wait()
            self._wake = trio.Event()
            while self._dirty:
                no = next(iter(self._dirty))
                del self._dirty[no]
                if self._publish_some(self._heads[no]):
                    self._dirty[no] = None  # behind the others: one busy session does not starve them
                await trio.lowlevel.checkpoint()

    def flush(self) -> None:
        """Publish everything that is committed, without waiting. For the orderly stop."""
        for no in list(self._dirty):
            while self._publish_some(self._heads[no]):
                pass
        self._dirty.clear()

    def _publish_some(self, head: _Head) -> bool:
        """Publish one batch; whether more is left."""
        if head.published < head.committed:
            if self._fanout.has_listeners(head.session_id):
                rows = feed.after(
                    self._reader,
                    head.no,
                    head.published,
                    limit=ROWS_AT_ONCE,
                    up_to=head.committed,
                    max_bytes=BYTES_AT_ONCE,
                )
                self._check(head, rows)
                frames = [text_frame(render(row, session=head.session, session_id=head.session_id)) for row in rows]
                self._fanout.publish(head.session_id, frames)
                head.published = rows[-1].sequence if rows else head.committed
            else:
                head.published = head.committed
        while head.barriers and head.barriers[0][0] <= head.published:
            heapq.heappop(head.barriers)[2]()
        return head.published < head.committed

    def _check(self, head: _Head, rows: Sequence[feed.FeedRow]) -> None:
        expected = head.published + 1
        for row in rows:
            if row.sequence != expected:
                log.error("gap in a feed", session=head.session_id, expected=expected, found=row.sequence)
            expected = row.sequence + 1

    def _head(self, no: SessionNo, published: int) -> _Head | None:
        """None if the session was deleted since that commit: the writer may be commits ahead of this thread."""
        head = self._heads.get(no)
        if head is None:
            row = sessions.by_no(self._reader, no)
            if row is None:
                return None
            head = _Head(no, row.id, str(UUID(bytes=row.id)), published, published)
            self._heads[no] = head
        return head
