"""The store without threads, for simulations: the same batches, run on the Trio thread."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import apsw
import outcome
import trio

from peen.errors import StorageFailed, StorageFull
from peen.store.batch import BATCH_LIMIT, BatchRunner, Faults, Request, deliver
from peen.store.database import Change, Done, Reader, T, Touched
from peen.store.delay import Delayed
from peen.store.failure import FULL_TEXT

_MOST_YIELDS: Final = 2  # scheduler turns that a write may wait for others to join its batch


class MemoryFile:
    """A database file that lives in memory and outlasts the store that used it, also one that crashed."""

    def __init__(self) -> None:
        self.image = b""


class DirectDatabase:
    """A `Database` for virtual time. One seed gives one grouping of requests into commits.

    Owns:  its connections, and nothing that waits in another thread; `pump` runs in a nursery of the opener.
    Ends:  in `close`, or when a fault raises out of a commit (a simulated crash): then it is dead, and whoever
           waits or comes later gets that same exception, as there is nobody left to answer.
    """

    def __init__(
        self, path: Path, *, writer: apsw.Connection, reader: apsw.Connection | None, seed: int, faults: Faults | None
    ) -> None:
        self.path = path
        # In memory there is one connection. Between batches it refuses to write, like a reader.
        self.reader = Reader(reader or writer)
        self.on_commit: Callable[[Touched], None] | None = None
        self._writer, self._reading = writer, reader
        self._chance = random.Random(seed)
        self._runner = BatchRunner(writer, path, relieve=lambda: None, faults=faults)
        self._pending: list[Request] = []
        self._delayed = Delayed()
        self._wanted = trio.Event()
        self._dead: BaseException | None = None
        self._closed = False
        self._waits_for_space = True
        self._guard(True)

    async def write(self, change: Change[T], *, terminal: bool = False, unchecked: bool = False) -> T:
        """See `Database.write`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        answer = _Answer()
        self._queue(Request(change, answer.arrive, terminal, unchecked=unchecked))
        for _ in range(self._chance.randint(0, _MOST_YIELDS)):
            await trio.lowlevel.cancel_shielded_checkpoint()
        if answer.outcome is None:
            self._run_pending()
        result: T = await answer.wait()
        return result

    def submit(self, change: Change[T], done: Done[T], *, terminal: bool = False) -> None:
        """See `Database.submit`."""
        self._queue(Request(change, done, terminal))
        self._wanted.set()

    def give_up_waiting(self) -> None:
        """See `Database.give_up_waiting`."""
        self._waits_for_space = False
        self._refuse_delayed()

    async def pump(self) -> None:
        """Run what was submitted without anybody waiting, and what a full disk has put off. Never returns.

        When it is cancelled nobody is left to try again: what was put off, then or later, is answered as refused.
        """
        try:
            while True:
                due_s = self._delayed.next_at_s()
                # No deadline of its own: it ends when the opener cancels it.
                with trio.move_on_at(float("inf") if due_s is None else due_s):
                    await self._wanted.wait()
                self._wanted = trio.Event()
                for _ in range(self._chance.randint(0, _MOST_YIELDS)):
                    await trio.lowlevel.checkpoint()
                while self._pending or self._is_due():
                    self._run_pending()
        finally:
            self.give_up_waiting()

    def close(self) -> bytes:
        """Answer everything that was submitted, close, and return the image of a database in memory."""
        self._closed = True
        if self._dead is None:
            while self._pending:
                self._run_pending()
            self._refuse_delayed()
        else:
            # As after a kill: what was committed is there, partly in the log, and nobody tidies up.
            self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            if not self._writer.get_autocommit():
                with suppress(apsw.Error):
                    self._writer.execute("ROLLBACK")
        image = self._writer.serialize("main") if self._reading is None else b""
        if self._reading is not None:
            self._reading.close()
        self._writer.close()
        return image

    def _queue(self, request: Request) -> None:
        if self._dead is not None:
            raise copy.copy(self._dead)
        if self._closed:
            raise StorageFailed(str(self.path), "closed")
        self._pending.append(request)

    def _is_due(self) -> bool:
        due_s = self._delayed.next_at_s()
        return due_s is not None and due_s <= trio.current_time()

    def _run_pending(self) -> None:
        now_s = trio.current_time()
        batch = self._delayed.take_due(now_s)
        room = max(0, BATCH_LIMIT - len(batch))
        batch += self._pending[:room]
        del self._pending[:room]
        self._guard(False)
        try:
            answered = self._runner.run(batch)
        except BaseException as crash:
            self._die(crash, batch)
            raise
        self._guard(True)
        for each in answered.again:
            self._delayed.add(each, now_s)
        if self._pending or answered.again:
            self._wanted.set()
        deliver(answered, self.on_commit)
        if not self._waits_for_space:
            self._refuse_delayed()

    def _refuse_delayed(self) -> None:
        for each in self._delayed.take_all():
            each.done(outcome.Error(StorageFull(str(self.path), FULL_TEXT)))

    def _die(self, crash: BaseException, batch: list[Request]) -> None:
        self._dead = crash
        left = batch + self._delayed.take_all() + self._pending
        self._pending = []
        for each in left:
            each.done(outcome.Error(copy.copy(crash)))

    def _guard(self, on: bool) -> None:
        if self._reading is None:
            self._writer.execute(f"PRAGMA query_only = {'ON' if on else 'OFF'}")


class _Answer:
    """The outcome of one write: it may come before its task waits for it, or after."""

    def __init__(self) -> None:
        self.outcome: outcome.Outcome[Any] | None = None
        self._task: trio.lowlevel.Task | None = None

    def arrive(self, result: outcome.Outcome[Any]) -> None:
        self.outcome = result
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)

    async def wait(self) -> Any:
        if self.outcome is None:
            self._task = trio.lowlevel.current_task()
            # No deadline: like the store with a thread, a write that was queued is always answered.
            await trio.lowlevel.wait_task_rescheduled(_not_cancellable)
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
        assert self.outcome is not None
        return self.outcome.unwrap()


def _not_cancellable(_raise_cancel: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
