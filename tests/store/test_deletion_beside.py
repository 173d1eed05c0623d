"""A large session is deleted while others work."""

from __future__ import annotations

from functools import partial
from importlib import resources
from pathlib import Path

import trio
from world_kit import AT_MS, Home, make_home

from peen.entropy import SystemEntropy
from peen.store import deletion, feed
from peen.store.database import Database, Tx
from peen.store.feed import NewEvent
from peen.store.opening import open_database

FRAMES = 20 * deletion.STEP_ROWS
MIGRATIONS = resources.files("peen.store") / "migrations"


async def fill(db: Database, home: Home) -> None:
    def change(tx: Tx) -> None:
        feed.append(tx, home.no, [NewEvent("content_block_delta", bytes(200))] * (FRAMES // 10), at_ms=AT_MS)

    for _ in range(10):
        await db.write(change)


async def test_other_sessions_write_between_its_steps_and_the_file_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "peen.db"
    written = 0

    async def work(db: Database, home: Home) -> None:
        nonlocal written
        change = partial(feed.append, session_no=home.no, events=[NewEvent("x", b"{}")], at_ms=AT_MS)
        while True:
            await db.write(change)
            written += 1

    opening = open_database(path, migrations=MIGRATIONS, name="peen", entropy=SystemEntropy(), reserve_bytes=0)
    async with opening as db:
        large, other = await make_home(db, 1), await make_home(db, 2)
        await fill(db, large)
        await db.write(partial(deletion.mark, session_id=large.id, at_ms=AT_MS))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, db, other)
            await deletion.remove(db, large.no)
            by_then = written
            await deletion.give_back(db)
            nursery.cancel_scope.cancel()
        full = path.stat().st_size

    # Each step is a request like any other: whoever waits is served before the next one.
    assert by_then >= FRAMES // deletion.STEP_ROWS // 2
    assert path.stat().st_size < full / 4
