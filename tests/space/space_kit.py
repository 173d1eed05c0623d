"""What the tests of this folder share: a supervisor with everything around it, and a look at processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
from msgspec import Raw

from peen.entropy import SystemEntropy
from peen.space.control import ControlSpace
from peen.space.proc import read_stat
from peen.space.supervise import Limits, Placement, Supervisor
from peen.wire.launch import UpstreamConfig, WorkerSettings
from peen.wire.turncalls import HistoryRows
from peen.wire.worker import RunTurn, TurnEnded, encode
from peen.worker.link import CallHandler, Reply, WorkerLink

ENTRY = "space_standin:worker_main"
STATE_ID = "test-state-" + str(os.getpid())
QUICK = Limits(ready_s=20, hello_s=2, beat_s=10, shutdown_s=5, term_s=5, kill_s=10)


class MemoryGenerations:
    """Records what happened to generations, in order."""

    def __init__(self) -> None:
        self.rows: dict[str, list[str]] = {}
        self.exit_codes: dict[str, int | None] = {}
        self.processes: list[tuple[int, int]] = []
        self.digests: list[bytes] = []

    async def create(
        self, session_id: str, generation_id: str, credential_hash: bytes, socket_path: str, agent_space: str,
        workspace: str, /,
    ) -> None:  # fmt: skip
        self.rows[generation_id] = ["requested"]
        self.digests.append(credential_hash)

    async def starting(self, generation_id: str, pid: int, start_time: int, /) -> None:
        self.rows[generation_id].append("starting")
        self.processes.append((pid, start_time))

    async def ready(self, generation_id: str, /) -> None:
        self.rows[generation_id].append("ready")

    async def stopping(self, generation_id: str, /) -> None:
        self.rows[generation_id].append("stopping")

    async def ended(self, generation_id: str, state: str, detail: str, exit_code: int | None, /) -> None:
        self.rows[generation_id] += [state, detail]
        self.exit_codes[generation_id] = exit_code


@dataclass
class World:
    """A supervisor and what it works with."""

    supervisor: Supervisor
    space: ControlSpace
    store: MemoryGenerations
    place: Placement
    root: Path
    lost: list[tuple[str, str, str]] = field(default_factory=list)
    lost_alive: list[bool] = field(default_factory=list)  # whether the worker was alive when its loss was told
    heard: trio.Event = field(default_factory=trio.Event)
    calls: list[bytes] = field(default_factory=list)

    async def on_lost(self, session_id: str, generation_id: str, reason: str) -> None:
        self.lost.append((session_id, generation_id, reason))
        self.lost_alive.append(read_stat(self.store.processes[-1][0]) is not None)
        self.heard.set()

    def calls_of(self, session_id: str, generation_id: str) -> CallHandler:
        def handle(method: str, payload: Raw, reply: Reply) -> None:
            self.calls.append(bytes(payload))
            reply(encode(HistoryRows(history=[])))

        return handle


def worker_settings(behaviour: str) -> WorkerSettings:
    return WorkerSettings(upstreams=[UpstreamConfig(name="u", type="scripted")], default_model=behaviour)


def environment() -> dict[str, str]:
    """What a worker gets here: a path to programs and to the stand-in, and a secret that it may have."""
    here = str(Path(__file__).parent)
    return {"PATH": os.environ["PATH"], "PYTHONPATH": here, "SOME_KEY": "allowed"}


@asynccontextmanager
async def running(
    root: Path, *, behaviour: str = "good", limits: Limits = QUICK, spares: int = 0, state_id: str = STATE_ID
) -> AsyncIterator[World]:
    """A supervisor over a real fork server and the stand-in worker."""
    (root / "workspace").mkdir(exist_ok=True)
    space = ControlSpace(state_id=state_id, environment=environment(), entry=ENTRY, spares=spares)
    store = MemoryGenerations()
    session_id = str(SystemEntropy().uuid4())
    place = Placement(session_id, str(root / "workspace"), "control")
    holder: list[World] = []

    async def on_lost(session: str, generation: str, reason: str) -> None:
        await holder[0].on_lost(session, generation, reason)

    def calls(session: str, generation: str) -> CallHandler:
        return holder[0].calls_of(session, generation)

    supervisor = Supervisor(
        space,
        store,
        socket_root=root / "s",
        config_directory=root,
        state_id=state_id,
        settings=worker_settings(behaviour),
        entropy=SystemEntropy(),
        calls=calls,
        on_lost=on_lost,
        limits=limits,
    )
    holder.append(World(supervisor, space, store, place, root))
    async with trio.open_nursery() as nursery:
        await nursery.start(space.run)
        await nursery.start(supervisor.run)
        try:
            yield holder[0]
        finally:
            with trio.move_on_after(30, shield=True):
                await supervisor.stop_all("the test is over")
            nursery.cancel_scope.cancel()


async def ask(link: WorkerLink, message: str) -> str:
    """Have the stand-in do something; what it says."""
    turn = RunTurn(turn_id="t", request_id="r", message=message)
    return (await link.command(turn, TurnEnded)).state


async def gone(pid: int, *, within_s: float) -> None:
    """Wait until process `pid` has ended. Raises: trio.TooSlowError."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with trio.fail_after(within_s):
            await trio.lowlevel.wait_readable(handle)
    finally:
        os.close(handle)
