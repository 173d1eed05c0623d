"""The store as the service runs it: one thread owns the write connection and commits what waits, together."""

from __future__ import annotations

import enum
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw
import outcome
import trio

from peen.entropy import Entropy
from peen.errors import StorageFailed, StorageFull
from peen.store.batch import BATCH_LIMIT, Answered, BatchRunner, Request, deliver
from peen.store.checkpoint import Checkpoints
from peen.store.database import Change, Done, Reader, T, Touched
from peen.store.delay import Delayed
from peen.store.failure import FULL_TEXT
from peen.store.reserve import Reserve

CLOSE_S: Final = 30.0  # for what is queued and for the last copy of the log
_JOIN_S: Final = 1.0  # the thread has said that it is at its end: it needs microseconds


class _Order(enum.Enum):
    """What the Trio thread tells the writer between requests."""

    END = enum.auto()
    GIVE_UP_WAITING = enum.auto()


class GroupDatabase:
    """A `Database` that commits in groups.

    Owns:  the writer thread and both connections. The thread takes one request, then whatever else waits, up to the
           limit; runs them as one transaction; wakes all their callers at once. No timer: while one commit syncs,
           the next batch gathers by itself.
    Ends:  in `aclose`. Until then the thread does not die without answering everybody.
    """

    def __init__(
        self,
        path: Path,
        *,
        writer: apsw.Connection,
        reader: apsw.Connection,
        reserve: Reserve,
        entropy: Entropy,
        batch_limit: int = BATCH_LIMIT,
    ) -> None:
        self.path = path
        self.reader = Reader(reader)
        self.on_commit: Callable[[Touched], None] | None = None
        self._writer, self._reading = writer, reader
        self._token = trio.lowlevel.current_trio_token()
        self._ended = trio.Event()
        self._refusal: str | None = None  # why nothing more is accepted; Trio thread only
        # Filled on the Trio thread, emptied by the writer. Unbounded, since every request is a caller that waits, or a
        # worker's call that its link has already limited.
        self._queue: queue.SimpleQueue[Request | _Order] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"writer {path.name}", daemon=True)

        # Below: the writer thread's own.
        self._now_s = entropy.monotonic_s
        self._limit = batch_limit
        self._reserve = reserve
        self._checkpoints = Checkpoints(writer)
        self._runner = BatchRunner(writer, path, relieve=self._relieve)
        self._delayed = Delayed()
        self._batch: list[Request] = []
        self._closing = False
        self._waits_for_space = True
        self._thread.start()

    async def write(self, change: Change[T], *, terminal: bool = False, unchecked: bool = False) -> T:
        """See `Database.write`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        wake = partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())
        self._put(Request(change, wake, terminal, unchecked=unchecked))
        # No deadline: the thread answers every request, and giving up would leave the caller not knowing.
        answer: T = await trio.lowlevel.wait_task_rescheduled(_not_cancellable)
        return answer

    def submit(self, change: Change[T], done: Done[T], *, terminal: bool = False) -> None:
        """See `Database.submit`."""
        self._put(Request(change, done, terminal))

    def give_up_waiting(self) -> None:
        """See `Database.give_up_waiting`."""
        self._queue.put(_Order.GIVE_UP_WAITING)

    async def aclose(self) -> None:
        """Answer everything that was submitted, empty the log, close.

        Raises: StorageFailed if the disk does not let the thread end within 30 s.
        """
        self._refusal = self._refusal or "closed"
        self._queue.put(_Order.END)
        with trio.move_on_after(CLOSE_S, shield=True) as patience:
            await self._ended.wait()
        self._reading.close()
        if patience.cancelled_caught:
            raise StorageFailed(str(self.path), f"the writer did not finish within {CLOSE_S:.0f} s")
        self._thread.join(_JOIN_S)
        # After the reader, so that it is the last one and removes the log. A log that it cannot copy is copied later.
        with suppress(apsw.Error):
            self._writer.close()

    def _put(self, request: Request) -> None:
        if self._refusal is not None:
            raise StorageFailed(str(self.path), self._refusal)
        self._queue.put(request)

    # --- on the Trio thread, called by the writer -----------------------------------------------------------------

    def _deliver(self, answered: Answered) -> None:
        deliver(answered, self.on_commit)

    def _bury(self, left: list[Request], death: BaseException | None) -> None:
        """The thread has ended. Whatever it did not answer is answered here."""
        if death is not None:
            self._refusal = f"the writer failed: {death!r}"
            with_rest = left + [each for each in _drain(self._queue) if isinstance(each, Request)]
            problem = f"{self._refusal}; whether this change was written is not known"
            results: list[tuple[Request, outcome.Outcome[Any]]] = []
            for each in with_rest:
                error = StorageFailed(str(self.path), problem)
                error.__cause__ = death
                results.append((each, outcome.Error(error)))
            self._deliver(Answered(results))
        self._ended.set()

    # --- in the writer thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        death: BaseException | None = None
        try:
            self._serve()
        except BaseException as exc:  # a bug in the writer: whoever waits must hear of it
            death = exc
        self._post(partial(self._bury, self._batch + self._delayed.take_all(), death))

    def _serve(self) -> None:
        self._reserve.restore(self._now_s())
        while not self._closing:
            self._batch = self._take()
            accepted = self._batch
            if self._reserve.spent:
                self._reserve.restore(self._now_s())
                if self._reserve.spent:
                    accepted = self._refuse_new_work()
            if accepted:
                self._commit(accepted)
        self._refuse_delayed()
        self._checkpoints.empty_log()

    def _take(self) -> list[Request]:
        """Wait for a request (or for one that was put off), then take what else is there."""
        batch = self._delayed.take_due(self._now_s())
        while len(batch) < self._limit:
            try:
                request = self._queue.get_nowait() if batch else self._wait_for_one()
            except queue.Empty:
                break
            if request is _Order.END:
                self._closing = True
                break
            if request is _Order.GIVE_UP_WAITING:
                self._waits_for_space = False
                self._refuse_delayed()
            else:
                batch.append(request)
        return batch

    def _wait_for_one(self) -> Request | _Order:
        """What comes next. Raises: queue.Empty when a request that was put off is due."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            self._checkpoints.when_idle()
        due_s = self._delayed.next_at_s()
        return self._queue.get(timeout=None if due_s is None else max(0.0, due_s - self._now_s()))

    def _refuse_new_work(self) -> list[Request]:
        """Only what ends a turn may use the space of the reserve. Returns these requests; the others are answered."""
        text = f"{FULL_TEXT}; new work is refused until {self._reserve.size} bytes are free"
        refused: list[tuple[Request, outcome.Outcome[Any]]] = [
            (each, outcome.Error(StorageFull(str(self.path), text))) for each in self._batch if not each.terminal
        ]
        if refused:
            self._post(partial(self._deliver, Answered(refused)))
        self._batch = [each for each in self._batch if each.terminal]
        return self._batch

    def _commit(self, requests: list[Request]) -> None:
        answered = self._runner.run(requests)
        now_s = self._now_s()
        for each in answered.again:
            self._delayed.add(each, now_s)
        self._batch = []
        self._post(partial(self._deliver, answered))
        if not self._waits_for_space:
            self._refuse_delayed()
        self._checkpoints.after_commit()
        if not answered.again:
            self._reserve.restore(now_s)

    def _refuse_delayed(self) -> None:
        """Answer what waits for space."""
        left = self._delayed.take_all()
        if left:
            full: list[tuple[Request, outcome.Outcome[Any]]] = [
                (each, outcome.Error(StorageFull(str(self.path), FULL_TEXT))) for each in left
            ]
            self._post(partial(self._deliver, Answered(full)))

    def _relieve(self) -> None:
        """A terminal request found the disk full: give it the reserve, and what the log holds twice."""
        self._reserve.spend()
        self._checkpoints.empty_log()

    def _post(self, call: Callable[[], None]) -> None:
        try:
            self._token.run_sync_soon(call)
        except trio.RunFinishedError:
            self._closing = True  # the whole run is gone, and with it everybody who could be told


def _drain(waiting: queue.SimpleQueue[Request | _Order]) -> list[Request | _Order]:
    left = []
    while True:
        try:
            left.append(waiting.get_nowait())
        except queue.Empty:
            return left


def _not_cancellable(_raise_cancel: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
