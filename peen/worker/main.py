"""What runs inside a session's worker process: one link to the controller, and the turns it is told to run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import structlog
import trio

from peen.entropy import SystemEntropy
from peen.errors import PeenError, WorkerFailed
from peen.job.room import Jobs
from peen.log import configure_logging
from peen.model.registry import Models
from peen.patience import CLEANUP_S
from peen.settings.environment import command_environment
from peen.tool.children import CHILDREN
from peen.tool.registry import standard_tools
from peen.turn.actor import TurnActor
from peen.turn.workshop import Workshop
from peen.wire.jobcalls import JobSignalled, SignalJob
from peen.wire.launch import LaunchDocument
from peen.wire.worker import CancelTurns, ResumeTurn, RunTurn, ShutDown, Shutdown, TurnEnded, TurnsCancelled
from peen.wire.workerstruct import WorkerStruct
from peen.worker.journal import LinkJournal
from peen.worker.link import ControllerLink, connect
from peen.worker.retained import LinkWork

log = structlog.get_logger(__name__)

EXIT_OK: Final = 0
EXIT_REFUSED: Final = 2
EXIT_LINK_LOST: Final = 3


def worker_main(document: LaunchDocument) -> int:
    """Run the worker until it is told to stop or loses its link; the exit code of the process."""
    sys.setswitchinterval(0.0002)
    # One line a record on stdout: the controller relays it into its own log, with session and generation.
    with configure_logging("info", "json", False, None, 0, SystemEntropy(), stream=sys.stdout):
        return trio.run(_run, document)


async def _run(document: LaunchDocument) -> int:
    async with trio.open_nursery() as nursery:
        await nursery.start(CHILDREN.reap)  # goes on until the last command has been ended
        code = await _serve(document)
        nursery.cancel_scope.cancel()
    return code


async def _serve(document: LaunchDocument) -> int:
    worker = _Worker(document)
    try:
        link = await connect(document, worker.obey)
    except WorkerFailed as refused:
        log.error("worker refused", reason=str(refused))
        return EXIT_REFUSED
    await worker.serve(link)
    return EXIT_OK if worker.told_to_stop else EXIT_LINK_LOST


class _Worker:
    """Owns: the link, and a nursery of turns and jobs. Ends: on `shutdown`, or when the link is lost."""

    def __init__(self, document: LaunchDocument) -> None:
        self._document = document
        self._shop: Workshop | None = None
        self._jobs: Jobs | None = None
        self._ready = trio.Event()
        self._turns: set[trio.CancelScope] = set()
        self._quiet = trio.Event()
        self.told_to_stop = False

    async def serve(self, link: ControllerLink) -> None:
        """Carry the link until it ends; every command has been ended when this returns."""
        async with trio.open_nursery() as nursery:
            # Jobs outlive turns: they are tasks beside them.
            self._jobs = self._keep_jobs(link, nursery)
            self._shop = await self._furnish(link)
            nursery.start_soon(self._carry, link, nursery)
            self._ready.set()

    async def _carry(self, link: ControllerLink, nursery: trio.Nursery) -> None:
        await link.run(nursery)
        # A worker without its link must not go on working: what it did could not be recorded.
        nursery.cancel_scope.deadline = trio.current_time() + CLEANUP_S
        self._stop_turns()
        nursery.start_soon(self._end_jobs)

    async def _end_jobs(self) -> None:
        if self._jobs is not None:
            await self._jobs.end_all()

    def _keep_jobs(self, link: ControllerLink, nursery: trio.Nursery) -> Jobs:
        return Jobs(link, nursery, SystemEntropy())

    async def _furnish(self, link: ControllerLink) -> Workshop:
        settings = self._document.settings
        models = Models.build(settings.upstreams, os.environ)
        await models.discover(ask_providers=False)
        return Workshop(
            session_id=self._document.session_id,
            workspace=Path(self._document.workspace),
            home=Path.home(),
            settings=settings,
            models=models,
            tools=standard_tools(),
            command_environment=command_environment(os.environ, settings.upstreams),
            journal=LinkJournal(link, before_commit=None if self._jobs is None else self._jobs.send_ends),
            work=LinkWork(link),
            jobs=self._jobs,
            entropy=SystemEntropy(),
            config_directory=Path(self._document.config_directory),
        )

    async def obey(self, method: str, request: WorkerStruct) -> WorkerStruct:
        """Carry out one command of the controller, in a task of its own."""
        match request:
            case RunTurn() | ResumeTurn():
                await self._ready.wait()  # bounded by the start of this worker
                return await self._run_turn(request)
            case CancelTurns():
                self._stop_turns()
                while self._turns:  # the controller bounds this wait, and kills a worker that does not get quiet
                    await self._quiet.wait()
                return TurnsCancelled()
            case Shutdown():
                self.told_to_stop = True
                self._stop_turns()
                await self._end_jobs()  # bounded; after this the link is closed, and nothing more is recorded
                return ShutDown()
            case SignalJob(job_id=job_id, signal=signal):
                return JobSignalled(signalled=self._jobs is not None and self._jobs.signal(job_id, signal))
            case _:
                raise PeenError(f"unknown command {method}")

    async def _run_turn(self, request: RunTurn | ResumeTurn) -> TurnEnded:
        assert self._shop is not None
        actor = TurnActor(request, self._shop)
        with trio.CancelScope() as scope:
            self._turns.add(scope)
            try:
                await actor.run()
            finally:
                self._turns.discard(scope)
                if not self._turns:
                    self._quiet.set()
                    self._quiet = trio.Event()
        return TurnEnded(state="cancelled" if scope.cancelled_caught else actor.state)

    def _stop_turns(self) -> None:
        # The cause is recorded by the controller; here the scopes only carry it out.
        for scope in self._turns:
            scope.cancel()
