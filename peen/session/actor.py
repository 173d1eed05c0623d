"""One conversation: messages come in by order of receipt, one turn at a time goes out to the session's worker."""

from __future__ import annotations

from functools import partial
from typing import Final
from uuid import UUID

import structlog
import trio

from peen.actors import supervised
from peen.errors import (
    LinkLost,
    PeenError,
    Refused,
    SessionBusy,
    StorageError,
    TurnCancelled,
    ValidationFailed,
    WorkerFailed,
)
from peen.ids import SessionNo
from peen.patience import STOP_QUIET_S
from peen.session import decide
from peen.session.acceptance import (
    Acceptance,
    TurnOver,
    accept,
    accept_queued,
    end_accepted,
    fence,
    known_frame,
)
from peen.session.answers import Answers
from peen.session.continuation import Continuations
from peen.session.decide import Join, Queue, Refuse, Repeat, RunningSettings, Start
from peen.session.ending import STOPPED, Ending, interrupted
from peen.session.household import Household as Household
from peen.session.household import Link as Link
from peen.session.household import Workers as Workers
from peen.session.pictures import check_images, without_bytes
from peen.session.requests import ResumeRequest, following_turn, order_of
from peen.session.state import Origin, Outcome, RunningTurn, Submission
from peen.session.writer import TurnEnd
from peen.store import jobs
from peen.store.database import Change
from peen.wire.client import MessageSend, content_digest
from peen.wire.worker import CancelTurns, TurnEnded

log = structlog.get_logger(__name__)

END_RETRY_S: Final = 2.0  # a failing disk is asked again; for space on a full one the store waits by itself
INBOX_SLOTS: Final = 64
"""Messages that wait to be judged; when it is full, the sockets that sent them are read no further."""


