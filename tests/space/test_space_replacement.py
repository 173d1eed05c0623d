"""A worker that cannot be killed: another one takes its turn over and completes it, and the old one writes nothing.

The processes are real: the old worker is stopped with SIGSTOP, replaced, and goes on with SIGCONT when all is over.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio
from crash_kit import alive, command, descendants, script, short_directory, wait_for
from msgspec import Raw
from sim_client import Client
from sim_decisions import Wish, next_decision
from sim_worker import SimWorkers
from sim_world import Home
from space_kit import QUICK, STATE_ID, gone
from world_kit import dump, open_store

from peen.entropy import Entropy, SystemEntropy
from peen.feed.fanout import Fanout
from peen.feed.pump import FeedPump
from peen.session.actor import Household
from peen.session.records import GenerationRecords
from peen.session.registry import Sessions
from peen.space.control import ControlSpace, ControlWorker, WorkerProcess
from peen.space.generation import GenerationActor
from peen.space.supervise import Placement, Supervisor
from peen.store import feed, sessions
from peen.store.blobs.rows import Blobs
from peen.store.database import Database, Tx
from peen.wire.client import MessageSend
from peen.wire.launch import LaunchDocument, UpstreamConfig, WorkerSettings
from peen.wire.worker import WireError
from peen.worker.framing import FrameStream
from peen.worker.link import CallHandler, Reply, WorkerLink
from peen.worker.main import EXIT_LINK_LOST

MODEL = "scripted/works"
PATIENCE_S = 30.0
FIRST_WAITS = "echo $$ >> runs; [ $(wc -l < runs) -gt 1 ] || until [ -e go ]; do sleep 0.02; done; echo done"
"""A command that ends at once when it runs for the second time."""
SCRIPT = script({"works": [[command(FIRST_WAITS), {"text": "It is done."}]]})


class Spared:
    """A worker that seems to end when it is killed. Implements `WorkerProcess`."""

    def __init__(self, worker: ControlWorker) -> None:
        self.worker = worker
        self._given_up = trio.Event()

    @property
    def pid(self) -> int:
        return self.worker.pid

    @property
    def start_time(self) -> int:
        return self.worker.start_time

    async def wait(self) -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope)
            await self._given_up.wait()
            nursery.cancel_scope.cancel()
        return -signal.SIGKILL

    async def _watch(self, waiting: trio.CancelScope) -> None:
        await self.worker.wait()
        waiting.cancel()

    def terminate(self) -> None:
        self._given_up.set()

    def kill(self) -> None:
        self._given_up.set()


class SparingSpace:
    """The space `control`, where nobody can kill the first worker. Implements `Space`."""

    name = "control"

    def __init__(self, inner: ControlSpace) -> None:
        self._inner = inner
        self.workers: list[ControlWorker] = []

    async def launch(self, document: LaunchDocument, log_context: Mapping[str, str]) -> WorkerProcess:
        worker = await self._inner.launch(document, log_context)
        self.workers.append(worker)
        return Spared(worker) if len(self.workers) == 1 else worker


class TappedGeneration(GenerationActor):
    """A generation whose connection stays open, for somebody else, when the controller has closed its end."""

    kept: list[socket.socket]

    async def _carry(self, link: FrameStream, process: WorkerProcess) -> None:
        ours = link._stream.socket  # type: ignore[attr-defined]
        self.kept.append(socket.socket(fileno=os.dup(ours.fileno())))
        await super()._carry(link, process)


class TappedSupervisor(Supervisor):
    """The real supervisor with tapped connections."""

    kept: list[socket.socket]

    def _start(self, place: Placement) -> GenerationActor:
        assert self._nursery is not None
        actor = self._actors[place.session_id] = TappedGeneration(place, self._world)
        actor.kept = self.kept
        self._nursery.start_soon(self._run, actor)
        return actor


@dataclass
class Host:
    """A controller in this process, with real workers."""

    database: Database
    blobs: Blobs
    entropy: Entropy
    sessions: Sessions
    supervisor: TappedSupervisor
    records: GenerationRecords
    space: SparingSpace
    home: Home
    workspace: Path
    user: Client = field(default_factory=Client)

    async def heard(self, frame_type: str) -> None:
        with trio.fail_after(PATIENCE_S):
            await self.user.until(lambda: any(frame["type"] == frame_type for frame in self.user.heard))

    async def started(self) -> int:
        """Send the message, and wait for its command; the pid of its shell."""
        message = MessageSend(id=str(self.entropy.uuid4()), session_id=self.home.uuid, message="go", model=MODEL)
        await self.sessions.submit(message, self.user)
        runs = self.workspace / "runs"
        is_written = partial(_is_written, runs)
        await trio.to_thread.run_sync(partial(wait_for, is_written, "the command to start", within_s=PATIENCE_S))
        return int(runs.read_text())

    async def replace(self) -> None:
        """Stop the worker where it stands and give it up; its turn is interrupted, and it is still there."""
        old = self.space.workers[0].pid
        os.kill(old, signal.SIGSTOP)
        await self.supervisor.give_up(self.home.uuid, "it did not obey")
        await self.heard("turn.failed")
        assert alive(old)

    async def complete(self) -> None:
        """Have the effect made again, and the turn completed by another worker."""
        while (decision := next_decision(self, self.home, Wish(uncertain="retry"))) is not None:
            await decision()
            await trio.lowlevel.checkpoint()
        await self.heard("turn.completed")


@asynccontextmanager
async def host(root: Path) -> AsyncIterator[Host]:
    workspace = root / "work"
    workspace.mkdir()
    (root / "script.yaml").write_text(SCRIPT)
    entropy = SystemEntropy()
    environment = {"PATH": os.environ["PATH"], "HOME": str(root)}
    inner = ControlSpace(state_id=STATE_ID, environment=environment, spares=0)
    async with open_store() as database, trio.open_nursery() as nursery:
        await nursery.start(inner.run)
        space = SparingSpace(inner)
        fanout = Fanout()
        pump = FeedPump(database.reader, fanout)
        pump.attach(database)
        blobs = await Blobs.open(database)
        records = GenerationRecords(database, blobs, entropy)

        def calls(_session_id: str, generation_id: str) -> CallHandler:
            return records.calls(generation_id, registry.turn_ended).handle

        upstream = UpstreamConfig(name="scripted", type="scripted", script=str(root / "script.yaml"))
        supervisor = TappedSupervisor(
            space, records, socket_root=root / "s", config_directory=root, state_id=STATE_ID,
            settings=WorkerSettings(upstreams=[upstream], default_model=MODEL), entropy=entropy, calls=calls,
            on_lost=_ignore_loss, limits=QUICK,
        )  # fmt: skip
        supervisor.kept = []
        household = Household(
            database=database, blobs=blobs, pump=pump, workers=SimWorkers(database, supervisor), entropy=entropy,
            check_model=lambda _name: None, takes_images=lambda _name: True, default_model=MODEL, queue_capacity=4,
            turn_limit=trio.CapacityLimiter(4), worker_idle_s=600.0,
        )  # fmt: skip
        registry = Sessions(household)
        for start in (pump.run, supervisor.run, registry.run):
            await nursery.start(start)
        row = await database.write(partial(_open_session, session_id=entropy.uuid4().bytes, workspace=workspace))
        home = Home(row.no, row.id, row.uuid)
        own = Host(database, blobs, entropy, registry, supervisor, records, space, home, workspace)
        own.user.connected()
        fanout.add(own.user)
        try:
            yield own
        finally:
            for kept in supervisor.kept:
                kept.close()  # else a worker that is told to stop never sees its link end
            with trio.move_on_after(PATIENCE_S, shield=True):
                await supervisor.stop_all("the test is over")
            nursery.cancel_scope.cancel()


async def test_a_replaced_worker_that_wakes_up_ends_by_itself_with_its_commands_and_changes_nothing() -> None:
    with short_directory() as root:
        async with host(root) as own:
            shell = await own.started()
            old = own.space.workers[0]
            own.supervisor.kept.pop().close()
            below = descendants(old.pid)
            await own.replace()
            await own.complete()
            stored = dump(own.database)

            os.kill(old.pid, signal.SIGCONT)
            await gone(old.pid, within_s=PATIENCE_S)
            with trio.fail_after(PATIENCE_S):
                status = await old.wait()

            assert status == EXIT_LINK_LOST
            assert shell in below
            assert not any(map(alive, below))
            assert dump(own.database) == stored
            assert len((own.workspace / "runs").read_text().splitlines()) == 2
            assert _ends(own) == ["turn.started", "turn.failed", "turn.resumed", "turn.completed"]


async def test_what_a_replaced_worker_still_sends_is_refused() -> None:
    with short_directory() as root:
        async with host(root) as own:
            await own.started()
            old = own.space.workers[0]
            generation_id = own.supervisor.generation_of(own.home.uuid)
            assert generation_id is not None
            kept = own.supervisor.kept.pop()
            await own.replace()
            await own.complete()
            stored = dump(own.database)
            (own.workspace / "go").touch()  # what it had begun ends only now
            answers: list[tuple[str, str]] = []
            refused = trio.Event()
            calls = own.records.calls(generation_id, _never_ends).handle

            async with trio.open_nursery() as nursery:
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(kept))
                link = WorkerLink(FrameStream(stream), partial(_noted, calls, answers, refused))
                nursery.start_soon(link.run)
                os.kill(old.pid, signal.SIGCONT)
                with trio.fail_after(PATIENCE_S):
                    await refused.wait()
                assert alive(old.pid)
                link.lose("the test has seen enough")
            await gone(old.pid, within_s=PATIENCE_S)

            # What became of its command, and the result of the call behind it.
            assert {code for _, code in answers} == {"STALE_CLAIM"}
            assert {method for method, _ in answers} >= {"job.end", "steps.commit"}
            assert dump(own.database) == stored
            assert _ends(own) == ["turn.started", "turn.failed", "turn.resumed", "turn.completed"]


def _noted(
    calls: CallHandler, answers: list[tuple[str, str]], refused: trio.Event, method: str, payload: Raw, reply: Reply
) -> None:
    """Carry a call of the old worker out like any other, and keep its answer."""

    def answered(result: bytes | WireError) -> None:
        answers.append((method, result.code if isinstance(result, WireError) else "granted"))
        reply(result)
        if method == "steps.commit":
            refused.set()

    calls(method, payload, answered)


def _is_written(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


def _ends(own: Host) -> list[str]:
    told = ("turn.started", "turn.failed", "turn.cancelled", "turn.resumed", "turn.completed")
    return [row.type for row in feed.after(own.database.reader, own.home.no, 0, limit=1000) if row.type in told]


def _open_session(tx: Tx, session_id: bytes, workspace: Path) -> sessions.SessionRow:
    row, _ = sessions.open_or_create(
        tx, new_id=session_id, workspace=str(workspace), agent_space="control", root_agent="peen", model=MODEL, at_ms=0
    )
    return row


def _never_ends(*_end: Any) -> None:
    raise AssertionError("a replaced worker ended a turn")


async def _ignore_loss(_session_id: str, _generation_id: str, _reason: str) -> None:
    await trio.lowlevel.checkpoint()
