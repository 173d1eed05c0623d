"""`control-core`: the store, the models, the agent space and its workers, the sessions. It creates no session."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Final
from uuid import UUID

import structlog
import trio

from peen.actors import supervised
from peen.control.catalogue import Catalogue, ModelledSessions, NamingLink
from peen.control.identity import state_id
from peen.entropy import AwakeClock, Entropy
from peen.errors import LinkLost
from peen.feed.fanout import Fanout
from peen.feed.pump import FeedPump
from peen.hub.api import Api
from peen.ids import SessionNo
from peen.model.price import Prices, picos
from peen.model.registry import Models
from peen.model.route import preloads
from peen.session.actor import Household, Link
from peen.session.ending import interrupted
from peen.session.history import RunHistory
from peen.session.outputroom import OutputRoom
from peen.session.records import GenerationRecords
from peen.session.recovery import recover, unended
from peen.session.registry import Sessions
from peen.session.spending import Terms
from peen.session.workspace import WorkspacePolicy
from peen.settings import Settings
from peen.space.control import ControlSpace
from peen.space.nannystart import NannyProcess
from peen.space.proc import sweep
from peen.space.supervise import Placement, Supervisor
from peen.store import deletion, sessions
from peen.store.blobs.rows import Blobs
from peen.store.database import Database
from peen.store.opening import open_database
from peen.store.reserve import RESERVE_BYTES
from peen.store.sessions import SessionRow
from peen.wire.jobcalls import JobSignalled, JobSignalName, SignalJob
from peen.worker.link import CallHandler, WorkerLink

log = structlog.get_logger(__name__)

DATABASE_NAME: Final = "peen.db"
WORKFLOWS_NAME: Final = "workflows.db"
NO_MODEL: Final = "?"
"""What workers are told is the default model if none is known; it names none, so turns must."""
SIGNAL_S: Final = 5.0
"""Seconds in which a worker must say that it has begun to end a job."""
STOPPED_BY_OPERATOR: Final = "the controller was stopped before the turn ended"


class StopClock:
    """When an orderly stop must be over. Before it begins there is no deadline."""

    def __init__(self) -> None:
        self.deadline = math.inf
        self._begun = trio.Event()

    def begin(self, within_s: float) -> None:
        """The stop begins now; only the first call counts."""
        self.deadline = min(self.deadline, trio.current_time() + within_s)
        self._begun.set()

    async def over(self) -> None:
        """Wait until a stop has begun and its time has passed."""
        await self._begun.wait()  # no deadline: most controllers run for long
        await trio.sleep_until(self.deadline)

    def scope(self) -> trio.CancelScope:
        """For cleanup: shielded, and over at the deadline."""
        return trio.CancelScope(shield=True, deadline=self.deadline)


@dataclass(frozen=True, slots=True)
class Core:
    """What control-core offers to control-api and to a program that hosts it."""

    database: Database
    fanout: Fanout
    pump: FeedPump
    sessions: Sessions
    supervisor: Supervisor
    api: Api
    unrecorded: list[str]
    """Turns whose end the stop could not store, which the next start does. Known once control-core has stopped."""

    async def end_turns(self) -> None:
        """First part of an orderly stop: no new work, running turns end as interrupted, their frames go out."""
        await self.sessions.close(interrupted("shutdown", STOPPED_BY_OPERATOR))
        self.pump.flush()


@asynccontextmanager
async def control_core(
    settings: Settings,
    *,
    environ: Mapping[str, str],
    nanny: NannyProcess,
    entropy: Entropy,
    stop: StopClock,
    reserve_bytes: int = RESERVE_BYTES,
) -> AsyncIterator[Core]:
    """Run control-core; the body runs when it is ready. The caller holds the lock of the state directory.

    Raises: StorageError, ConfigurationInvalid, and then nothing of this is left behind.
    """
    identity = state_id(settings)
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(_cancelled_at_exit())
        space = ControlSpace(
            state_id=identity,
            environment=settings.child_environment(environ),
            nanny=nanny,
            preload=preloads(settings.upstreams, environ),
        )
        await nursery.start(space.run)
        database = await stack.enter_async_context(
            open_database(
                settings.state_dir / DATABASE_NAME,
                migrations=resources.files("peen.store") / "migrations",
                name="peen",
                entropy=entropy,
                reserve_bytes=reserve_bytes,
            )
        )
        unrecorded: list[str] = []
        stack.callback(_name_unrecorded, database, unrecorded)
        patience = await stack.enter_async_context(_cancelled_at_exit())
        patience.start_soon(wait_for_space, database, stop)
        await _clear_the_past(database, space, identity, entropy)
        models = Models.build(settings.upstreams, environ)
        await models.discover()
        summarizer = settings.compaction_model if settings.compaction_mode == "summarize" else None
        catalogue = Catalogue(models, settings.default_model, summarizer=summarizer)
        running = await stack.enter_async_context(_cancelled_at_exit())
        core = await _assemble(settings, database, space, catalogue, entropy, running, unrecorded)
        if settings.max_session_cost_usd:
            _warn_of_uncounted(core.api.terms, dict.fromkeys((catalogue.default, summarizer or "")))
        if admitted := await core.sessions.begin_admitted():
            log.info("admitted work goes on", sessions=admitted)
        if settings.crash_recovery == "resume":
            resumed = await core.sessions.resume_after_crash()
            log.info("interrupted work goes on", executions=resumed)
        log.info("control-core ready", default_model=catalogue.default, models=len(catalogue.listed))
        try:
            yield core
        finally:
            stop.begin(settings.shutdown_timeout_ms / 1000)
            space.wake()
            with stop.scope():
                await core.end_turns()
                await core.supervisor.stop_all("the controller stops")
                core.pump.flush()


async def _assemble(
    settings: Settings,
    database: Database,
    space: ControlSpace,
    catalogue: Catalogue,
    entropy: Entropy,
    nursery: trio.Nursery,
    unrecorded: list[str],
) -> Core:
    fanout = Fanout()
    pump = FeedPump(database.reader, fanout)
    pump.attach(database)
    clock_ms = AwakeClock(entropy).now_ms
    history = RunHistory(settings.state_dir / WORKFLOWS_NAME, database, entropy)
    blobs = await Blobs.open(database)
    terms = Terms(Prices(settings.upstreams), settings.max_session_tokens, picos(settings.max_session_cost_usd))
    room = OutputRoom(
        database.path,
        min_free_bytes=settings.job_output_min_free_bytes,
        max_job_bytes=settings.max_job_output_bytes,
        now_s=entropy.monotonic_s,
    )
    records = GenerationRecords(
        database, blobs, entropy, clock_ms=clock_ms, on_run=history.note_execution, terms=terms, room=room
    )

    def calls(_session_id: str, generation_id: str) -> CallHandler:
        return records.calls(generation_id, registry.turn_ended).handle

    supervisor = Supervisor(
        space,
        records,
        socket_root=settings.worker_socket_dir,
        config_directory=settings.config_dir,
        state_id=state_id(settings),
        settings=settings.worker_settings(catalogue.default or NO_MODEL),
        entropy=entropy,
        calls=calls,
        on_lost=_note_lost,
    )
    policy = WorkspacePolicy(settings.workspace_root, settings.state_dir, settings.config_dir)
    household = Household(
        database=database,
        blobs=blobs,
        pump=pump,
        workers=_SessionWorkers(database, supervisor, policy.check_again, catalogue),
        entropy=entropy,
        check_model=catalogue.check,
        takes_images=catalogue.takes_images,
        default_model=catalogue.default,
        queue_capacity=settings.max_queued_user_messages,
        turn_limit=trio.CapacityLimiter(settings.max_concurrent_turns),
        worker_idle_s=settings.worker_idle_timeout_ms / 1000,
        clock_ms=clock_ms,
        on_end=history.note_turn,
    )
    registry = ModelledSessions(household, catalogue)
    for start in (pump.run, supervisor.run, registry.run):
        await nursery.start(start)
    api = Api(
        database=database,
        blobs=blobs,
        policy=policy,
        models=catalogue.listed,
        configured_default=catalogue.default,
        root_agent=settings.agent,
        agent_space=space.name,
        max_context_tokens=settings.max_context_tokens,
        max_summary_bytes=settings.max_event_summary_bytes,
        max_data_bytes=settings.max_event_data_bytes,
        stop=registry.stop,
        resume=registry.resume,
        continue_input=registry.continue_input,
        signal_job=partial(_signal_job, supervisor),
        release=partial(_release, registry, supervisor, history),
        entropy=entropy,
        runs=history.of,
        terms=terms,
    )
    nursery.start_soon(partial(supervised, history.run, name="history of runs"))
    nursery.start_soon(partial(supervised, partial(deletion.finish, database), name="deletions left half-done"))
    return Core(database, fanout, pump, registry, supervisor, api, unrecorded)


def _warn_of_uncounted(terms: Terms, models: Iterable[str]) -> None:
    """Say which of the models that are used without being named cannot reach the limit of PEEN_MAX_SESSION_COST_USD."""
    for model in models:
        if warning := terms.uncounted(model):
            log.warning(warning, limit="PEEN_MAX_SESSION_COST_USD", model=model)


async def _clear_the_past(database: Database, space: ControlSpace, identity: str, entropy: Entropy) -> None:
    """Nothing of a controller that crashed goes on: its processes are ended first, then its records."""
    spared = {pid for pid in (space.nanny_pid,) if pid is not None}
    killed = await trio.to_thread.run_sync(partial(sweep, identity, keep=spared))
    if killed:
        log.warning("processes of a crashed controller were ended", count=len(killed))
    await recover(database, entropy)


async def wait_for_space(database: Database, stop: StopClock) -> None:
    """On a full disk the ends of turns wait until there is room, but not longer than a stop may take.

    A wait for the store cannot be cancelled: without this it would outlast every deadline. A start that is cancelled
    is not waited for at all.
    """
    try:
        await stop.over()
    finally:
        database.give_up_waiting()


def _name_unrecorded(database: Database, found: list[str]) -> None:
    """Nothing writes any more: say which turns have no recorded end, and put their ids in `found`."""
    found += [str(UUID(bytes=turn_id)) for _, turn_id in unended(database.reader)]
    if found:
        log.error("the ends of turns are not stored; the next start records them", turns=found)


async def _release(registry: Sessions, supervisor: Supervisor, history: RunHistory, session: SessionRow) -> None:
    """Nothing lives for this session any more when this returns."""
    history.forget(session.no)
    await registry.forget(session.no)
    await supervisor.stop(session.uuid, "the session is deleted")


async def _signal_job(supervisor: Supervisor, session_id: str, job_id: str, signal: JobSignalName) -> bool:
    """Have the session's worker begin to end a job; False if there is none, or it does not answer."""
    link = supervisor.link_of(session_id)
    if link is None:
        return False
    with trio.move_on_after(SIGNAL_S):
        try:
            return (await link.command(SignalJob(job_id=job_id, signal=signal), JobSignalled)).signalled
        except LinkLost:
            return False  # whatever it ran ends with it
    log.warning("a worker did not answer in time", session_id=session_id, command="signalJob")
    return False


