"""One conversation: messages come in by order of receipt, one turn at a time goes out to the session's worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol
from uuid import UUID

import structlog
import trio

from peen.actors import supervised
from peen.entropy import Entropy
from peen.errors import LinkLost, PeenError, Refused, StorageError, ValidationFailed, WorkerFailed
from peen.feed.pump import FeedPump
from peen.ids import SessionNo
from peen.session import decide
from peen.session.acceptance import accept, end_accepted, known_frame
from peen.session.decide import Join, Refuse, Repeat, Start
from peen.session.ending import Ending, interrupted
from peen.session.state import Origin, Outcome, RunningTurn, Submission
from peen.session.writes import TurnEnd
from peen.store.database import Database
from peen.wire.client import MessageSend, content_digest
from peen.wire.feed import Completed, Failed, ack_frame
from peen.wire.websocket import text_frame
from peen.wire.worker import RunTurn, WorkerStruct

log = structlog.get_logger(__name__)

INBOX_SLOTS: Final = 64
"""Messages that wait to be judged; when it is full, the sockets that sent them are read no further."""


class Link(Protocol):
    """The controller's end of a worker socket."""

    async def command(self, request: WorkerStruct) -> WorkerStruct:
        """Carry out a command in the worker. Raises: LinkLost, or what the worker answered."""


class Workers(Protocol):
    """Where the session's worker comes from."""

    async def ensure(self, session_no: SessionNo) -> Link:
        """The session's ready worker, started if there is none. Raises: WorkerFailed."""

    async def stop(self, session_id: str, reason: str) -> None:
        """End the session's worker, if there is one, and record that."""

    async def settled(self, session_id: str) -> None:
        """Return once a lost worker of the session has been killed, reaped and recorded."""


@dataclass(frozen=True, slots=True)
class Household:
    """What all sessions of one controller share."""

    database: Database
    pump: FeedPump
    workers: Workers
    entropy: Entropy
    check_model: Callable[[str], object]
    """Raises ValidationFailed for a model that no upstream offers."""
    turn_limit: trio.CapacityLimiter
    worker_idle_s: float


