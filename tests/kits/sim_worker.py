"""Worker processes that are tasks: the real supervisor and the real worker, with a wire in memory between them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import trio
from sim_link import Wire
from sim_model import Ledger, SimChange, SimLook, SimUpstream
from sim_plan import PlannedFaults
from sim_programs import SimProgram, SimPrograms
from world_kit import ClockEntropy

from peen.errors import WorkerFailed
from peen.ids import SessionNo
from peen.job.room import Jobs
from peen.model.registry import Models
from peen.space.control import WorkerProcess
from peen.space.door import Door, Expected
from peen.space.generation import GenerationActor
from peen.space.supervise import Placement, Supervisor
from peen.store import sessions
from peen.store.database import Database
from peen.tool.base import Tool
from peen.tool.command import RunCommand
from peen.tool.list_jobs import ListJobs
from peen.tool.read_job_output import ReadJobOutput
from peen.tool.registry import Tools
from peen.tool.signal_job import SignalJob
from peen.tool.wait_job import WaitJob
from peen.turn.workshop import Workshop
from peen.wire.launch import LaunchDocument
from peen.worker.framing import FrameStream
from peen.worker.journal import LinkJournal
from peen.worker.link import ControllerLink, WorkerLink, _greet
from peen.worker.main import EXIT_LINK_LOST, EXIT_OK, EXIT_REFUSED, _Worker

KILLED: Final = -9
JOB_SEED: Final = 1_000_000_000
"""Ids of jobs are drawn apart from those of everything else."""


class SimProcess:
    """One worker process. Killed, it does nothing more that anybody could notice."""

    def __init__(self, pid: int, document: LaunchDocument, wire: Wire, programs: SimPrograms) -> None:
        self.pid, self.start_time, self.document, self.wire = pid, pid, document, wire
        self.programs = programs
        self.scope = trio.CancelScope()
        self.exited = trio.Event()
        self.status = KILLED
        self.is_ghost = False
        """Whether it only seems to end when it is killed."""

    async def wait(self) -> int:
        await self.exited.wait()
        return self.status

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        if self.is_ghost:
            for program in self.programs.started:
                program.is_haunted = True
            self.exited.set()
            return
        self.wire.cut()  # first, so that nothing of its unwinding gets out
        self.programs.kill_all()
        self.scope.cancel()


class SimSpace:
    """The processes of one host; they die with their controller. Implements `Space`."""

    name = "control"

    def __init__(
        self, nursery: trio.Nursery, faults: PlannedFaults, upstream: SimUpstream, ledger: Ledger, seed: int
    ) -> None:
        self._nursery, self._faults, self._upstream, self._ledger = nursery, faults, upstream, ledger
        self._seed = seed
        self._pids = count(20_001)
        self.processes: list[SimProcess] = []
        self.broken: list[BaseException] = []
        """What came out of workers: faults of the program."""
        self.doors: dict[str, SimDoor] = {}
        self.on_replace: Callable[[SimProcess], None] = lambda process: process.kill()
        self.worker: type[SimWorker] = SimWorker
        """What processes run that are launched from now on."""

    async def launch(self, document: LaunchDocument, _log_context: Mapping[str, str]) -> WorkerProcess:
        await trio.lowlevel.checkpoint()
        number = len(self.processes) + 1
        wire = Wire(random.Random(self._seed * 1000 + number))
        programs = SimPrograms(self._nursery, self._ledger, self._pids)
        process = SimProcess(1000 + number, document, wire, programs)
        faults = self._faults
        wire.controller.sending = faults.cuts_down
        wire.worker.half = wire.controller.half = bool(faults.plan.half)
        wire.worker.sending = partial(self._sending, process)
        self.processes.append(process)
        self._nursery.start_soon(self._live, process)
        return process

    @property
    def programs(self) -> list[SimProgram]:
        """Every command that was ever started here."""
        return [program for process in self.processes for program in process.programs.started]

    def living(self, session_id: str | None = None) -> list[SimProcess]:
        """Processes that have not ended, of one session or of all."""
        return [
            each for each in self.processes
            if not each.exited.is_set() and session_id in (None, each.document.session_id)
        ]  # fmt: skip

    def kill_all(self) -> None:
        for process in self.living():
            process.is_ghost = False  # the end of the host spares nobody
            process.kill()

    def _sending(self, process: SimProcess) -> bool:
        is_cut = self._faults.cuts_up()
        if self._faults.replaces():
            self.on_replace(process)
        return is_cut

    async def _live(self, process: SimProcess) -> None:
        try:
            with process.scope:
                process.status = await self._work(process)
        except Exception as fault:
            self._broke(process, fault)
        except BaseExceptionGroup as group:
            faults, rest = group.split(Exception)
            if faults is not None:
                self._broke(process, faults)
            if rest is not None:
                raise rest from None
        finally:
            if not process.wire.is_cut:
                process.wire.worker.inner.send_stream.close()
            process.programs.kill_all()
            process.exited.set()

    def _broke(self, process: SimProcess, fault: BaseException) -> None:
        process.status = 1
        self.broken.append(fault)
        process.wire.cut()

    async def _work(self, process: SimProcess) -> int:
        document = process.document
        door = self.doors[document.generation_id]
        await door.knock(process.wire)
        seed = self._seed * 1000 + 500 + process.pid
        worker = self.worker(document, self._upstream, self._ledger, process.programs, seed=seed)
        frames = FrameStream(process.wire.worker)
        try:
            ack = await _greet(frames, document)
        except WorkerFailed:
            return EXIT_REFUSED
        link = ControllerLink(frames, ack, worker.obey)
        await worker.serve(link)
        return EXIT_OK if worker.told_to_stop else EXIT_LINK_LOST


class SimWorker(_Worker):
    """The real worker with the models and tools of the simulation."""

    def __init__(
        self, document: LaunchDocument, upstream: SimUpstream, ledger: Ledger, programs: SimPrograms, *, seed: int
    ) -> None:
        super().__init__(document)
        self._upstream, self._ledger, self._programs, self._seed = upstream, ledger, programs, seed

    def _keep_jobs(self, link: ControllerLink, nursery: trio.Nursery) -> Jobs:
        return Jobs(link, nursery, ClockEntropy(self._seed + JOB_SEED), start=self._programs.start)

    def _tools(self) -> Tools:
        return Tools([SimLook(self._ledger), SimChange(self._ledger)])

    async def _furnish(self, link: ControllerLink) -> Workshop:
        models = Models([self._upstream])
        await models.discover()
        workspace = Path(self._document.workspace)
        return Workshop(
            session_id=self._document.session_id, workspace=workspace, home=workspace,
            settings=self._document.settings, models=models,
            tools=self._tools(), command_environment={}, jobs=self._jobs,
            journal=LinkJournal(link, before_commit=None if self._jobs is None else self._jobs.send_ends),
            entropy=ClockEntropy(self._seed),
        )  # fmt: skip


class CommandingWorker(SimWorker):
    """It also has the tools for commands."""

    def _tools(self) -> Tools:
        of_jobs: list[Tool[Any]] = [RunCommand(), ListJobs(), ReadJobOutput(), WaitJob(), SignalJob()]
        return Tools([SimLook(self._ledger), SimChange(self._ledger), *of_jobs])


class SimDoor(Door):
    """The door of a generation, in memory: whoever knocks shows the same credential as at the real one."""

    def __init__(self, path: Path, expected: Expected, *, hello_s: float) -> None:
        super().__init__(path, expected, hello_s=hello_s)
        self._knocking, self._knocks = trio.open_memory_channel[Wire](1)

    async def knock(self, wire: Wire) -> None:
        await self._knocking.send(wire)

    async def open(self) -> None:
        await trio.lowlevel.checkpoint()

    async def serve(self, carry: Callable[[FrameStream], Awaitable[None]]) -> None:
        async for wire in self._knocks:
            frames = await self._meet(wire.controller)  # type: ignore[arg-type]
            if frames is not None:
                await carry(frames)


class SimGeneration(GenerationActor):
    """A generation whose door is in memory."""

    space: SimSpace

    def _door(self, digest: bytes) -> Door:
        place = self.place
        door = SimDoor(
            Path("/run/peen") / place.session_id / "worker.sock",
            Expected(place.session_id, self.generation_id, place.agent_space, place.workspace, digest),
            hello_s=self._limits.hello_s,
        )
        self.space.doors[self.generation_id] = door
        return door


class SimSupervisor(Supervisor):
    """The real supervisor; its generations have doors in memory."""

    def _start(self, place: Placement) -> GenerationActor:
        assert self._nursery is not None
        space = self._world.space
        assert isinstance(space, SimSpace)
        actor = SimGeneration(place, self._world)
        actor.space = space
        self._actors[place.session_id] = actor
        self._nursery.start_soon(self._run, actor)
        return actor


class SimWorkers:
    """The supervisor as a session sees it. Implements `Workers`; the workspaces of a simulation are names only."""

    def __init__(self, database: Database, supervisor: Supervisor) -> None:
        self._database = database
        self._supervisor = supervisor
        self.link_of, self.stop = supervisor.link_of, supervisor.stop
        self.give_up, self.settled = supervisor.give_up, supervisor.settled

    async def ensure(self, session_no: SessionNo) -> WorkerLink:
        row = sessions.by_no(self._database.reader, session_no)
        assert row is not None, "a worker is started for a session that exists"
        return await self._supervisor.ensure(Placement(row.uuid, row.workspace, row.agent_space))
