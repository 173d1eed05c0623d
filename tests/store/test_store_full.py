"""The disk is full: what is refused, what still gets through, and how it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import outcome
import pytest
import trio
from disk_kit import fill, tiny_disk
from store_kit import (
    FIRST,
    NAME,
    Boom,
    Gate,
    add,
    add_then_fail,
    open_group,
    words_in,
    write_migrations,
)
from trio.testing import MockClock

from peen.entropy import SeededEntropy
from peen.errors import StorageFull
from peen.store.database import Database
from peen.store.direct import MemoryFile
from peen.store.opening import open_direct
from peen.store.reserve import Reserve
from peen.testing.faults import Faults, faulty_vfs

FOR_GOOD = 10**9  # writes or statements, which is more than there will be
RESERVE_BYTES = 256 * 1024
AS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not AS_ROOT, reason="only root can mount a small disk")


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    return write_migrations(tmp_path / "migrations", FIRST)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with tiny_disk(tmp_path / "disk", kib=1024) as directory:
        yield directory


@contextmanager
def small(tmp_path: Path, kind: str) -> Iterator[Path]:
    if kind == "disk":
        with tiny_disk(tmp_path / "disk", kib=256) as directory:
            yield directory / "small.db"
    else:
        yield tmp_path / "small.db"


@pytest.mark.parametrize("kind", ["pages", *(["disk"] if AS_ROOT else [])])
async def test_a_change_that_does_not_fit_is_refused_and_the_rest_of_its_batch_is_not(
    tmp_path: Path, migrations: Path, kind: str
) -> None:
    with small(tmp_path, kind) as path:
        results: dict[str, outcome.Outcome[int]] = {}
        async with open_group(path, migrations) as db:
            if kind == "pages":
                await db.write(lambda tx: tx.execute("PRAGMA max_page_count = 40").fetchall())
            gate = Gate()
            db.submit(gate, lambda _result: None)
            for word, size in (("a", 10), ("b", 500_000), ("c", 10), ("d", 600_000)):
                db.submit(
                    add(word, body_bytes=size),
                    lambda result, word=word: results.__setitem__(word, result),  # type: ignore[misc]
                )
            db.submit(add_then_fail("e"), lambda result: results.__setitem__("e", result))
            gate.open()
            await db.write(add("f"))

        assert [word for word, result in results.items() if isinstance(result, outcome.Value)] == ["a", "c"]
        assert {word: type(result.error) for word, result in results.items() if isinstance(result, outcome.Error)} == {
            "b": StorageFull,
            "d": StorageFull,
            "e": Boom,
        }
        assert words_in(path) == ["a", "c", "f"]


@needs_root
async def test_the_reserve_lets_the_end_of_a_turn_through_and_new_work_waits_for_space(
    disk: Path, migrations: Path
) -> None:
    path = disk / "small.db"
    reserve = disk / "small.db.reserve"
    clock = SeededEntropy(1)
    async with open_group(path, migrations, reserve_bytes=RESERVE_BYTES, entropy=clock) as db:
        await db.write(add("first"))
        assert size_of(reserve) == RESERVE_BYTES
        filler = fill(disk)
        with pytest.raises(StorageFull, match=r"small\.db"):
            await db.write(add("work", body_bytes=50_000))

        await db.write(add("end", body_bytes=50_000), terminal=True)
        assert size_of(reserve) is None

        clock.advance(1_000)
        with pytest.raises(StorageFull, match="new work is refused until 262144 bytes are free"):
            await db.write(add("small new work"))
        await db.write(add("another end", body_bytes=50_000), terminal=True)

        filler.unlink()
        clock.advance(1_000)
        await db.write(add("new work"))
        assert size_of(reserve) == RESERVE_BYTES

    assert words_in(path) == ["first", "end", "another end", "new work"]


def size_of(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


@needs_root
async def test_the_end_of_a_turn_is_tried_until_space_returns_and_holds_nobody_up(disk: Path, migrations: Path) -> None:
    path = disk / "small.db"
    clock = SeededEntropy(1)
    ended = trio.Event()
    async with open_group(path, migrations, entropy=clock) as db:
        filler = fill(disk)
        db.submit(add("end", body_bytes=50_000), lambda _result: ended.set(), terminal=True)
        assert await db.write(lambda tx: tx.row("SELECT 'others are served'")) == ("others are served",)
        assert not ended.is_set()

        filler.unlink()
        clock.advance(1_000)
        await db.write(add("next"))
        with trio.fail_after(20):
            await ended.wait()

    assert sorted(words_in(path)) == ["end", "next"]


@needs_root
async def test_closing_gives_up_an_end_that_still_finds_no_space(disk: Path, migrations: Path) -> None:
    results: list[outcome.Outcome[int]] = []
    async with open_group(disk / "small.db", migrations) as db:
        fill(disk)
        db.submit(add("end", body_bytes=50_000), results.append, terminal=True)

    assert [type(result.error) for result in results if isinstance(result, outcome.Error)] == [StorageFull]
    assert words_in(disk / "small.db") == []


@needs_root
async def test_without_room_for_a_reserve_the_store_works_all_the_same(disk: Path, migrations: Path) -> None:
    async with open_group(disk / "small.db", migrations, reserve_bytes=8 * 1024 * 1024) as db:
        assert await db.write(add("fits")) == 1

    assert sorted(os.listdir(disk)) == ["small.db"]


def test_an_end_is_tried_again_at_once(migrations: Path) -> None:
    faults = Faults.full_at(1)

    async def main() -> tuple[int, float]:
        async with open_direct(MemoryFile(), migrations=migrations, name=NAME, seed=1, faults=faults) as db:
            return await db.write(add("end"), terminal=True), trio.current_time()

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) == (1, 0.0)
    assert faults.fired == 1


def test_an_end_that_waits_for_space_does_not_hold_up_other_requests(migrations: Path) -> None:
    faults = Faults.full_at(1, lasting=2)
    ended_at: list[float] = []

    async def main() -> None:
        async with open_direct(MemoryFile(), migrations=migrations, name=NAME, seed=1, faults=faults) as db:
            db.submit(add("end"), lambda _result: ended_at.append(trio.current_time()), terminal=True)
            await trio.sleep(0.5)
            assert await db.write(add("other")) == 1
            assert (ended_at, trio.current_time()) == ([], 0.5)
            await trio.sleep(1)
            assert db.reader.row("SELECT no FROM entry WHERE word = 'end'") == (2,)

    trio.run(main, clock=MockClock(autojump_threshold=0))

    assert ended_at == [1.0]


def test_the_waits_double_up_to_thirty_seconds(migrations: Path) -> None:
    faults = Faults.full_at(1, lasting=16)  # two statements at each of eight attempts

    async def main() -> float:
        async with open_direct(MemoryFile(), migrations=migrations, name=NAME, seed=1, faults=faults) as db:
            await db.write(add("end"), terminal=True)
            return trio.current_time()

    elapsed = trio.run(main, clock=MockClock(autojump_threshold=0))

    assert elapsed == 1 + 2 + 4 + 8 + 16 + 30 + 30 + 30


async def test_whoever_waits_for_space_is_answered_when_waiting_is_given_up(tmp_path: Path, migrations: Path) -> None:
    path, results, answered = tmp_path / "small.db", list[outcome.Outcome[int]](), trio.Event()

    def take(result: outcome.Outcome[int]) -> None:
        results.append(result)
        answered.set()

    with faulty_vfs("full for good") as vfs:
        async with open_group(path, migrations, vfs=vfs.name, entropy=SeededEntropy(1)) as db:
            await db.write(add("before"))
            vfs.arm(write=1, kind="full", lasting=FOR_GOOD)
            db.submit(add("end"), take, terminal=True)
            await db.write(lambda tx: tx.row("SELECT 'the end has been tried'"))
            assert not answered.is_set()

            db.give_up_waiting()

            with trio.fail_after(20):
                await answered.wait()
            assert [type(result.error) for result in results if isinstance(result, outcome.Error)] == [StorageFull]
            with pytest.raises(StorageFull, match=r"small\.db"):  # at once, as this clock stands still
                await db.write(add("an end that comes later"), terminal=True)
            vfs.arm()
            await db.write(add("an end that finds space"), terminal=True)

    assert words_in(path) == ["before", "an end that finds space"]


def test_in_virtual_time_giving_up_answers_at_that_moment_and_nobody_waits_from_then_on(migrations: Path) -> None:
    faults = Faults.full_at(1, lasting=4)  # two statements at each attempt
    refused_at: list[float] = []

    async def end(db: Database, word: str) -> None:
        with pytest.raises(StorageFull):
            await db.write(add(word), terminal=True)
        refused_at.append(trio.current_time())

    async def main() -> list[tuple[str]]:
        async with open_direct(MemoryFile(), migrations=migrations, name=NAME, seed=1, faults=faults) as db:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(end, db, "first")
                await trio.sleep(0.5)
                db.give_up_waiting()
            await trio.sleep(5)
            await end(db, "later")
            await db.write(add("space"), terminal=True)
            return db.reader.rows("SELECT word FROM entry")

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) == [("space",)]
    assert refused_at == [0.5, 5.5]


async def test_a_request_that_is_no_end_is_not_tried_again(migrations: Path) -> None:
    faults = Faults.full_at(1)
    async with open_direct(MemoryFile(), migrations=migrations, name=NAME, seed=1, faults=faults) as db:
        with pytest.raises(StorageFull):
            await db.write(add("work"))
        assert db.reader.rows("SELECT * FROM entry") == []

    assert faults.statements == 1


def test_a_reserve_holds_real_blocks_and_is_made_again_only_now_and_then(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "small.db", size=RESERVE_BYTES)
    reserve.restore(100.0)
    assert reserve.path.stat().st_blocks * 512 >= RESERVE_BYTES
    assert reserve.path.stat().st_mode & 0o777 == 0o600

    reserve.path.unlink()
    reserve.restore(129.9)
    assert not reserve.path.exists()
    reserve.restore(130.0)
    assert reserve.path.exists()


def test_a_reserve_cut_short_is_made_whole(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "small.db", size=RESERVE_BYTES)
    reserve.path.write_bytes(b"cut short")

    reserve.restore(0.0)

    assert reserve.path.stat().st_size == RESERVE_BYTES
    reserve.spend()
    assert reserve.spent
    assert not reserve.path.exists()
