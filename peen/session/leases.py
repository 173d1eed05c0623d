"""The watch over leases: work whose worker is there but does nothing for it any more is ended, not left running."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog
import trio

from peen.actors import supervised
from peen.entropy import AwakeClock
from peen.errors import StorageError
from peen.ids import SessionNo
from peen.store import executions, leases
from peen.store.database import Database, Tx
from peen.store.leases import Silent

log = structlog.get_logger(__name__)

LOOK_S: Final = AwakeClock.BEAT_S
"""Seconds between two looks: so often the clock of leases wants to be looked at, too."""
CAUSE: Final = "its worker let every lease on it run out"

TurnLost = Callable[[SessionNo, bytes], Awaitable[None]]


class LeaseWatch:
    """Looks for executions whose holder has let all leases run out.

    It fences each off in one transaction, so that the holder can write nothing more, and has `lost` end its turn:
    `lost(session, turn id)` gives up the worker, if there is one.
    Ends:  when its owner cancels it.
    """

    def __init__(self, database: Database, *, lost: TurnLost, clock_ms: Callable[[], int], now_ms: Callable[[], int]):
        self._database, self._lost, self._clock_ms, self._now_ms = database, lost, clock_ms, now_ms

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                for silent in leases.silent(self._database.reader, clock_ms=self._clock_ms()):
                    body = partial(self._take, silent, nursery)
                    await supervised(body, name=f"end of abandoned execution {silent.no}")
                await trio.sleep(LOOK_S)

    async def _take(self, silent: Silent, nursery: trio.Nursery) -> None:
        change = partial(fence_off, execution_no=silent.no, clock_ms=self._clock_ms(), at_ms=self._now_ms())
        try:
            is_taken = await self._database.write(change)
        except StorageError as refused:  # the next look tries again
            log.warning("abandoned work cannot be taken from its worker yet", error=str(refused))
            return
        if is_taken:
            log.warning("an execution was abandoned by its worker", execution=silent.no, session=silent.session_no)
            # One whose worker does not die at once keeps nobody else waiting.
            ending = partial(self._lost, silent.session_no, silent.turn_id)
            nursery.start_soon(partial(supervised, ending, name=f"end of abandoned execution {silent.no}"))


def fence_off(tx: Tx, execution_no: int, *, clock_ms: int, at_ms: int) -> bool:
    """Take an execution from a holder that has let every lease run out; False if there is a live one after all.

    Effects whose lease has run out are uncertain from here on, whether or not others go on.
    """
    if not leases.lapse(tx, execution_no, clock_ms=clock_ms, at_ms=at_ms):
        return False
    executions.pause(tx, execution_no, reason="interrupted", at_ms=at_ms)
    return True
