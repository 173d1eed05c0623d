"""The sessions of one controller: actors that start on first use."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import structlog
import trio

from peen.actors import supervised
from peen.errors import SessionBusy, SessionNotFound
from peen.ids import SessionNo
from peen.session.actor import Household, SessionActor
from peen.session.ending import Ending
from peen.session.state import Origin, Submission
from peen.session.writes import TurnEnd
from peen.store import sessions
from peen.wire.client import MessageSend

log = structlog.get_logger(__name__)


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

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

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
            await self._actor(session.no, session.uuid).address.send(Submission(message, origin))
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise SessionNotFound("metadata.sessionId: this session was deleted") from None

    def turn_ended(self, end: TurnEnd, session_no: SessionNo) -> None:
        """A worker committed the end of a turn."""
        actor = self._actors.get(session_no)
        if actor is not None:
            actor.turn_ended(end)

    async def stop(self, session_id: str) -> bool:
        """Stop a session; True if a turn was running and was told to end. Raises: SessionNotFound."""
        session = sessions.by_id(self._house.database.reader, UUID(session_id).bytes)
        if session is None:
            raise SessionNotFound("no such session; POST /api/v1/sessions/open opens one")
        return await self._actor(session.no, session.uuid).stop()

    async def forget(self, session_no: SessionNo) -> None:
        """End the actor of a session that is being deleted. What waits in its inbox is answered first."""
        actor = self._actors.get(session_no)
        if actor is None:
            await trio.lowlevel.checkpoint()
            return
        actor.address.close()
        # No deadline: what waits is refused, each in one transaction, and nothing new comes.
        await self._ended[session_no].wait()

    async def close(self, ending: Ending) -> None:
        """Accept nothing more and end every running turn with `ending`; each is tried, whatever happens to others."""
        self._closing = True
        async with trio.open_nursery() as nursery:
            for actor in self._actors.values():
                nursery.start_soon(partial(supervised, partial(actor.interrupt, ending), name="orderly end of a turn"))

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
