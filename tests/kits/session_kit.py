"""Sessions with their registry, pump and sockets over a store in memory; the workers are played by functions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import trio
from engine_kit import StoreJournal
from trio.testing import wait_all_tasks_blocked
from world_kit import HOLDER, MODEL, ClockEntropy, Home, frames, make_home, message_send, open_request, open_store

from peen.actors import lone_exceptions
from peen.errors import LinkLost, ValidationFailed, WorkerFailed
from peen.execution.steps import Steps
from peen.feed.fanout import Fanout
from peen.feed.pump import FeedPump
from peen.ids import SessionNo
from peen.session.actor import Household
from peen.session.recovery import recover
from peen.session.registry import Sessions
from peen.session.serve import WorkerCalls
from peen.store import feed
from peen.store.database import Database
from peen.store.direct import MemoryFile
from peen.testing.faults import Faults
from peen.wire.client import MessageSend
from peen.wire.records import EventRecord, MessageRecord, Terminal
from peen.wire.turncalls import CommitSteps, RestoreExecution
from peen.wire.websocket import payload_of
from peen.wire.worker import CancelTurns, ResumeTurn, RunTurn, TurnEnded, TurnsCancelled
from peen.wire.workerstruct import WorkerStruct

TEXT_ONLY = "scripted/text-only"
"""A model that cannot be shown images."""
TERMINAL = {"turn.completed", "turn.failed", "turn.cancelled"}
ACKNOWLEDGED = {"message.completed", "message.failed"}

# --- sockets


@dataclass(eq=False)
class Socket:
    """A client's socket as feed and sessions see it: `heard` is what everybody gets, `private` what it alone gets."""

    session_filter: str | None = None
    raw: list[bytes] = field(default_factory=list)
    heard: list[dict[str, Any]] = field(default_factory=list)
    private: list[dict[str, Any]] = field(default_factory=list)

    def offer(self, ready: Sequence[bytes]) -> None:
        self.raw += ready
        self.heard += [msgspec.json.decode(payload_of(frame)) for frame in ready]

    def reply(self, frame: bytes) -> None:
        self.private.append(msgspec.json.decode(payload_of(frame)))

    def types(self) -> list[str]:
        return [frame["type"] for frame in self.heard]

    def ends(self) -> list[str]:
        """Terminal frames and acknowledgements, in the order in which they were heard."""
        return [name for name in self.types() if name in TERMINAL | ACKNOWLEDGED]


# --- workers


class PlayedLink:
    """A ready worker of one session: `play` carries out a turn; a Stop cancels it, if the worker `obeys_stop`."""

    def __init__(self, house: House, home: Home, play: Play) -> None:
        calls = WorkerCalls(
            house.db, home.writer, entropy=house.entropy, on_end=lambda end: house.sessions.turn_ended(end, home.no)
        )
        self.house, self.home, self.play = house, home, play
        self.journal = StoreJournal(calls)
        self.commands: list[RunTurn] = []
        self.resumed: list[ResumeTurn] = []
        self.go_on = trio.Event()
        self.obeys_stop = self.renews = True
        self._renewing: trio.Nursery
        self._has_forgotten = self._is_dead = False
        self._turns: set[trio.CancelScope] = set()
        self._one_ended = trio.Event()

    async def command(self, request: WorkerStruct) -> WorkerStruct:
        if isinstance(request, CancelTurns):
            if not self.obeys_stop:
                await trio.sleep_forever()
            for scope in self._turns:
                scope.cancel()
            while self._turns:
                await self._one_ended.wait()
            return TurnsCancelled()
        assert isinstance(request, RunTurn | ResumeTurn)
        if isinstance(request, RunTurn):
            self.commands.append(request)
        else:
            self.resumed.append(request)
        with trio.CancelScope() as scope:
            self._turns.add(scope)
            try:
                with lone_exceptions():
                    async with trio.open_nursery() as nursery:
                        self._renewing = nursery
                        await self.play(self, request)
                        nursery.cancel_scope.cancel()
                if self._has_forgotten:
                    await trio.sleep_forever()
            finally:
                self._turns.discard(scope)
                self._one_ended.set()
                self._one_ended = trio.Event()
        if self._is_dead:
            raise LinkLost("it was killed")
        return TurnEnded(state="over")

    async def open(self, request: RunTurn | ResumeTurn) -> str:
        """Open the turn, or take hold of it again, and keep its leases; the id of its execution."""
        if isinstance(request, ResumeTurn):
            execution_id = request.execution_id
            await self.journal.restore(RestoreExecution(execution_id=execution_id, holder=HOLDER))
        else:
            opened = await self.journal.open_turn(open_request(request.turn_id, request.message, images=request.images))
            execution_id = opened.execution_id
        if self.renews:
            self._renewing.start_soon(Steps(self.journal, execution_id=execution_id, holder=HOLDER).keep_leases)
        return execution_id

    def forget(self) -> None:
        """Let the worker forget its turns: it is there, and nobody in it works on them or renews their leases."""
        self._has_forgotten = True
        self._renewing.cancel_scope.cancel()

    def kill(self) -> None:
        """The process is gone: whoever waits for it learns that."""
        self._is_dead = True
        for scope in self._turns:
            scope.cancel()

    async def commit(self, execution_id: str, **parts: Any) -> None:
        await self.journal.commit(CommitSteps(execution_id=execution_id, holder=HOLDER, **parts))


