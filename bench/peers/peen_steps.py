"""The work on Peen: `python -m bench.peers.peen_steps [--executions N] [--socket]`.

The real engine (`Steps`), the transactions of the service, a real file with `synchronous=FULL` and one writer thread. A
step saves its input before it begins and its output, which is also a message of the transcript, before the next one
begins; both share one commit. Engine and store are in one process; with `--socket` the engine is in another, and each
execution has a worker link of its own to the store, as every session has.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import trio
from msgspec import Raw

from bench.common import SWITCH_INTERVAL_S
from bench.peers.peen_worker import AGENT_SPACE, Job, execute_all, frames_of
from bench.peers.work import check, parser, tell
from peen.entropy import SystemEntropy
from peen.ids import SessionNo
from peen.session.acceptance import Acceptance, accept
from peen.session.serve import WorkerCalls
from peen.session.writer import TurnEnd, Writer
from peen.store import generations, sessions
from peen.store.blobs.rows import Blobs
from peen.store.database import Database, Tx
from peen.store.opening import open_database
from peen.wire.client import MessageSend, content_digest
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
from peen.wire.worker import WireError, encode
from peen.wire.workerstruct import WorkerStruct
from peen.worker.link import WorkerLink
from peen.worker.peer import error_of

MODEL: Final = "bench/bench"
FINISH_S: Final = 120.0
R = TypeVar("R", bound=WorkerStruct)


class EmbeddedJournal:
    """Implements `Journal` on what serves a worker's calls: the same bytes in the same order, no socket."""

    def __init__(self, calls: WorkerCalls) -> None:
        self._calls = calls

    async def open_turn(self, request: OpenTurn) -> OpenedTurn:
        return await self._call("turn.open", request, OpenedTurn)

    async def restore(self, request: RestoreExecution) -> RestoredExecution:
        return await self._call("execution.restore", request, RestoredExecution)

    async def history(self, request: HistoryPage) -> HistoryRows:
        return await self._call("history.page", request, HistoryRows)

    async def commit(self, request: CommitSteps) -> Committed:
        return await self._call("steps.commit", request, Committed)

    async def blob(self, digest: bytes) -> bytes:
        return (await self._call("blobs.fetch", FetchBlob(digest=digest), BlobPiece)).data

    async def renew(self, request: RenewLeases) -> LeasesRenewed:
        return await self._call("leases.renew", request, LeasesRenewed)

    async def emit(self, request: EmitEvents) -> None:
        await self._call("events.emit", request, Emitted)

    async def note(self, request: EmitEvents) -> None:
        await self._call("events.emit", request, Emitted)

    async def _call(self, method: str, request: WorkerStruct, reply: type[R]) -> R:
        done = trio.Event()
        answers: list[bytes | WireError] = []

        def answered(answer: bytes | WireError) -> None:
            answers.append(answer)
            done.set()

        self._calls.handle(method, Raw(encode(request)), answered)
        with trio.CancelScope(shield=True):  # no deadline: the store answers every call
            await done.wait()
        (answer,) = answers
        if isinstance(answer, WireError):
            raise error_of(answer)
        return msgspec.json.decode(answer, type=reply)


async def open_execution(db: Database, number: int) -> tuple[WorkerCalls, SessionNo, Job]:
    """A session with a worker generation and an open turn, and who serves that worker."""
    entropy = SystemEntropy()
    new_id, generation_id, turn_id, holder = (entropy.uuid4() for _ in range(4))
    workspace, at_ms = f"/bench/{number}", entropy.now_ms()

    blobs = await Blobs.open(db)

    def prepare(tx: Tx) -> Writer:
        session, _ = sessions.open_or_create(
            tx, new_id=new_id.bytes, workspace=workspace, agent_space=AGENT_SPACE, root_agent="peen", model=MODEL,
            at_ms=at_ms,
        )  # fmt: skip
        generation_no = generations.create(
            tx, generation_id=generation_id.bytes, session_no=session.no, agent_space=AGENT_SPACE,
            workspace=workspace, credential_sha256=bytes(32), socket_path="", at_ms=at_ms,
        )  # fmt: skip
        generations.starting(tx, generation_id.bytes, pid=1, process_started=1, at_ms=at_ms)
        generations.ready(tx, generation_id.bytes)
        message = MessageSend(id=str(entropy.uuid4()), session_id=str(new_id), message="go")
        accepted = Acceptance(message, content_digest(message), entropy.uuid4().bytes, turn_id.bytes, at_ms, blobs)
        accept(tx, session.no, accepted)
        return Writer(session.no, generation_no, blobs)

    writer = await db.write(prepare)
    request = OpenTurn(
        turn_id=str(turn_id), holder=holder.hex, model=MODEL, prompt="You are an agent.", context_manifest=Raw(b"{}"),
        context_content="", context_hash="00" * 32, tools=Raw(b"[]"), round_limit=8, tool_parallelism=1,
        request_settings=Raw(b"{}"), messages=[], events=[], known_sequence=0,
    )  # fmt: skip
    calls = WorkerCalls(db, writer, entropy=entropy, on_end=ignore_end)
    opened = await EmbeddedJournal(calls).open_turn(request)
    return calls, writer.session_no, Job(opened.execution_id, holder.hex)


def ignore_end(_end: TurnEnd) -> None:
    """Nobody waits for these turns."""


async def over_sockets(served: Sequence[WorkerCalls], jobs: Sequence[Job], count: int) -> float:
    """Seconds for all executions in a process of their own."""
    pairs = [socket.socketpair() for _ in served]
    theirs = [end.fileno() for _, end in pairs]
    command = [sys.executable, "-m", "bench.peers.peen_worker", "--steps", str(count), *map(str, theirs)]
    async with trio.open_nursery() as nursery:
        for calls, (ours, _) in zip(served, pairs, strict=True):
            await nursery.start(WorkerLink(frames_of(ours), calls.handle).run)
        with trio.fail_after(FINISH_S):
            work = partial(trio.run_process, stdin=msgspec.json.encode(jobs), capture_stdout=True, pass_fds=theirs)
            done = await work(command)
        nursery.cancel_scope.cancel()
    for _, end in pairs:
        end.close()
    return msgspec.json.decode(done.stdout, type=float)


@asynccontextmanager
async def open_store(directory: Path) -> AsyncIterator[Database]:
    migrations = resources.files("peen.store") / "migrations"
    async with open_database(
        directory / "peen.db", migrations=migrations, name="peen", entropy=SystemEntropy(), reserve_bytes=0
    ) as db:
        yield db


async def measure(directory: Path, executions: int, count: int, *, through_sockets: bool) -> float:
    """Seconds for `count` steps of each execution, all executions at once."""
    async with open_store(directory) as db:
        opened = [await open_execution(db, number) for number in range(executions)]
        jobs = [job for _, _, job in opened]
        if through_sockets:
            seconds = await over_sockets([calls for calls, _, _ in opened], jobs, count)
        else:
            seconds = await execute_all([EmbeddedJournal(calls) for calls, _, _ in opened], jobs, count)
        for _, session_no, _ in opened:
            check(sessions.message_sequence(db.reader, session_no), count)
    return seconds


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--executions", type=int, default=1, help="executions at once")
    options.add_argument("--socket", action="store_true", help="the engine in a process of its own")
    arguments = options.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    work = partial(measure, through_sockets=arguments.socket)
    with tempfile.TemporaryDirectory() as name:
        seconds = trio.run(work, Path(name), arguments.executions, arguments.steps)
    tell(arguments.executions * arguments.steps, seconds)


if __name__ == "__main__":
    main()
