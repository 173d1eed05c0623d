"""A whole simulated host: one disk, one controller after the other, its workers, its clients, in one `trio.run`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec
import structlog
import trio
from sim_client import Client
from sim_ghost import Ghost
from sim_model import MODEL, Ledger, Script, SimUpstream
from sim_plan import NO_FAULT, Plan, PlannedFaults
from sim_schedule import run_seeded
from sim_watch import left_running, untold_ends
from sim_worker import SimProcess, SimSpace, SimSupervisor, SimWorkers
from structlog.testing import capture_logs
from world_kit import ClockEntropy, uuid

from peen.errors import StorageError, ValidationFailed
from peen.feed.fanout import Fanout
from peen.feed.pump import FeedPump
from peen.ids import SessionNo
from peen.session.actor import Household
from peen.session.ending import interrupted
from peen.session.records import GenerationRecords
from peen.session.recovery import recover
from peen.session.registry import Sessions
from peen.store import inbox, sessions, turns
from peen.store.blobs.rows import Blobs
from peen.store.database import Database, Reader, Tx
from peen.store.direct import DirectDatabase, MemoryFile
from peen.store.opening import open_direct
from peen.testing.faults import SimulatedCrash
from peen.wire.launch import WorkerSettings
from peen.worker.link import CallHandler

LIVES: Final = 12
"""Controllers that a world may need until one stays up: a disk that fails at every start would never end."""
START_S: Final = 1_700_000_000
"""Wall clock of a simulated host when its virtual time begins."""
RESTART_S: Final = 5.0
QUEUE_CAPACITY: Final = 4


SETTINGS: Final = WorkerSettings(upstreams=[], default_model=MODEL, max_concurrent_tools=2)


@dataclass(frozen=True, slots=True)
class Home:
    """A session."""

    no: SessionNo
    id: bytes
    uuid: str


class Controller:
    """One life of the controller: everything that control-core puts together, without processes and threads."""

    def __init__(
        self, database: Database, blobs: Blobs, space: SimSpace, *, entropy: ClockEntropy, settings: WorkerSettings
    ) -> None:
        self.database, self.blobs, self.entropy = database, blobs, entropy
        self.nursery: trio.Nursery
        self.fanout = Fanout()
        self.pump = FeedPump(database.reader, self.fanout)
        self.pump.attach(database)
        records = self.records = GenerationRecords(database, blobs, entropy)

        def calls(_session_id: str, generation_id: str) -> CallHandler:
            return records.calls(generation_id, self.sessions.turn_ended).handle

        self.supervisor = SimSupervisor(
            space, records, socket_root=Path("/run/peen"), config_directory=Path("/etc/peen"), state_id="sim",
            settings=settings, entropy=entropy,
            calls=calls, on_lost=_ignore_loss,
        )  # fmt: skip
        household = Household(
            database=database, blobs=blobs, pump=self.pump, workers=SimWorkers(database, self.supervisor),
            entropy=entropy, check_model=_check_model, takes_images=_takes_images,
            default_model=MODEL, queue_capacity=QUEUE_CAPACITY,
            turn_limit=trio.CapacityLimiter(64), worker_idle_s=600.0,
        )  # fmt: skip
        self.sessions = Sessions(household)


class World:
    """What outlives a controller, and what is looked at in the end."""

    def __init__(self, name: str, script: Script, *, seed: int, plan: Plan, session_count: int) -> None:
        self.name, self.seed, self.plan = name, seed, plan
        self.disk = MemoryFile()
        self.faults = PlannedFaults(plan, self.die)
        self.ledger = Ledger()
        self.ghosts: list[Ghost] = []
        self.upstream = SimUpstream(script, self.ledger)
        self.settings = SETTINGS
        self.homes: list[Home] = []
        self.clients: list[Client] = []
        self.space: SimSpace
        self.lives = 0
        self.controller: Controller | None = None
        self._requests: list[trio.CancelScope] = []
        self.script_scope = trio.CancelScope()
        """Around the scenario: what it still had in mind is dropped when its controller dies of the plan."""
        self.disk_was_filled = False
        self.stopped_s: list[tuple[Home, float]] = []
        self.closing_s: float | None = None
        """When the controller was first told to stop in order."""
        self.seen: list[str] = []
        """Broken promises that were seen while the world ran."""
        self.faults.watch = self._watch
        self.logs: list[Any] = []
        self._session_count = session_count
        self._changed = trio.Event()
        self._nursery: trio.Nursery
        self._end = trio.Event()
        self._is_planned_death = True

    @property
    def repeat(self) -> str:
        """The command that runs this world again."""
        words = f"{self.name} seed={self.seed} {self.plan}".strip()
        return f"PEEN_SIM='{words}' python -m pytest tests/sim/test_sim_repeat.py"

    @property
    def disk_failed(self) -> bool:
        """Whether the disk was full or broken at any time."""
        return bool(self.plan.full or self.plan.ioerr or self.plan.failed_commit) or self.disk_was_filled

    @property
    def db(self) -> Database:
        assert self.controller is not None, "the controller does not run"
        return self.controller.database

    async def run(self, body: Callable[[], Awaitable[None]]) -> None:
        """Set up, run `body`, and end everything that is left."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.space = SimSpace(nursery, self.faults, self.upstream, self.ledger, self.seed)
            self.space.on_replace = self.replace
            await body()
            nursery.cancel_scope.cancel()

    def reader(self) -> Reader:
        """What the disk holds, when no controller runs."""
        connection = apsw.Connection(":memory:")
        connection.deserialize("main", self.disk.image)
        return Reader(connection)

    # --- lives

    async def start(self) -> None:
        """Start a controller. One that dies at once is started again, as a service manager would."""
        while self.lives < LIVES:
            self.lives += 1
            self._end = trio.Event()
            self._nursery.start_soon(self._live, self.lives)
            while self.controller is None and not self._is_over:
                await self._changed.wait()
            if self.controller is not None:
                self._connect()
                return
            await trio.sleep(RESTART_S)
        raise AssertionError(f"no controller stays up\n{self.repeat}")

    async def kill(self) -> None:
        """Kill the controller now, between two commits."""
        database = self.db
        assert isinstance(database, DirectDatabase)
        self._is_planned_death = False
        self.die()
        database._die(SimulatedCrash("killed"), [])
        self._end.set()
        await self._until_over()
        self._is_planned_death = True

    async def close(self) -> None:
        """The orderly stop; a controller that dies of it is started again, and stopped once more."""
        if self.closing_s is None:
            self.closing_s = trio.current_time()
        while not await self.request(self._close):
            await self.start()
        await self._until_over()

    async def _close(self) -> None:
        """As control-core does it: turns, then workers, then the store."""
        controller = self.controller
        assert controller is not None
        await controller.sessions.close(interrupted("shutdown", "the controller was stopped"))
        controller.pump.flush()
        await controller.supervisor.stop_all("the controller stops")
        controller.pump.flush()
        self._end.set()

    def die(self) -> None:
        """The moment of a crash: from here on nobody hears anything of this controller."""
        for client in self.clients:
            client.is_connected = False
        self.space.kill_all()
        for request in self._requests:
            request.cancel()
        self._end.set()  # also where only the scenario was told: a dead process does nothing more
        if self._is_planned_death:
            self.script_scope.cancel()

    @property
    def _is_over(self) -> bool:
        return self._end.is_set() and self.controller is None

    async def _until_over(self) -> None:
        while self.controller is not None:
            await self._changed.wait()
        # The dying controller kills what it started; its workers are gone before the next one starts.
        for process in self.space.living():
            await process.exited.wait()

    async def _live(self, life: int) -> None:
        migrations = resources.files("peen.store") / "migrations"
        try:
            async with open_direct(
                self.disk, migrations=migrations, name="peen", seed=self.seed * 100 + life, faults=self.faults
            ) as database:
                await self._serve(database, life)
        except* SimulatedCrash:
            pass
        except* StorageError as failed:
            structlog.get_logger(__name__).warning("a controller did not start", error=str(failed.exceptions[0]))
        finally:
            self.space.kill_all()
            with trio.CancelScope(shield=True):  # a killed task ends at its next checkpoint
                for process in self.space.living():
                    await process.exited.wait()
            self.controller = None
            self._end.set()
            self._tell()

    async def _serve(self, database: Database, life: int) -> None:
        entropy = ClockEntropy(self.seed * 100 + life)
        await recover(database, entropy)
        self.seen += [f"18: {left} after recovery" for left in left_running(database.reader)]
        await self._make_homes(database)
        controller = Controller(
            database, await Blobs.open(database), self.space, entropy=entropy, settings=self.settings
        )
        async with trio.open_nursery() as nursery:
            for start in (controller.pump.run, controller.supervisor.run, controller.sessions.run):
                await nursery.start(start)
            controller.nursery = nursery
            self.controller = controller
            self._tell()
            await self._end.wait()
            nursery.cancel_scope.cancel()

    async def _make_homes(self, database: Database) -> None:
        homes: list[Home] = []
        for number in range(1, self._session_count + 1):
            row = await database.write(partial(_open_session, number=number))
            homes.append(Home(row.no, row.id, row.uuid))
        self.homes = homes

    def replace(self, process: SimProcess) -> None:
        """Give a worker up in this moment, and let it go on all the same."""
        controller = self.controller
        assert controller is not None
        ghost = Ghost(process, controller.records)
        self.ghosts.append(ghost)
        ghost.give_up(controller.supervisor)
        controller.nursery.start_soon(ghost.run)

    def _watch(self, connection: apsw.Connection) -> None:
        number = self.faults.commits
        self.seen += [f"{broken}, in commit {number}" for broken in untold_ends(Reader(connection))]

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        for client in self.clients:
            client.poke()

    # --- clients

    async def request(self, call: Callable[[], Awaitable[None]]) -> bool:
        """Carry out what a user asks of the controller; False if it died before it answered.

        Raises: what the controller answers.
        """
        scope = trio.CancelScope()
        self._requests.append(scope)
        is_answered = False
        try:
            with scope:
                await call()
                is_answered = True
        except SimulatedCrash:
            pass
        finally:
            self._requests.remove(scope)
        if not is_answered:
            await self._until_over()
        return is_answered

    def client(self, session_filter: str | None = None) -> Client:
        """A user who listens from now on."""
        client = Client(session_filter)
        self.clients.append(client)
        if self.controller is not None:
            client.connected()
            self.controller.fanout.add(client)
        return client

    def _connect(self) -> None:
        assert self.controller is not None
        for client in self.clients:
            client.connected()
            self.controller.fanout.add(client)

    def is_idle(self) -> bool:
        """Nothing runs and nothing is about to."""
        if self.controller is None:
            return False
        reader = self.db.reader
        return not turns.running(reader) and not inbox.opening(reader)