class SessionActor:
    """Serves one session.

    Owns:  its inbox, the turn that runs and those who wait for its end. Borrows: the household.
    Ends:  when its owner cancels it. With nothing to do for the idle time it stops the worker and stays.
    """

    def __init__(self, session_no: SessionNo, session_id: str, household: Household) -> None:
        self._no, self._id, self._house = session_no, session_id, household
        self.address, self._inbox = trio.open_memory_channel[Submission](INBOX_SLOTS)
        self._answers = Answers(session_id, household.pump, household.entropy)
        self._running: RunningTurn | None = None
        self._tasks = 0
        self._closed = False
        self._stop: trio.Event | None = None  # set when the Stop that is under way has been carried out
        self._stops = 0
        self._turns: trio.Nursery | None = None
        self._serving = trio.Event()
        self._continuations = Continuations(session_no, session_id, household, self)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with self._inbox, trio.open_nursery() as turns:
            self._turns = turns
            self._serving.set()
            task_status.started()
            while True:
                submission: Submission | None = None
                with trio.move_on_after(self._house.worker_idle_s):
                    submission = await self._inbox.receive()
                if submission is not None:
                    await supervised(partial(self._take, submission), name=f"message of session {self._id}")
                elif self._is_idle():
                    stop = partial(self._house.workers.stop, self._id, "idle")
                    await supervised(stop, name=f"idle worker of session {self._id}")

    def _is_idle(self) -> bool:
        """Whether the worker has nothing to do: no turn, and no command that goes on by itself."""
        return self._running is None and self._tasks == 0 and not jobs.any_runs(self._house.database.reader, self._no)

    async def submit(self, message: MessageSend, origin: Origin) -> None:
        """Take a message, in the order of receipt; waits while too many wait to be judged."""
        await self.address.send(Submission(message, origin, self._stops if self._stop is not None else None))

    def turn_ended(self, end: TurnEnd) -> None:
        """A terminal commit of this session. From here on the next message is accepted."""
        if self._house.on_end is not None:
            self._house.on_end(UUID(end.turn_id).bytes)
        turn = self._running
        if turn is None or turn.turn_id != end.turn_id:
            return
        self._running = None
        outcome = Outcome(end.state, end.reason, turn.request_id)
        acknowledge = partial(self._answers.announce, turn.waiting, outcome)
        self._house.pump.when_published(self._no, end.feed_sequence, acknowledge)
        if end.following is not None and not self._closed:
            self._begin(following_turn(end.following, turn.message))
        elif self._stop is None and not self._closed and self._continuations.is_awaited:
            assert self._turns is not None
            self._turns.start_soon(partial(supervised, self._continuations.begin_next, name="resume"))

    async def stop(self) -> bool:
        """Stop: everything that runs for this session ends, and nothing begins by itself. True if a turn was running.

        Returns when the fence is stored; the rest is carried out by the session within `STOP_QUIET_S` and the time
        that killing takes. Messages that arrive meanwhile wait, and nothing of them is stored; another Stop cancels
        their wait.
        """
        await self._continuations.stored()  # one transaction; the turn that it begins is stopped too
        self._stops += 1
        change = partial(fence, session_no=self._no, at_ms=self._house.entropy.now_ms())
        if self._stop is not None:
            await self._house.database.write(change, terminal=True)
            return True
        done = self._stop = trio.Event()
        try:
            await self._house.database.write(change, terminal=True)
        except BaseException:
            self._lift(done)
            raise
        if self._running is None:
            self._lift(done)
            return False
        self._running.is_stopped = True
        assert self._turns is not None
        self._turns.start_soon(self._finish_stop, done)
        return True

    async def interrupt(self, ending: Ending) -> None:
        """Start no turn any more, and end the running one from this side: whoever works on it is fenced off."""
        self._closed = True
        if self._running is not None:
            await self._end(self._running, ending)

    async def turn_lost(self, turn_id: bytes, ending: Ending) -> None:
        """End a turn whose execution was taken from its worker; that worker is given up."""
        turn = self._running
        if turn is not None and UUID(turn.turn_id).bytes == turn_id:
            turn.taken = ending  # whoever hears first that the worker is gone ends it so
            await self._give_up(ending.error)
            await self._end(turn, ending)
            return
        if turn is None:  # else the worker that is there works on something else
            await self._give_up(ending.error)
        await self._house.database.write(self._ending_of(turn_id, ending), terminal=True)
        if self._house.on_end is not None:
            self._house.on_end(turn_id)

    async def _give_up(self, reason: str) -> None:
        try:
            await self._house.workers.give_up(self._id, reason)
        except WorkerFailed as stubborn:  # what it writes is refused, so the session need not wait for its death
            log.error("a worker that let its work go does not end", session_id=self._id, error=str(stubborn))

    # --- what a session goes on with

    async def resume(self, request: ResumeRequest) -> None:
        """See `Continuations.resume`."""
        await self._serving.wait()  # one turn of the scheduler
        await self._continuations.resume(request)

    async def begin_admitted(self) -> None:
        """See `Continuations.begin_next`."""
        await self._serving.wait()
        await self._continuations.begin_next()

    async def continue_input(self, request_id: str, stop_revision: int) -> None:
        """See `Continuations.continue_input`."""
        await self._serving.wait()
        await self._continuations.continue_input(request_id, stop_revision)

    @property
    def is_running(self) -> bool:
        """Whether a turn runs, or is about to."""
        return self._running is not None

    @property
    def is_closed(self) -> bool:
        """Whether no turn begins any more."""
        return self._closed

    @property
    def stop_under_way(self) -> trio.Event | None:
        """Set when the Stop that is under way has been carried out; None without one."""
        return self._stop

    def begin(self, turn: RunningTurn) -> None:
        """Have the worker carry out a stored turn, now. Nothing else runs."""
        self._begin(turn)

    async def _settled(self) -> None:
        await self._continuations.settled()

    # --- Stop

    async def _finish_stop(self, done: trio.Event) -> None:
        try:
            await supervised(self._quieten, name=f"stop of session {self._id}")
        finally:
            self._lift(done)

    async def _quieten(self) -> None:
        """Second half of a Stop: have the worker end everything, by force if need be; then end the turn."""
        link = self._house.workers.link_of(self._id)
        if link is not None:
            is_quiet = False
            with trio.move_on_after(STOP_QUIET_S):
                try:
                    await link.command(CancelTurns())
                    is_quiet = True
                except PeenError as lost:
                    log.warning("a worker could not be told to stop", session_id=self._id, error=str(lost))
            if not is_quiet:
                await self._house.workers.give_up(self._id, "it did not obey a Stop")
        while self._running is not None:  # one that was about to follow ends like the one that ran
            await self._end(self._running, STOPPED)

    def _lift(self, done: trio.Event) -> None:
        self._stop = None
        done.set()

    # --- messages

    async def _take(self, submission: Submission) -> None:
        message, origin = submission.message, submission.origin
        await self._settled()
        if submission.met_stop not in (None, self._stops):
            overtaken = TurnCancelled("another Stop came while this message waited for the first; nothing was stored")
            self._answers.refuse(message.id, origin, overtaken)
            return
        digest = content_digest(message)
        running = self._running
        decision = decide.admit(
            message,
            digest=digest,
            known=known_frame(self._house.database.reader, self._no, message.id),
            running=None if running is None else self._settings(running),
        )
        match decision:
            case Refuse(error=error):
                self._answers.refuse(message.id, origin, error)
            case Repeat(outcome=outcome):
                self._answers.repeat(message.id, origin, outcome)
            case Join() if running is not None:
                running.waiting.append((message.id, origin))
            case Join():
                # Its turn is ending in this moment: the stored outcome is there when the message comes again.
                self._answers.refuse(
                    message.id, origin, ValidationFailed("the turn of this message is ending; send it again")
                )
            case Start() | Queue() if self._closed:
                self._answers.refuse(
                    message.id, origin, SessionBusy("the controller is stopping; send the message again later")
                )
            case Queue() if running is not None:
                await self._queue(message, origin, digest, running)
            case Start() | Queue():
                await self._start(message, origin, digest)

    async def _start(self, message: MessageSend, origin: Origin, digest: bytes) -> None:
        entropy = self._house.entropy
        turn_id, request_id = entropy.uuid4(), entropy.uuid4()
        acceptance = Acceptance(message, digest, request_id.bytes, turn_id.bytes, entropy.now_ms(), self._house.blobs)
        turn = RunningTurn(
            str(turn_id), str(request_id), without_bytes(message), [(message.id, origin)], images=acceptance.images
        )
        try:
            if message.model is not None:
                _check_model(self._house, message.model)
            check_images(self._house, self._no, message.model, sent=len(message.images))
            # Set before the write, so that a Stop which comes meanwhile finds the turn.
            self._running = turn
            await self._house.database.write(partial(accept, session_no=self._no, acceptance=acceptance))
        except (Refused, StorageError) as refused:
            self._running = None
            self._answers.refuse(message.id, origin, refused)
            return
        except BaseException:
            self._running = None
            raise
        self._begin(turn)

    async def _queue(self, message: MessageSend, origin: Origin, digest: bytes, running: RunningTurn) -> None:
        entropy = self._house.entropy
        request_id, turn_id = entropy.uuid4(), UUID(running.turn_id)
        acceptance = Acceptance(message, digest, request_id.bytes, turn_id.bytes, entropy.now_ms(), self._house.blobs)
        capacity = self._house.queue_capacity
        change = partial(accept_queued, session_no=self._no, acceptance=acceptance, capacity=capacity)
        try:
            check_images(self._house, self._no, running.message.model, sent=len(message.images))
            sequence = await self._house.database.write(change)
        except TurnOver:
            await self._take(Submission(message, origin))
        except (Refused, StorageError) as refused:
            self._answers.refuse(message.id, origin, refused)
        else:
            outcome = Outcome("queued", "", str(request_id))
            acknowledge = partial(self._answers.announce, [(message.id, origin)], outcome)
            self._house.pump.when_published(self._no, sequence, acknowledge)

    def _settings(self, running: RunningTurn) -> RunningSettings:
        message = running.message
        return RunningSettings(message.model or self._house.default_model, message.reasoning_effort)

    def _begin(self, turn: RunningTurn) -> None:
        assert self._turns is not None
        self._running = turn
        self._turns.start_soon(self._carry, turn)

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
        model = turn.message.model or self._house.default_model
        request = order_of(turn, image_input=self._house.takes_images(model))
        try:
            async with self._house.turn_limit:
                if self._stop is not None:
                    await self._stop.wait()  # bounded by the Stop itself
                if self._running is not turn:
                    return  # it was ended while it waited
                link = await self._house.workers.ensure(self._no)
                over = await link.command(request)
        except LinkLost as lost:
            await self._house.workers.settled(self._id)
            ending = interrupted("interrupted", f"the session's worker was lost: {lost}")
        except WorkerFailed as failed:
            ending = interrupted("interrupted", f"the session's worker could not be started: {failed}")
        except StorageError:
            ending = UNSTORED
        except PeenError as refused:
            ending = _failure(str(refused))
            if turn.execution_id is not None:  # its model or its directory is gone, for now: it stays paused
                ending = interrupted("interrupted", str(refused))
        else:
            ending = _failure("the worker returned without ending the turn")
            if over == TurnEnded(state="stale"):
                ending = interrupted("interrupted", "the session's worker lost its hold on the turn")
        if self._stop is not None:
            await self._stop.wait()  # that is why the worker returned: the Stop ends the turn, and says so
        await self._end(turn, ending)

    async def _turn_failed(self, turn: RunningTurn, _fault: Exception) -> None:
        await self._end(turn, _failure("internal error; the log has the details"))

    async def _end(self, turn: RunningTurn, ending: Ending) -> None:
        """Record the end of the turn that runs. A disk that refuses is asked again, unless the controller stops."""
        while self._running is turn:
            if turn.is_stopped:
                ending = STOPPED  # also where the Stop itself failed to record that, and whoever is next does it
            elif turn.taken is not None:
                ending = turn.taken
            change = self._ending_of(UUID(turn.turn_id).bytes, ending)
            try:
                sequence = await self._house.database.write(change, terminal=True)
            except StorageError as refused:
                if self._closed:
                    raise
                log.warning("the end of a turn is not stored yet", session_id=self._id, error=str(refused))
                await trio.sleep(END_RETRY_S)
                continue
            if sequence is not None:
                self.turn_ended(TurnEnd(turn.turn_id, ending.state, ending.reason, sequence))
            return

    def _ending_of(self, turn_id: bytes, ending: Ending) -> Change[int | None]:
        at_ms = self._house.entropy.now_ms()
        return partial(end_accepted, session_no=self._no, turn_id=turn_id, ending=ending, at_ms=at_ms)


UNSTORED: Final = Ending(
    state="failed",
    reason="storage",
    error="the disk is full or failing; the log of the controller names it",
    classification="storage",
)


def _check_model(house: Household, name: str) -> None:
    try:
        house.check_model(name)
    except ValidationFailed as wrong:
        raise ValidationFailed(f"data.model: {wrong.message}") from None


def _failure(error: str) -> Ending:
    return Ending(state="failed", reason="agentRun", error=error, classification="agentRun")