class _SessionWorkers:
    """The workers as a session sees them."""

    def __init__(
        self, database: Database, supervisor: Supervisor, check_workspace: Callable[[str], None], catalogue: Catalogue
    ) -> None:
        self._database, self._supervisor, self._check_workspace = database, supervisor, check_workspace
        self._catalogue = catalogue

    async def ensure(self, session_no: SessionNo) -> Link:
        row = sessions.by_no(self._database.reader, session_no)
        assert row is not None, "a worker is started for a session that exists"
        self._check_workspace(row.workspace)  # hours may have passed since the session was opened
        link = await self._supervisor.ensure(Placement(row.uuid, row.workspace, row.agent_space))
        return NamingLink(link, self._catalogue)

    async def stop(self, session_id: str, reason: str) -> None:
        await self._supervisor.stop(session_id, reason)

    async def settled(self, session_id: str) -> None:
        await self._supervisor.settled(session_id)

    def link_of(self, session_id: str) -> WorkerLink | None:
        return self._supervisor.link_of(session_id)

    async def give_up(self, session_id: str, reason: str) -> None:
        await self._supervisor.give_up(session_id, reason)


async def _note_lost(session_id: str, generation_id: str, reason: str) -> None:
    # The turns that it ran hear of it through their own command; here it is only said aloud.
    log.warning("worker lost", session_id=session_id, generation_id=generation_id, reason=reason)
    await trio.lowlevel.checkpoint()


@asynccontextmanager
async def _cancelled_at_exit() -> AsyncIterator[trio.Nursery]:
    """A nursery for actors that live as long as the block."""
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        finally:
            nursery.cancel_scope.cancel()
