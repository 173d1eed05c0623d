"""Keeps at most one worker a session, started when it is first needed."""

from __future__ import annotations

from pathlib import Path

import trio

from peen.actors import supervised
from peen.entropy import Entropy
from peen.errors import AgentSpaceNotAllowed, WorkerFailed
from peen.wire.launch import WorkerSettings
from peen.worker.link import WorkerLink

from .control import Space
from .generation import GenerationActor
from .terms import CallsOf, GenerationStore, OnLost, World
from .terms import Limits as Limits
from .terms import Placement as Placement


class Supervisor:
    """The generations of all sessions.

    Owns:  every generation, each a task of the nursery that `run` opens. Borrows: the space and the store.
    Ends:  with its owner; call `stop_all` first, so that workers end in order and are recorded as stopped.
    """

    def __init__(
        self,
        space: Space,
        store: GenerationStore,
        *,
        socket_root: Path,
        config_directory: Path,
        state_id: str,
        settings: WorkerSettings,
        entropy: Entropy,
        calls: CallsOf,
        on_lost: OnLost,
        limits: Limits | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._world = World(
            space=space,
            store=store,
            socket_root=socket_root,
            config_directory=config_directory,
            state_id=state_id,
            settings=settings,
            entropy=entropy,
            calls=calls,
            on_lost=on_lost,
            limits=self._limits,
        )
        self._actors: dict[str, GenerationActor] = {}
        self._nursery: trio.Nursery | None = None
        self._closing = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the generations until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    async def ensure(self, place: Placement) -> WorkerLink:
        """The link to the session's worker, which is started if there is none.

        One that runs in another workspace or agent space is stopped first; one that is ending is waited for, since
        two generations never live at once. Cancelled: a start that is under way goes on.
        Raises: WorkerFailed; AgentSpaceNotAllowed.
        """
        if place.agent_space != self._world.space.name:
            raise AgentSpaceNotAllowed(f"agent space {place.agent_space} is not offered here")
        await trio.lowlevel.checkpoint()
        while True:
            actor = self._current(place.session_id) or self._start(place)
            if actor.place != place:
                actor.stop("the session moved to another place")
            if not actor.leaving:
                await actor.settled.wait()  # no deadline here: the generation has its own
                if actor.link is None:
                    raise WorkerFailed(actor.ending.detail if actor.ending else "the worker did not start")
                if not actor.leaving:
                    return actor.link
            await self._wait_ended(actor)

    def generation_of(self, session_id: str) -> str | None:
        """Id of the session's live generation, ready or not; None if it has no worker."""
        actor = self._current(session_id)
        return None if actor is None else actor.generation_id

    async def stop(self, session_id: str, reason: str) -> None:
        """End the session's worker in order, by force if need be; returns when it is gone and recorded.

        Nothing happens if there is none. How it ended is in the record, never an exception here.
        """
        actor = self._current(session_id)
        if actor is None:
            await trio.lowlevel.checkpoint()
            return
        actor.stop(reason)
        await actor.ended.wait()  # no deadline here: each step of the generation's end has its own

    def link_of(self, session_id: str) -> WorkerLink | None:
        """The link of the session's ready worker, if there is one that takes commands."""
        actor = self._current(session_id)
        return None if actor is None or actor.leaving else actor.link

    async def give_up(self, session_id: str, reason: str) -> None:
        """Kill the session's worker and everything below it; returns when they are gone and recorded."""
        actor = self._current(session_id)
        if actor is not None:
            actor.give_up(reason)
            await self._wait_ended(actor)

    async def settled(self, session_id: str) -> None:
        """Return once a worker that was lost or is being stopped is gone and recorded; at once if none is."""
        actor = self._current(session_id)
        if actor is not None and actor.leaving:
            await self._wait_ended(actor)

    async def stop_all(self, reason: str) -> None:
        """End every worker, all at the same time, and start none any more."""
        self._closing = True
        async with trio.open_nursery() as nursery:
            for session_id in list(self._actors):
                nursery.start_soon(self.stop, session_id, reason)

    def _current(self, session_id: str) -> GenerationActor | None:
        actor = self._actors.get(session_id)
        return None if actor is None or actor.ended.is_set() else actor

    def _start(self, place: Placement) -> GenerationActor:
        if self._closing:
            raise WorkerFailed("no worker is started any more: Peen is stopping")
        assert self._nursery is not None, "the supervisor does not run"
        actor = self._actors[place.session_id] = GenerationActor(place, self._world)
        self._nursery.start_soon(self._run, actor)
        return actor

    async def _run(self, actor: GenerationActor) -> None:
        try:
            await supervised(actor.run, name=f"worker generation {actor.generation_id}")
        finally:
            if self._actors.get(actor.place.session_id) is actor:
                del self._actors[actor.place.session_id]

    async def _wait_ended(self, actor: GenerationActor) -> None:
        limits = self._limits
        patience_s = limits.shutdown_s + limits.term_s + 2 * limits.kill_s
        with trio.move_on_after(patience_s):
            await actor.ended.wait()
            return
        raise WorkerFailed(f"the session's last worker has not ended within {patience_s:g} s")