def simulate(name: str, script: Script, body: Callable[[World], Awaitable[None]], *, seed: int = 0,
             plan: Plan = NO_FAULT, sessions: int = 1, settings: Mapping[str, Any] | None = None) -> World:  # fmt: skip
    """Run `body` in a new world, and the world when all is over."""
    world = World(name, script, seed=seed, plan=plan, session_count=sessions)
    world.settings = msgspec.structs.replace(SETTINGS, **(settings or {}))
    with capture_logs() as logs:
        run_seeded(partial(world.run, partial(body, world)), seed)
    world.logs = logs
    return world


def _open_session(tx: Tx, number: int) -> sessions.SessionRow:
    row, _ = sessions.open_or_create(
        tx, new_id=uuid(1000 + number).bytes, workspace=f"/srv/project-{number}", agent_space=SimSpace.name,
        root_agent="peen", model=MODEL, at_ms=0,
    )  # fmt: skip
    return row


def _takes_images(_name: str) -> bool:
    return True


def _check_model(name: str) -> None:
    if name != MODEL:
        raise ValidationFailed(f"model {name!r} does not exist")


async def _ignore_loss(_session_id: str, _generation_id: str, _reason: str) -> None:
    """The session hears of a loss through the command that its worker was carrying out."""
    await trio.lowlevel.checkpoint()