class SessionActor:
    """Serves one session.

    Owns:  its inbox, the turn that runs and those who wait for its end. Borrows: the household.
    Ends:  when its owner cancels it, or when it has had nothing to do and no worker for the idle time.
    """

    def __init__(self, session_no: SessionNo, session_id: str, household: Household) -> None:
        self._no, self._id, self._house = session_no, session_id, household
        self.address, self._inbox = trio.open_memory_channel[Submission](INBOX_SLOTS)
        self._running: RunningTurn | None = None
        self._tasks = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with self._inbox, trio.open_nursery() as turns:
            task_status.started()
            while True:
                submission: Submission | None = None
                with trio.move_on_after(self._house.worker_idle_s):
                    submission = await self._inbox.receive()
                if submission is not None:
                    await supervised(partial(self._take, submission, turns), name=f"message of session {self._id}")
                elif self._running is None and self._tasks == 0:
                    await self._house.workers.stop(self._id, "idle")

    def turn_ended(self, end: TurnEnd) -> None:
        """A terminal commit of this session. From here on the next message is accepted."""
        turn = self._running
        if turn is None or turn.turn_id != end.turn_id:
            return
        self._running = None
        outcome = Outcome(end.state, end.reason, turn.request_id)
        acknowledge = partial(self._acknowledge, turn, outcome)
        self._house.pump.when_published(self._no, end.feed_sequence, acknowledge)

    async def interrupt(self, ending: Ending) -> None:
        """End the running turn, if there is one, from the controller's side: whoever works on it is fenced off."""
        if self._running is not None:
            await self._end(self._running, ending)

    # --- messages

    async def _take(self, submission: Submission, turns: trio.Nursery) -> None:
        message, origin = submission.message, submission.origin
        digest = content_digest(message)
        running = self._running
        decision = decide.admit(
            known=known_frame(self._house.database.reader, self._no, message.id),
            digest=digest,
            running_turn_id=None if running is None else running.turn_id,
        )
        match decision:
            case Refuse(error=error):
                self._refuse(message, origin, error)
            case Repeat(outcome=outcome):
                origin.reply(self._ack(decide.acknowledgement(outcome), message.id, outcome.request_id))
            case Join() if running is not None:
                running.waiting.append((message.id, origin))
            case Join():
                # Its turn is ending in this moment: the stored outcome is there when the message comes again.
                self._refuse(message, origin, ValidationFailed("the turn of this message is ending; send it again"))
            case Start():
                await self._start(message, origin, digest, turns)

    async def _start(self, message: MessageSend, origin: Origin, digest: bytes, turns: trio.Nursery) -> None:
        entropy = self._house.entropy
        turn_id, request_id = entropy.uuid4(), entropy.uuid4()
        turn = RunningTurn(str(turn_id), str(request_id), message, [(message.id, origin)])
        try:
            if message.model is not None:
                self._house.check_model(message.model)
            self._running = turn
            change = partial(
                accept,
                session_no=self._no,
                message=message,
                digest=digest,
                request_id=request_id.bytes,
                turn_id=turn_id.bytes,
                at_ms=entropy.now_ms(),
            )
            await self._house.database.write(change)
        except (Refused, StorageError) as refused:
            self._running = None
            self._refuse(message, origin, refused)
            return
        except BaseException:
            self._running = None
            raise
        turns.start_soon(self._carry, turn)

    async def _carry(self, turn: RunningTurn) -> None:
        self._tasks += 1
        try:
            await supervised(
                partial(self._run_turn, turn),
                name=f"turn {turn.turn_id}",
                failed=partial(self._turn_failed, turn),
            )
        finally:
            self._tasks -= 1

    async def _run_turn(self, turn: RunningTurn) -> None:
        """Have the worker carry out the turn; whatever goes wrong, the turn has ended when this returns."""
        message = turn.message
        request = RunTurn(
            turn_id=turn.turn_id,
            request_id=turn.request_id,
            message=message.message,
            model=message.model,
            reasoning_effort=message.reasoning_effort,
            system_prompt=message.system_prompt,
        )
        try:
            async with self._house.turn_limit:
                link = await self._house.workers.ensure(self._no)
                await link.command(request)
        except LinkLost as lost:
            await self._house.workers.settled(self._id)
            await self._end(turn, interrupted("interrupted", f"the session's worker was lost: {lost}"))
        except WorkerFailed as failed:
            await self._end(turn, interrupted("interrupted", f"the session's worker could not be started: {failed}"))
        except PeenError as refused:
            await self._end(turn, _failure(str(refused)))
        else:
            if self._running is turn:
                await self._end(turn, _failure("the worker returned without ending the turn"))

    async def _turn_failed(self, turn: RunningTurn, _fault: Exception) -> None:
        await self._end(turn, _failure("internal error; the log has the details"))

    async def _end(self, turn: RunningTurn, ending: Ending) -> None:
        if self._running is not turn:
            return
        change = partial(
            end_accepted,
            session_no=self._no,
            turn_id=UUID(turn.turn_id).bytes,
            ending=ending,
            at_ms=self._house.entropy.now_ms(),
        )
        sequence = await self._house.database.write(change, terminal=True)
        if sequence is not None:
            self.turn_ended(TurnEnd(turn.turn_id, ending.state, ending.reason, sequence))

    # --- answers

    def _acknowledge(self, turn: RunningTurn, outcome: Outcome) -> None:
        """Tell everybody who hears the session; a sender that hears only another one is told by itself."""
        for frame_id, origin in turn.waiting:
            payload = ack_frame(
                str(self._house.entropy.uuid4()),
                decide.acknowledgement(outcome),
                self._house.entropy.now_ms(),
                session_id=self._id,
                request_id=turn.request_id,
                triggered_by=frame_id,
            )
            self._house.pump.announce(self._id, payload)
            if origin.session_filter not in (None, self._id):
                origin.reply(text_frame(payload))

    def _refuse(self, message: MessageSend, origin: Origin, error: Refused | StorageError) -> None:
        text = error.message if isinstance(error, Refused) else "the disk is full or failing; nothing was stored"
        origin.reply(self._ack(Failed(code=error.code, message=text), message.id, None))

    def _ack(self, data: Completed | Failed, frame_id: str, request_id: str | None) -> bytes:
        payload = ack_frame(
            str(self._house.entropy.uuid4()),
            data,
            self._house.entropy.now_ms(),
            session_id=self._id,
            request_id=request_id,
            triggered_by=frame_id,
        )
        return text_frame(payload)


def _failure(error: str) -> Ending:
    return Ending(state="failed", reason="agentRun", error=error, classification="agentRun")
