"""A worker's engine in this process: real turns and tools-by-script over a session store in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import msgspec
import trio
from image_kit import PNG
from msgspec import Raw
from world_kit import ClockEntropy, Home, accept_message, make_home, open_store

from peen.context.count import fixed_tokens
from peen.errors import LinkLost, ModelError
from peen.model.registry import Models
from peen.model.stream import (
    CallDelta,
    CallStarted,
    CallStopped,
    Finished,
    ModelInfo,
    ModelRequest,
    StreamEvent,
    TextDelta,
)
from peen.model.strict import strict_request_check
from peen.session.ending import end_unfinished, interrupted
from peen.session.resumption import resume
from peen.session.serve import WorkerCalls
from peen.session.spending import Terms
from peen.session.writer import TurnEnd
from peen.store import executions, generations, turns
from peen.store.database import Database, Tx
from peen.store.direct import MemoryFile
from peen.testing.faults import Faults
from peen.tool.base import Tool, ToolArguments, ToolContext, ToolError, ToolImage, ToolResult, WithImage
from peen.tool.registry import Tools
from peen.turn.actor import TurnActor
from peen.turn.workshop import Workshop
from peen.wire.client import SentImage
from peen.wire.launch import UpstreamConfig, WorkerSettings
from peen.wire.turncalls import (
    BlobPiece,
    CommitSteps,
    Committed,
    EmitEvents,
    Emitted,
    FetchBlob,
    HistoryPage,
    HistoryRows,
    LeasesRenewed,
    OpenedTurn,
    OpenTurn,
    RenewLeases,
    RestoredExecution,
    RestoreExecution,
)
from peen.wire.worker import ResumeTurn, RunTurn, WireError, encode
from peen.wire.workerstruct import WorkerStruct
from peen.worker.peer import error_of

MODEL_ID = "m"
LONG: Final = "word " * 150
"""157 tokens, as Peen counts them."""
R = TypeVar("R", bound=WorkerStruct)

# --- the model

Piece = StreamEvent | float | ModelError
"""An event, seconds to wait, or how the stream breaks. A script that ends without `Finished` is a cut stream."""
Attempt = Sequence[Piece]


def says(text: str) -> list[Piece]:
    """A whole answer without calls."""
    return [TextDelta(text), Finished("stop", MODEL_ID)]


def asks(*calls: tuple[str, str], text: str = "") -> list[Piece]:
    """A whole answer with calls of these tools with these arguments; the ids are left to the engine."""
    pieces: list[Piece] = [TextDelta(text)] if text else []
    for index, (name, arguments) in enumerate(calls):
        pieces += [CallStarted(index, "", name), CallDelta(index, arguments), CallStopped(index)]
    return [*pieces, Finished("tool_calls", MODEL_ID)]


class PlayedUpstream:
    """Answers the n-th request with the n-th attempt, and refuses what a strict provider would refuse."""

    name = "up"

    def __init__(self, *attempts: Attempt) -> None:
        self.attempts = list(attempts)
        self.requests: list[ModelRequest] = []
        self.open_streams = 0

    async def discover(self) -> list[ModelInfo]:
        await trio.lowlevel.checkpoint()
        return [ModelInfo(name=f"{self.name}/{MODEL_ID}", connection_name=self.name, model_id=MODEL_ID)]

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[StreamEvent]]:
        await trio.lowlevel.checkpoint()
        strict_request_check(request)
        self.requests.append(
            msgspec.structs.replace(request, messages=list(request.messages), images=dict(request.images))
        )
        self.open_streams += 1
        try:
            async with aclosing(self._play(self.choose(request))) as events:
                yield events
        finally:
            self.open_streams -= 1

    def choose(self, request: ModelRequest) -> Attempt:
        """What answers the latest request."""
        return self.attempts[len(self.requests) - 1]

    async def _play(self, attempt: Attempt) -> AsyncGenerator[StreamEvent, None]:
        for piece in attempt:
            if isinstance(piece, float):
                await trio.sleep(piece)
            elif isinstance(piece, ModelError):
                raise piece
            else:
                yield piece


# --- the tools


class Work(ToolArguments, frozen=True):
    """`takes_s` seconds of virtual time, then `say`; with `fail` as an error."""

    say: str = "seen"
    takes_s: float = 0.0
    fail: bool = False


class Said(ToolResult, frozen=True):
    said: str


class Look(Tool[Work]):
    """A tool that changes nothing."""

    name: ClassVar[str] = "look"
    description: ClassVar[str] = "Looks."
    repeatable: ClassVar[bool] = True
    arguments = Work

    def __init__(self) -> None:
        self.running = self.most_running = self.done = 0

    async def run(self, arguments: Work, context: ToolContext) -> Said:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await trio.sleep(arguments.takes_s)
        finally:
            self.running -= 1
        self.done += 1
        if arguments.fail:
            raise ToolError("failed", arguments.say)
        return Said(said=arguments.say)


class Change(Look):
    """A tool that may change something."""

    name: ClassVar[str] = "change"
    repeatable: ClassVar[bool] = False


class Photograph(Tool[Work]):
    """A tool that shows an image: `say` is its path."""

    name: ClassVar[str] = "photograph"
    description: ClassVar[str] = "Shows an image."
    repeatable: ClassVar[bool] = True
    arguments = Work
    image = PNG

    async def run(self, arguments: Work, context: ToolContext) -> WithImage:
        await trio.sleep(arguments.takes_s)
        return WithImage(Said(said=arguments.say), ToolImage(arguments.say, self.image))


def work(say: str = "seen", *, takes_s: float = 0.0, fail: bool = False) -> str:
    """Arguments of both tools."""
    return encode(Work(say=say, takes_s=takes_s, fail=fail)).decode()


# --- the journal


class StoreJournal:
    """Implements `Journal` on the handler that serves a real worker: the same bytes, the same order, no socket."""

    def __init__(self, calls: WorkerCalls) -> None:
        self._calls = calls
        self.asked: list[WorkerStruct] = []
        self.lost_after: int | None = None
        """The link is gone once so many calls were made; the one that meets it is not carried out."""

    @property
    def commits(self) -> list[CommitSteps]:
        return [request for request in self.asked if isinstance(request, CommitSteps)]

    @property
    def emits(self) -> list[EmitEvents]:
        return [request for request in self.asked if isinstance(request, EmitEvents)]

    async def open_turn(self, request: OpenTurn) -> OpenedTurn:
        return await self._ask("turn.open", request, OpenedTurn)

    async def restore(self, request: RestoreExecution) -> RestoredExecution:
        return await self._ask("execution.restore", request, RestoredExecution)

    async def history(self, request: HistoryPage) -> HistoryRows:
        return await self._ask("history.page", request, HistoryRows)

    async def commit(self, request: CommitSteps) -> Committed:
        return await self._ask("steps.commit", request, Committed)

    async def blob(self, digest: bytes) -> bytes:
        return (await self._ask("blobs.fetch", FetchBlob(digest=digest), BlobPiece)).data

    async def renew(self, request: RenewLeases) -> LeasesRenewed:
        return await self._ask("leases.renew", request, LeasesRenewed)

    async def emit(self, request: EmitEvents) -> None:
        self._send("events.emit", request, lambda _: None)
        await trio.lowlevel.checkpoint()

    async def note(self, request: EmitEvents) -> None:
        await self._ask("events.emit", request, Emitted)

    async def _ask(self, method: str, request: WorkerStruct, reply: type[R]) -> R:
        done = trio.Event()
        answers: list[bytes | WireError] = []

        def answered(answer: bytes | WireError) -> None:
            answers.append(answer)
            done.set()

        self._send(method, request, answered)
        with trio.CancelScope(shield=True):  # as over the socket: a writing call is not interrupted
            await done.wait()
        (answer,) = answers
        if isinstance(answer, WireError):
            raise error_of(answer)
        return msgspec.json.decode(answer, type=reply)

    def _send(self, method: str, request: WorkerStruct, reply: Callable[[bytes | WireError], None]) -> None:
        if self.lost_after is not None and len(self.asked) >= self.lost_after:
            raise LinkLost("the controller is gone")
        self.asked.append(request)
        self._calls.handle(method, Raw(encode(request)), reply)


# --- the whole


class Engine:
    """One session with its worker's workshop; turns run one after the other."""

    def __init__(
        self,
        db: Database,
        home: Home,
        upstream: PlayedUpstream,
        settings: WorkerSettings,
        *,
        seed: int,
        terms: Terms | None = None,
    ) -> None:
        """`terms` are what the deployment takes and allows."""
        self._terms = terms or Terms()
        self.db, self.home, self.upstream = db, replace(home, terms=self._terms), upstream
        self.entropy = ClockEntropy(seed)
        self.ends: list[TurnEnd] = []
        self.journal = self._connect()
        self.look, self.change, self.photograph = Look(), Change(), Photograph()
        self._settings = settings
        self._shop: Workshop | None = None
        self._frame = 0

    async def run_turn(self, text: str = "go", *, frame: int | None = None, images: Sequence[bytes] = ()) -> TurnActor:
        """Accept a message and carry out its turn; the actor, when it is over. `frame` numbers it, else they count."""
        self._frame = self._frame + 1 if frame is None else frame
        turn_id = await accept_message(self.db, self.home, text, frame=self._frame, images=images)
        return await self.carry_out(turn_id, text, images=images)

    async def carry_out(self, turn_id: str, text: str, *, images: Sequence[bytes] = ()) -> TurnActor:
        """Run the turn of an accepted message."""
        refs = [SentImage.of(data).ref for data in images]
        command = RunTurn(turn_id=turn_id, request_id=turn_id, message=text, images=refs)
        actor = TurnActor(command, await self._workshop())
        await actor.run()
        return actor

    async def replace_worker(self) -> None:
        """Go on with a worker of a new generation, once the last one has been recorded as ended."""
        self.home = replace(await make_home(self.db), terms=self._terms)
        self.journal, self._shop = self._connect(), None

    async def lose_worker(self) -> None:
        """The worker has died: its turn is interrupted, as the controller records it, and another worker takes over."""

        def change(tx: Tx) -> None:
            for turn in turns.running(tx, self.home.no):
                end_unfinished(
                    tx, turn, interrupted("interrupted", "it died"), at_ms=self.entropy.now_ms(), generation_no=None
                )
            generation_id = generations.id_of(tx, self.home.generation_no)
            generations.ended(
                tx, generation_id, state="failed", detail=None, exit_code=None, at_ms=self.entropy.now_ms()
            )

        await self.db.write(change)
        await self.replace_worker()

    async def resume_turn(self, number: int = 0) -> TurnActor:
        """Go on with the paused turn of that number, the newest first; the actor, when it is over."""
        paused = executions.paused_of(self.db.reader, self.home.no, limit=100)[number]
        resumed = await self.db.write(
            partial(
                resume, session_no=self.home.no, execution_id=paused.id, control_revision=paused.control_revision,
                caller="test", automatic=True, at_ms=self.entropy.now_ms(),
            )
        )  # fmt: skip
        command = ResumeTurn(turn_id=resumed.turn_id, execution_id=resumed.execution_id)
        actor = TurnActor(command, await self._workshop())
        await actor.run()
        return actor

    def change_settings(self, **settings: Any) -> None:
        """What the next worker is told."""
        self._settings = msgspec.structs.replace(self._settings, **settings)

    def _connect(self) -> StoreJournal:
        return StoreJournal(WorkerCalls(self.db, self.home.writer, entropy=self.entropy, on_end=self.ends.append))

    async def _workshop(self) -> Workshop:
        if self._shop is None:
            models = Models([self.upstream])
            await models.discover()
            directory = Path("/srv/project-1")
            self._shop = Workshop(
                session_id=self.home.uuid, workspace=directory, home=directory, settings=self._settings, models=models,
                tools=Tools([self.look, self.change, self.photograph]), command_environment={}, journal=self.journal,
                entropy=self.entropy,
            )  # fmt: skip
        return self._shop


