from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
import trio
from store_kit import FIRST, Boom, add, open_group, write_migrations

from peen.errors import StorageError, StorageFailed
from peen.store.database import Database, Reader
from peen.store.reading import AT_ONCE, read_in_thread

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
WORDS = "SELECT word FROM entry ORDER BY no"


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    return write_migrations(tmp_path / "migrations", FIRST)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "small.db"


async def test_it_sees_what_was_committed_and_the_trio_thread_goes_on(path: Path, migrations: Path) -> None:
    async with open_group(path, migrations) as db:
        await db.write(add("one"))
        here = threading.get_ident()

        found, where = await read_in_thread(path, lambda reader: (reader.rows(WORDS), threading.get_ident()))

    assert found == [("one",)]
    assert where != here


async def test_all_queries_of_one_read_see_the_same_state(path: Path, migrations: Path) -> None:
    async with open_group(path, migrations) as db:
        await db.write(add("one"))

        def twice(reader: Reader) -> tuple[list[tuple[str]], list[tuple[str]]]:
            before = reader.rows(WORDS)
            trio.from_thread.run(db.write, add("two"))
            return before, reader.rows(WORDS)

        before, after = await read_in_thread(path, twice)

        assert before == after == [("one",)]
        assert await read_in_thread(path, lambda reader: reader.rows(WORDS)) == [("one",), ("two",)]


async def test_it_cannot_write(path: Path, migrations: Path) -> None:
    async with open_group(path, migrations):
        with pytest.raises(StorageError):
            await read_in_thread(path, lambda reader: reader.rows("INSERT INTO entry (word) VALUES ('x')"))


async def test_what_the_function_raises_comes_out(path: Path, migrations: Path) -> None:
    def fails(_reader: Reader) -> None:
        raise Boom

    async with open_group(path, migrations):
        with pytest.raises(Boom):
            await read_in_thread(path, fails)


async def test_a_read_that_takes_too_long_is_given_up_and_its_query_ends(path: Path, migrations: Path) -> None:
    ended = threading.Event()
    async with open_group(path, migrations):
        with trio.fail_after(20):
            with pytest.raises(StorageFailed, match=r"given up after 0\.05 s"):
                await read_in_thread(path, _endless(ended), within_s=0.05)
            assert await trio.to_thread.run_sync(ended.wait, 15)


async def test_a_read_that_is_cancelled_ends_its_query_too(path: Path, migrations: Path) -> None:
    begun, ended = threading.Event(), threading.Event()
    async with open_group(path, migrations), trio.open_nursery() as nursery:
        nursery.start_soon(read_in_thread, path, _endless(ended, begun))
        assert await trio.to_thread.run_sync(begun.wait, 15)
        nursery.cancel_scope.cancel()
    assert ended.wait(15)


async def test_a_few_read_at_once_and_the_others_wait_their_turn(path: Path, migrations: Path) -> None:
    most, lock, go_on = [0, 0], threading.Lock(), threading.Event()

    def counted(_reader: Reader) -> None:
        with lock:
            most[0] += 1
            most[1] = max(most)
            if most[0] == AT_ONCE:
                go_on.set()
        assert go_on.wait(15)
        with lock:
            most[0] -= 1

    async with open_group(path, migrations), trio.open_nursery() as nursery:
        for _ in range(3 * AT_ONCE):
            nursery.start_soon(read_in_thread, path, counted)

    assert most == [0, AT_ONCE]


async def test_a_file_that_is_not_there_is_a_storage_error(path: Path) -> None:
    with pytest.raises(StorageError, match=str(path)):
        await read_in_thread(path, lambda reader: reader.rows("SELECT 1"))


async def test_long_reads_do_not_hold_up_short_writes(path: Path, migrations: Path) -> None:
    begun, ended = threading.Event(), threading.Event()
    async with open_group(path, migrations) as db, trio.open_nursery() as nursery:
        nursery.start_soon(read_in_thread, path, _endless(ended, begun))
        assert await trio.to_thread.run_sync(begun.wait, 15)
        with trio.fail_after(10):
            await _write_some(db)
        nursery.cancel_scope.cancel()
    assert ended.wait(15)


async def _write_some(db: Database) -> None:
    for number in range(20):
        await db.write(add(str(number)))


def _endless(ended: threading.Event, begun: threading.Event | None = None) -> Callable[[Reader], None]:
    def function(reader: Reader) -> None:
        if begun is not None:
            begun.set()
        try:
            reader.row(ENDLESS)
        except apsw.InterruptError:
            ended.set()
            raise

    return function
