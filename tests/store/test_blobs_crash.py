"""Steps with blobs, and their deletion, while the process dies or the disk fails at any moment."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import trio
from blob_kit import message
from trio.testing import MockClock
from world_kit import Home, make_home, open_store

from peen.errors import StorageError
from peen.ids import SessionNo
from peen.store.blobs.decode import decode, earlier_values
from peen.store.blobs.encoder import Encoder, Saved
from peen.store.blobs.rows import Blobs, release
from peen.store.database import Database, Tx
from peen.store.direct import MemoryFile
from peen.testing.faults import Faults, SimulatedCrash

STEPS = 5
PER_STEP = 4  # enough messages for runs
# Both sessions begin alike, so they share blobs.
MESSAGES = {
    number: [message(n) for n in range(8)] + [message(100 * number + n) for n in range(STEPS * PER_STEP - 8)]
    for number in (1, 2)
}
_STEP = (
    "CREATE TABLE IF NOT EXISTS step (session_no INTEGER, at INTEGER, value BLOB, PRIMARY KEY (session_no, at)) STRICT"
)


def save_step(tx: Tx, blobs: Blobs, session: SessionNo, at: int, saved: Saved) -> None:
    """One step as an engine would write it: its value and the blobs that it needs."""
    tx.execute("INSERT INTO step VALUES (?, ?, ?)", (session, at, saved.value))
    blobs.accept(tx, session, [saved.value], saved.new_blobs)


def forget(tx: Tx, session: SessionNo) -> bool:
    """The next piece of the end of a session."""
    tx.execute("DELETE FROM step WHERE session_no = ?", (session,))
    return release(tx, session, rows=7)


def values_of(db: Database, session: SessionNo) -> list[bytes]:
    return [value for (value,) in db.reader.rows("SELECT value FROM step WHERE session_no = ? ORDER BY at", (session,))]


def check(db: Database, blobs: Blobs, homes: dict[int, Home]) -> None:
    """All that is there can be read, and nothing else is there."""
    for number, home in homes.items():
        values = values_of(db, home.no)
        for at, value in enumerate(values):
            chain = values[at - earlier_values(value) : at + 1]
            expected = b"[" + b",".join(MESSAGES[number][: (at + 1) * PER_STEP]) + b"]"
            assert decode(chain, blobs.fetcher(db.reader, home.no)) == expected
    assert db.reader.rows("SELECT id FROM blob EXCEPT SELECT blob_id FROM blob_use") == []
    assert db.reader.rows("SELECT id FROM blob ORDER BY id") == db.reader.rows("SELECT id FROM blobhash ORDER BY id")
    assert db.reader.rows("PRAGMA foreign_key_check") == []


async def grow(db: Database, blobs: Blobs, number: int, home: Home) -> None:
    """Go on with a session's steps where the database says that they ended, as after a restart."""
    done = len(values_of(db, home.no))
    encoder = Encoder()
    encoder.replace_all(MESSAGES[number][: done * PER_STEP])
    for at in range(done, STEPS):
        for each in MESSAGES[number][at * PER_STEP : (at + 1) * PER_STEP]:
            encoder.append(each)
        await db.write(partial(save_step, blobs=blobs, session=home.no, at=at, saved=encoder.save()))


async def life(file: MemoryFile, faults: Faults | None) -> None:
    """Two sessions grow; then the first is deleted."""
    async with open_store(file, faults=faults) as db:
        await db.write(lambda tx: tx.execute(_STEP).fetchall())
        blobs = await Blobs.open(db)
        homes = {number: await make_home(db, number) for number in (1, 2)}
        check(db, blobs, homes)
        if len(values_of(db, homes[2].no)) < STEPS:
            for number, home in homes.items():
                await grow(db, blobs, number, home)
        while not await db.write(partial(forget, session=homes[1].no)):
            check(db, blobs, homes)
        check(db, blobs, homes)
        assert values_of(db, homes[1].no) == []
        assert len(values_of(db, homes[2].no)) == STEPS


def contents(file: MemoryFile) -> tuple[list[tuple[bytes, ...]], ...]:
    """Hashes of the blobs, and the values of the steps."""

    async def main() -> tuple[list[tuple[bytes, ...]], ...]:
        async with open_store(file) as db:
            tables = ("SELECT hash FROM blobhash ORDER BY hash", "SELECT value FROM step ORDER BY session_no, at")
            return tuple(db.reader.rows(query) for query in tables)

    return trio.run(main)


def run(file: MemoryFile, faults: Faults | None = None) -> None:
    trio.run(partial(life, file, faults), clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_commit_leaves_whole_steps_and_no_blob_that_nobody_uses(after: bool) -> None:
    undisturbed = MemoryFile()
    run(undisturbed)
    for crash_at in itertools.count(1):
        file = MemoryFile()
        faults = Faults.crash_after_commit(crash_at) if after else Faults.crash_before_commit(crash_at)
        try:
            run(file, faults)
        except SimulatedCrash:
            run(file)
        assert contents(file)[0], "nothing was compared"
        if faults.fired == 0:  # no commit was left to crash at: all were tried
            assert contents(file) == contents(undisturbed)
            assert crash_at > 2 * STEPS
            return


@pytest.mark.parametrize("kind", ["full", "ioerr"])
def test_a_disk_that_fails_at_any_statement_of_a_step_leaves_nothing_of_it(kind: str) -> None:
    encoder = Encoder()
    encoder.replace_all(MESSAGES[1])
    saved = encoder.save()

    async def main(at: int) -> int:
        file = MemoryFile()
        async with open_store(file) as db:
            await db.write(lambda tx: tx.execute(_STEP).fetchall())
            await Blobs.open(db)
            home = await make_home(db)
        faults = Faults.full_at(at) if kind == "full" else Faults.ioerr_at(at)
        async with open_store(file, faults=faults) as db:
            blobs = await Blobs.open(db)  # one statement
            change = partial(save_step, blobs=blobs, session=home.no, at=0, saved=saved)
            try:
                await db.write(change)
            except StorageError:
                assert values_of(db, home.no) == []
                assert db.reader.rows("SELECT * FROM blob") == db.reader.rows("SELECT * FROM blobhash") == []
                await db.write(change)
            fetch = blobs.fetcher(db.reader, home.no)
            assert decode(values_of(db, home.no), fetch) == b"[" + b",".join(MESSAGES[1]) + b"]"
            return faults.fired

    for at in itertools.count(2, 5):
        if trio.run(main, at) == 0:  # no statement was left to fail at
            assert at > 50
            return