@asynccontextmanager
async def engine(
    *attempts: Attempt,
    file: MemoryFile | None = None,
    faults: Faults | None = None,
    seed: int = 1,
    terms: Terms | None = None,
    upstreams: Sequence[UpstreamConfig] = (),
    **settings: Any,
) -> AsyncIterator[Engine]:
    """An engine whose model makes these attempts; `settings` are fields of WorkerSettings.

    `seed` draws ids and chance: one that opens a file again needs another.
    """
    chosen = WorkerSettings(upstreams=list(upstreams), default_model=f"{PlayedUpstream.name}/{MODEL_ID}", **settings)
    async with open_store(file, faults=faults) as db:
        yield Engine(db, await make_home(db), PlayedUpstream(*attempts), chosen, seed=seed, terms=terms)


async def settings_for(room: int, **others: Any) -> dict[str, Any]:
    """Settings with which a conversation may have `room` tokens beside prompt and tools."""
    async with engine(says("x")) as own:
        await own.run_turn("x")
        request = own.upstream.requests[0]
    fixed = fixed_tokens(request.system, request.tools)
    return {
        "max_context_tokens": fixed + room + 300, "output_reserve_tokens": 300, "compaction_mode": "summarize",
        "compaction_max_output_tokens": 100, **others,
    }  # fmt: skip