Play = Callable[[PlayedLink, Any], Awaitable[None]]
"""Carries out a RunTurn; those that open it by `PlayedLink.open` a ResumeTurn as well."""


def reply(text: str) -> MessageRecord:
    return MessageRecord(role="assistant", content=text)


async def completes(link: PlayedLink, request: RunTurn | ResumeTurn) -> None:
    execution_id = await link.open(request)
    done = Terminal(state="completed", text="done", finish_reason="stop")
    await link.commit(execution_id, messages=[reply("done")], terminal=done)


async def fails(link: PlayedLink, request: RunTurn | ResumeTurn) -> None:
    execution_id = await link.open(request)
    end = Terminal(state="failed", reason="timeout", error="too slow", classification="timeout")
    await link.commit(execution_id, terminal=end)


async def waits_then_completes(link: PlayedLink, request: RunTurn | ResumeTurn) -> None:
    """Opens the turn, and completes it when the test says so."""
    execution_id = await link.open(request)
    await link.commit(execution_id, events=[EventRecord(type="tool.use", data=msgspec.Raw(b"{}"))])
    await link.go_on.wait()
    await link.commit(execution_id, messages=[reply("done")], terminal=Terminal(state="completed", text="done"))


async def is_lost(link: PlayedLink, request: RunTurn | ResumeTurn) -> None:
    await link.open(request)
    raise LinkLost("it was killed")


async def refuses(link: PlayedLink, request: RunTurn | ResumeTurn) -> None:
    raise ValidationFailed("this worker has no such model")


async def returns_early(link: PlayedLink, request: RunTurn | ResumeTurn) -> None:
    await link.open(request)


async def breaks(link: PlayedLink, request: RunTurn | ResumeTurn) -> None:
    await link.open(request)
    raise RuntimeError("/srv/secret/path.py broke")


async def never_starts(link: PlayedLink, request: RunTurn | ResumeTurn) -> None:
    raise AssertionError("a worker that never starts gets no command")


class PlayedWorkers:
    """Implements `Workers`: a session's worker is there at once, unless the test wants it otherwise."""

    def __init__(self, house: House) -> None:
        self._house = house
        self.play: dict[SessionNo, Play] = {}
        self.links: dict[SessionNo, PlayedLink] = {}
        self.log: list[tuple[float, str, str]] = []
        """(seconds, what was asked, of which session)."""
        self.start_s = 0.0
        self.settle_s = 0.0
        self.stop_s = 0.0
        self.stop_fault: Exception | None = None
        self.is_immortal = False

    async def ensure(self, session_no: SessionNo) -> PlayedLink:
        await trio.sleep(self.start_s)
        home = self._house.home_of(session_no)
        play = self.play.get(session_no, completes)
        self._note("ensure", home.uuid)
        if play is never_starts:
            raise WorkerFailed("no memory")
        link = self.links.setdefault(session_no, PlayedLink(self._house, home, play))
        link.play = play
        return link

    def link_of(self, session_id: str) -> PlayedLink | None:
        return next((link for link in self.links.values() if link.home.uuid == session_id), None)

    async def stop(self, session_id: str, reason: str) -> None:
        self._note(f"stop: {reason}", session_id)
        await trio.sleep(self.stop_s)
        if self.stop_fault is not None:
            raise self.stop_fault

    async def give_up(self, session_id: str, reason: str) -> None:
        self._note(f"give up: {reason}", session_id)
        await trio.lowlevel.checkpoint()
        if self.is_immortal:
            raise WorkerFailed("the session's last worker has not ended")
        link = self.link_of(session_id)
        if link is not None:
            del self.links[link.home.no]
            link.kill()

    async def settled(self, session_id: str) -> None:
        await trio.sleep(self.settle_s)
        self._note("settled", session_id)

    def _note(self, what: str, session_id: str) -> None:
        self.log.append((round(trio.current_time() - self._house.began, 6), what, session_id))


