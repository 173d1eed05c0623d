"""What a session goes on with because somebody said so: paused work, and messages that a Stop left waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar
from uuid import UUID

import structlog
import trio

from peen.errors import Refused, SessionBusy
from peen.ids import SessionNo
from peen.session.household import Household
from peen.session.pictures import check_images
from peen.session.requests import ResumeRequest, admitted, turn_of
from peen.session.resumption import admit, continue_input, resume, withdraw
from peen.session.state import RunningTurn
from peen.store import admissions, inbox
from peen.store.database import Change

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Floor(Protocol):
    """The session, which runs one turn at a time."""

    @property
    def is_running(self) -> bool: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def stop_under_way(self) -> trio.Event | None: ...

    def begin(self, turn: RunningTurn) -> None:
        """Have the worker carry out a stored turn, now. Nothing else runs."""


class Continuations:
    """Begins turns that somebody asked for explicitly, one at a time, when nothing else runs.

    From the decision to its stored turn, messages and a Stop wait: they must find the turn that it begins.
    """

    def __init__(self, session_no: SessionNo, session_id: str, household: Household, floor: Floor) -> None:
        self._no, self._id, self._house, self._floor = session_no, session_id, household, floor
        self._storing: trio.Event | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether paused work was admitted and waits for its turn."""
        return admissions.first(self._house.database.reader, self._no) is not None

    async def stored(self) -> None:
        """Wait while a turn that goes on is being stored."""
        while self._storing is not None:
            await self._storing.wait()  # one transaction

    async def settled(self) -> None:
        """Wait while a Stop is carried out or a turn that goes on is being stored."""
        while (pending := self._stop_or_storing()) is not None:
            await pending.wait()  # bounded by the Stop itself, or by one transaction

    def _stop_or_storing(self) -> trio.Event | None:
        stop = self._floor.stop_under_way
        return self._storing if stop is None else stop

    async def resume(self, request: ResumeRequest) -> None:
        """Go on with a paused root. While another turn runs it is admitted, which is stored; a Stop drops that.

        Raises: NotFound, Conflict; nothing has changed then.
        """
        await self.settled()
        if self._floor.is_closed:
            raise SessionBusy("the controller is stopping")
        if self._floor.is_running:
            await self._house.database.write(self._change(admit, request))
            await self.begin_next()  # if that turn has ended meanwhile, nobody else does
        else:
            await self._reopen(request)

    async def continue_input(self, request_id: str, stop_revision: int) -> None:
        """Let a message that a Stop left waiting open a turn.

        Raises: NotFound, Conflict, SessionBusy; ValidationFailed where it needs a model that takes images.
        """
        await self.stored()
        floor = self._floor
        if floor.is_closed or floor.is_running or floor.stop_under_way is not None:
            raise SessionBusy("a turn is running; continue when it has ended")
        waiting = inbox.by_request(self._house.database.reader, self._no, UUID(request_id).bytes)
        if waiting is not None:
            asked = turn_of(waiting, request_id, self._id)
            check_images(self._house, self._no, asked.message.model, sent=len(asked.images))
        turn_id = self._house.entropy.uuid4()
        change = partial(
            continue_input,
            session_no=self._no,
            request_id=UUID(request_id).bytes,
            stop_revision=stop_revision,
            turn_id=turn_id.bytes,
        )
        with self._alone():
            row = await self._house.database.write(change)
            floor.begin(turn_of(row, str(turn_id), self._id))

    async def begin_next(self) -> None:
        """If nothing runs, the first admitted resumption that is still possible begins.

        Raises: StorageError; what was admitted stays so.
        """
        while True:
            await self.settled()  # a Stop that came meanwhile has dropped them all
            waiting = admissions.first(self._house.database.reader, self._no)
            if waiting is None or self._floor.is_running or self._floor.is_closed:
                return
            try:
                await self._reopen(admitted(waiting))
            except Refused as refused:
                log.warning("admitted work cannot go on any more", session_id=self._id, reason=refused.message)
                at_ms = self._house.entropy.now_ms()
                change = partial(withdraw, execution_no=waiting.execution_no, reason=refused.message, at_ms=at_ms)
                await self._house.database.write(change)

    async def _reopen(self, request: ResumeRequest) -> None:
        with self._alone():
            resumed = await self._house.database.write(self._change(resume, request))
            turn = turn_of(resumed.opener, resumed.turn_id, self._id)
            turn.execution_id = resumed.execution_id
            self._floor.begin(turn)

    def _change(self, step: Callable[..., T], request: ResumeRequest) -> Change[T]:
        return partial(
            step,
            session_no=self._no,
            execution_id=UUID(request.execution_id).bytes,
            control_revision=request.control_revision,
            caller=request.caller,
            automatic=request.automatic,
            provenance=request.provenance,
            at_ms=self._house.entropy.now_ms(),
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nothing runs, and until the block ends nothing else begins."""
        done = self._storing = trio.Event()
        try:
            yield
        finally:
            self._storing = None
            done.set()
