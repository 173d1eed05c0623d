"""On a full disk nobody waits for space longer than a stop may take, and a start that is cancelled not at all."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked
from world_kit import open_store

from peen.control.core import StopClock, wait_for_space
from peen.errors import StorageFull
from peen.store.database import Database, Tx
from peen.testing.faults import Faults

FOR_GOOD = 10**9  # statements, which is more than there will be


def change(tx: Tx) -> None:
    tx.execute("UPDATE session SET model = model")


class Waiting:
    """A terminal commit on a disk that stays full, and when it was told so."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.told_at: float | None = None

    async def run(self) -> None:
        with pytest.raises(StorageFull):
            await self._database.write(change, terminal=True)
        self.told_at = trio.current_time()


@pytest.mark.parametrize("begun_at", [0.0, 100.0])
async def test_the_ends_of_turns_wait_for_space_until_the_deadline_of_the_stop(
    begun_at: float, autojump_clock: MockClock
) -> None:
    stop = StopClock()
    async with open_store(faults=Faults.full_at(1, lasting=FOR_GOOD)) as database, trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_space, database, stop)
        waiting = Waiting(database)
        began = trio.current_time()
        nursery.start_soon(waiting.run)
        await trio.sleep(begun_at)
        assert waiting.told_at is None

        stop.begin(7.0)
        stop.begin(99.0)  # only the first counts

    assert waiting.told_at == began + begun_at + 7.0


async def test_a_start_that_is_cancelled_does_not_wait_for_space(autojump_clock: MockClock) -> None:
    async with open_store(faults=Faults.full_at(1, lasting=FOR_GOOD)) as database:
        waiting = Waiting(database)
        began = trio.current_time()
        with trio.CancelScope() as start:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_space, database, StopClock())
                nursery.start_soon(waiting.run)
                await wait_all_tasks_blocked()
                assert waiting.told_at is None
                start.cancel()

    assert waiting.told_at == began