# --- the whole


class House:
    """A controller's sessions, with the first one at hand."""

    def __init__(
        self, db: Database, homes: list[Home], *, turn_limit: int, queue_capacity: int, idle_s: float, life: int = 1
    ) -> None:
        self.db, self.homes = db, homes
        self.began = trio.current_time()
        self.entropy = ClockEntropy(7 * life)
        self.fanout = Fanout()
        self.pump = FeedPump(db.reader, self.fanout)
        self.pump.attach(db)
        self.workers = PlayedWorkers(self)
        household = Household(
            database=db,
            blobs=homes[0].blobs,
            pump=self.pump,
            workers=self.workers,
            entropy=self.entropy,
            check_model=_check_model,
            takes_images=lambda name: name != TEXT_ONLY,
            default_model=MODEL,
            queue_capacity=queue_capacity,
            turn_limit=trio.CapacityLimiter(turn_limit),
            worker_idle_s=idle_s,
        )
        self.sessions = Sessions(household)
        self._frame = 1000 * (life - 1)

    @property
    def home(self) -> Home:
        return self.homes[0]

    def home_of(self, session_no: SessionNo) -> Home:
        return next(home for home in self.homes if home.no == session_no)

    def socket(self, session_filter: str | None = None) -> Socket:
        """A client that listens from now on, to one session or to all."""
        socket = Socket(session_filter)
        self.fanout.add(socket)
        return socket

    def message(
        self, text: str = "go", *, home: Home | None = None, model: str | None = None, images: Sequence[bytes] = ()
    ) -> MessageSend:
        """A new message with an id of its own."""
        self._frame += 1
        return message_send(home or self.home, text, frame=self._frame, model=model, images=images)

    async def send(self, message: MessageSend, socket: Socket) -> None:
        """Submit, and let everything happen that needs no time."""
        await self.sessions.submit(message, socket)
        await wait_all_tasks_blocked()

    def plays(self, play: Play, home: Home | None = None) -> None:
        """How the worker of a session carries out turns from now on."""
        self.workers.play[(home or self.home).no] = play

    def ends(self, home: Home | None = None) -> list[tuple[str, dict[str, Any]]]:
        """Terminal frames that are stored."""
        return [frame for frame in frames(self.db, home or self.home) if frame[0] in TERMINAL]


def _check_model(name: str) -> None:
    if name not in (MODEL, TEXT_ONLY):
        raise ValidationFailed(f"model {name!r} does not exist")


@asynccontextmanager
async def house(
    *,
    sessions: int = 1,
    file: MemoryFile | None = None,
    faults: Faults | None = None,
    turn_limit: int = 64,
    queue_capacity: int = 16,
    idle_s: float = 600.0,
    life: int = 1,
) -> AsyncIterator[House]:
    """A house with its pump and registry running; they are cancelled at the end.

    A file may be opened again as the next `life`: what was under way ends as after a crash.
    """
    async with open_store(file, faults=faults) as db:
        if life > 1:
            await recover(db, ClockEntropy(7 * life + 1))
        homes = [await make_home(db, number) for number in range(1, sessions + 1)]
        own = House(db, homes, turn_limit=turn_limit, queue_capacity=queue_capacity, idle_s=idle_s, life=life)
        async with trio.open_nursery() as nursery:
            await nursery.start(own.pump.run)
            await nursery.start(own.sessions.run)
            yield own
            nursery.cancel_scope.cancel()


def replayed(own: House, home: Home) -> list[feed.FeedRow]:
    """Every stored row of the session's feed."""
    return feed.after(own.db.reader, home.no, 0, limit=10_000)


async def made_before(*, sessions: int = 1) -> MemoryFile:
    """A file that holds the sessions already, so that faults count from what a test does."""
    file = MemoryFile()
    async with open_store(file) as db:
        for number in range(1, sessions + 1):
            await make_home(db, number)
    return file
