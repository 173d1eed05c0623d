"""The sessions of one controller: actors that start on first use."""

from __future__ import annotations

from functools import partial
from typing import Final
from uuid import UUID

import structlog
import trio

from peen.actors import supervised
from peen.entropy import monotonic_ms
from peen.errors import Refused, SessionBusy, SessionNotFound, StorageError
from peen.ids import SessionNo
from peen.session.actor import Household, SessionActor
from peen.session.ending import Ending, interrupted
from peen.session.leases import CAUSE, LeaseWatch
from peen.session.requests import ResumeRequest
from peen.session.state import Origin
from peen.session.writer import TurnEnd
from peen.store import admissions, executions, sessions
from peen.wire.client import MessageSend

log = structlog.get_logger(__name__)

INTERRUPTED: Final = ("interrupted", "shutdown")
"""Pause reasons of work that nobody paused on purpose."""


class Sessions:
    """Routes messages to session actors.

    Owns: the nursery of the actors. Ends: when its owner cancels it, after `close`.
    """

    def __init__(self, household: Household) -> None:
        self._house = household
        self._actors: dict[SessionNo, SessionActor] = {}
        self._ended: dict[SessionNo, trio.Event] = {}
        self._nursery: trio.Nursery | None = None
        self._closing = False
        self._leases = LeaseWatch(
            household.database,
            lost=self.turn_lost,
            clock_ms=household.clock_ms or partial(monotonic_ms, household.entropy),
            now_ms=household.entropy.now_ms,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await self._leases.run()

    async def submit(self, message: MessageSend, origin: Origin) -> None:
        """Hand a message to its session; waits while that session's inbox is full.

        Raises: SessionNotFound for an unknown session, SessionBusy while the controller stops; nothing is stored.
        """
        session = sessions.by_id(self._house.database.reader, UUID(message.session_id).bytes)
        if session is None:
            raise SessionNotFound("metadata.sessionId: no such session; POST /api/v1/sessions/open opens one")
        if self._closing:
            raise SessionBusy("the controller is stopping; send the message again when it runs")
        try:
            await self._actor(session.no, session.uuid).submit(message, origin)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise SessionNotFound("metadata.sessionId: this session was deleted") from None

    def turn_ended(self, end: TurnEnd, session_no: SessionNo) -> None:
        """A worker committed the end of a turn."""
        actor = self._actors.get(session_no)
        if actor is not None:
            actor.turn_ended(end)

    async def turn_lost(self, session_no: SessionNo, turn_id: bytes) -> None:
        """A turn's worker has abandoned it, and can write nothing to it any more: end it, and give up the worker."""
        session = sessions.by_no(self._house.database.reader, session_no)
        assert session is not None, "a session with a running turn is not deleted"
        await self._actor(session_no, session.uuid).turn_lost(turn_id, interrupted("interrupted", CAUSE))

    async def stop(self, session_id: str) -> bool:
        """Stop a session; True if a turn was running and was told to end. Raises: SessionNotFound."""
        return await self._known(session_id).stop()

    async def resume(self, session_id: str, request: ResumeRequest) -> None:
        """Go on with a paused execution. Raises: SessionNotFound, NotFound, Conflict, SessionBusy."""
        await self._known(session_id).resume(request)

    async def continue_input(self, session_id: str, request_id: str, stop_revision: int) -> None:
        """Let a message that a Stop left waiting open a turn. Raises: as `resume`."""
        await self._known(session_id).continue_input(request_id, stop_revision)

    async def begin_admitted(self) -> int:
        """Go on with what somebody had admitted before the controller ended: one in each session, others behind it.

        Returns the number of sessions. What the store refuses is logged and stays admitted.
        """
        waiting = admissions.waiting_sessions(self._house.database.reader)
        for no in waiting:
            session = sessions.by_no(self._house.database.reader, no)
            assert session is not None
            await supervised(self._actor(no, session.uuid).begin_admitted, name=f"admitted work of session {no}")
        return len(waiting)

    async def resume_after_crash(self) -> int:
        """Go on with everything that a crash or a shutdown interrupted, and with nothing that a Stop paused."""
        paused = executions.paused_roots(self._house.database.reader)
        interrupted = [row for row in paused if row.pause_reason in INTERRUPTED]
        for row in interrupted:
            session = sessions.by_no(self._house.database.reader, row.session_no)
            assert session is not None
            request = ResumeRequest(str(UUID(bytes=row.id)), row.control_revision, "recovery", automatic=True)
            try:
                await self.resume(session.uuid, request)
            except Refused as refused:
                log.error("interrupted work cannot go on by itself", session_id=session.uuid, reason=refused.message)
        return len(interrupted)

    async def forget(self, session_no: SessionNo) -> None:
        """End the actor of a session that is being deleted. What waits in its inbox is answered first."""
        actor = self._actors.get(session_no)
        if actor is None:
            await trio.lowlevel.checkpoint()
            return
        actor.address.close()
        # No deadline: what waits is refused, each in one transaction, and nothing new comes.
        await self._ended[session_no].wait()

    def _known(self, session_id: str) -> SessionActor:
        session = sessions.by_id(self._house.database.reader, UUID(session_id).bytes)
        if session is None:
            raise SessionNotFound("no such session; POST /api/v1/sessions/open opens one")
        return self._actor(session.no, session.uuid)

    async def close(self, ending: Ending) -> None:
        """Accept nothing more and end every running turn with `ending`; each is tried, whatever happens to others.

        One that the store does not take is left as it is: the next start records its end.
        """
        self._closing = True
        async with trio.open_nursery() as nursery:
            for actor in self._actors.values():
                end = partial(actor.interrupt, ending)
                nursery.start_soon(partial(supervised, end, name="orderly end of a turn", expected=(StorageError,)))

    def _actor(self, no: SessionNo, session_id: str) -> SessionActor:
        actor = self._actors.get(no)
        if actor is None:
            assert self._nursery is not None, "sessions are served by a running registry"
            actor = self._actors[no] = SessionActor(no, session_id, self._house)
            self._ended[no] = trio.Event()
            self._nursery.start_soon(self._live, no, actor, name=f"session {session_id}")
        return actor

    async def _live(self, no: SessionNo, actor: SessionActor) -> None:
        try:
            await supervised(partial(_serve, actor), name=f"session actor {no}")
        finally:
            del self._actors[no]  # the next message starts a new one
            self._ended.pop(no).set()


async def _serve(actor: SessionActor) -> None:
    """Run an actor; one whose address was closed ends when it has taken everything that waited."""
    try:
        await actor.run()
    except* trio.EndOfChannel:
        pass
