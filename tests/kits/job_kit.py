"""A tool call under way in a session store in memory, and a worker's calls to it without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
import trio
from msgspec import Raw
from world_kit import AT_MS, HOLDER, ClockEntropy, Home, frames, make_home, open_store, open_turn, uuid

from peen.errors import LinkLost, PeenError
from peen.session import writes
from peen.session.outputroom import OutputRoom
from peen.session.serve import WorkerCalls
from peen.store import jobs
from peen.store.database import Database
from peen.store.jobs import JobRow
from peen.testing.faults import Faults
from peen.wire.records import Claim
from peen.wire.turncalls import CommitSteps
from peen.wire.worker import CALLS, WireError, encode
from peen.wire.workerstruct import CallingTool, WorkerStruct
from peen.worker.peer import error_of

R = TypeVar("R", bound=WorkerStruct)
CALL_ID: Final = "call_1"
_METHOD_OF: Final = {pair[0]: method for method, pair in CALLS.items()}


class Told:
    """What the store says to one call."""

    def __init__(self, reply: type[Any]) -> None:
        self.done = trio.Event()
        self._reply = reply
        self._answer: bytes | WireError = b""

    def settle(self, answer: bytes | WireError) -> None:
        self._answer = answer
        self.done.set()

    def result(self) -> Any:
        if isinstance(self._answer, WireError):
            raise error_of(self._answer)
        return msgspec.json.decode(self._answer, type=self._reply)


class StoreLink:
    """A worker's end of its link, on the handler that serves a real worker: the same bytes, the same order.

    While it is held, nothing is carried out; `lost` says that the controller is gone.
    """

    def __init__(self, calls: WorkerCalls) -> None:
        self._calls = calls
        self.asked: list[WorkerStruct] = []
        self.lost = False
        self._held: list[tuple[WorkerStruct, Told]] | None = None
        self._held_from: type[WorkerStruct] | None = None

    def call_soon(self, request: WorkerStruct, reply: type[R]) -> Told:
        if self.lost:
            raise LinkLost("the controller is gone")
        told = Told(reply)
        self.asked.append(request)
        if self._held_from is type(request):
            self.hold()
        if self._held is None:
            self._carry_out(request, told)
        else:
            self._held.append((request, told))
        return told

    async def call(self, request: WorkerStruct, reply: type[R]) -> R:
        told = self.call_soon(request, reply)
        with trio.CancelScope(shield=True):
            await told.done.wait()
        answer: R = told.result()
        return answer

    def serve(self, calls: WorkerCalls) -> None:
        """From now on by this handler."""
        self._calls = calls

    def hold(self) -> None:
        self._held, self._held_from = [], None

    def hold_from(self, kind: type[WorkerStruct]) -> None:
        """Hold the next request of this kind, and whatever comes behind it."""
        self._held_from = kind

    def go_on(self) -> None:
        held, self._held = self._held or [], None
        for request, told in held:
            self._carry_out(request, told)

    def of(self, kind: type[R]) -> list[R]:
        """What was asked of one kind."""
        return [request for request in self.asked if isinstance(request, kind)]

    def _carry_out(self, request: WorkerStruct, told: Told) -> None:
        self._calls.handle(_METHOD_OF[type(request)], Raw(encode(request)), told.settle)


@dataclass
class Desk:
    """A session whose agent is in the middle of a runCommand."""

    db: Database
    home: Home
    link: StoreLink
    caller: CallingTool
    turn_no: int
    entropy: ClockEntropy = field(default_factory=lambda: ClockEntropy(5))

    def job(self, job_id: str) -> JobRow:
        row = jobs.by_id(self.db.reader, self.home.no, UUID(job_id).bytes)
        assert row is not None
        return row

    def jobs(self) -> list[JobRow]:
        """Newest first."""
        return jobs.page(self.db.reader, self.home.no, limit=1000, offset=0)

    def notices(self) -> list[dict[str, Any]]:
        """Every `job.*` notice that was shown."""
        shown = [data for kind, data in frames(self.db, self.home) if kind == "notice.created"]
        return [notice for notice in shown if notice["type"].startswith("job.")]

    def printed(self, job_id: str, stream: int) -> bytes:
        """Everything that is stored of one stream."""
        rows = jobs.output(self.db.reader, self.job(job_id).no, after=0, streams=1 << stream)
        return b"".join(row.piece.data for row in rows)

    def limit(self, room: OutputRoom) -> None:
        """From now on this room counts for output."""
        calls = WorkerCalls(self.db, self.home.writer, entropy=self.entropy, on_end=lambda _end: None, room=room)
        self.link.serve(calls)

    async def ask(self, request: WorkerStruct) -> Any:
        """One call of the worker. Raises: what it is refused with."""
        return await self.link.call(request, CALLS[_METHOD_OF[type(request)]][1])

    async def refused(self, request: WorkerStruct) -> str:
        """The code that it is refused with."""
        try:
            await self.ask(request)
        except PeenError as error:
            return error.code
        raise AssertionError("it was not refused")


@asynccontextmanager
async def desk(*, faults: Faults | None = None) -> AsyncIterator[Desk]:
    async with open_store(faults=faults) as db:
        yield await desk_in(db)


async def desk_in(db: Database) -> Desk:
    """A turn in its first round, whose one call is under way."""
    home = await make_home(db)
    opened = await open_turn(db, home)
    claim = Claim(step="r0.t0.handler", kind="effect", given=Raw(b"{}"), call_id=CALL_ID)
    request = CommitSteps(execution_id=opened.execution_id, holder=HOLDER, claims=[claim])
    commit = partial(
        writes.commit_steps, writer=home.writer, request=request, payload=b"", next_turn_id=uuid(9).bytes, at_ms=AT_MS
    )
    await db.write(commit)
    entropy = ClockEntropy(3)
    link = StoreLink(WorkerCalls(db, home.writer, entropy=entropy, on_end=lambda _end: None))
    caller = CallingTool(execution_id=opened.execution_id, holder=HOLDER, call_id=CALL_ID)
    return Desk(db, home, link, caller, opened.turn)
