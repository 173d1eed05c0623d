"""The writer thread: how it groups, what it does about the log, and that it never leaves anybody waiting."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import apsw
import outcome
import pytest
import trio
import trio.testing
from store_kit import FIRST, Boom, Gate, add, add_then_fail, descriptors, open_group, words_in, write_migrations

from peen.entropy import SystemEntropy
from peen.errors import StorageFailed
from peen.ids import SessionNo
from peen.store.checkpoint import FORCED_PAGES, IDLE_PAGES
from peen.store.database import Database, Touched, Tx
from peen.testing.faults import faulty_vfs


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    return write_migrations(tmp_path / "migrations", FIRST)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "small.db"


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def size_of(path: Path) -> int:
    return path.stat().st_size


def as_after_a_kill(path: Path, into: Path) -> Path:
    """A copy of what a process that dies at this moment leaves behind."""
    into.mkdir()
    for each in (path, log_of(path)):
        shutil.copy(each, into)
    return into / path.name


async def write_all(db: Database, words: list[str]) -> None:
    """Write them at once, as one batch."""
    gate = Gate()
    db.submit(gate, lambda _result: None)
    async with trio.open_nursery() as nursery:
        for word in words:
            nursery.start_soon(db.write, add(word))
        await trio.testing.wait_all_tasks_blocked()
        gate.open()


async def test_what_waits_while_a_batch_runs_is_the_next_commit(path: Path, migrations: Path) -> None:
    told: list[Touched] = []

    def touching(number: int) -> Callable[[Tx], None]:
        def change(tx: Tx) -> None:
            add(str(number))(tx)
            tx.touch(SessionNo(1), number, number)

        return change

    async with open_group(path, migrations) as db:
        db.on_commit = told.append
        gate = Gate()
        db.submit(gate, lambda _result: None)
        for number in range(300):
            db.submit(touching(number), lambda _result: None)
        gate.open()

    # The gate may have been taken with the first few behind it; after that come full batches.
    assert told[0][SessionNo(1)][0] == 0
    assert told[-1][SessionNo(1)][1] == 299
    assert len(told) <= 3


async def test_the_callers_of_one_commit_are_woken_together_after_the_feed_was_told(
    path: Path, migrations: Path
) -> None:
    order: list[str] = []

    def change(word: str, tx: Tx) -> None:
        add(word)(tx)
        tx.touch(SessionNo(4), 1, 1)

    async with open_group(path, migrations) as db:
        db.on_commit = lambda touched: order.append(f"told {touched}")
        gate = Gate()
        db.submit(gate, lambda _result: None)
        for word in ("a", "b"):
            db.submit(partial(change, word), lambda _result, word=word: order.append(word))  # type: ignore[misc]
        gate.open()
        await db.write(add("last"))

    told = "told {4: (1, 1)}"
    assert order in ([told, "a", "b"], [told, "a", told, "b"])


async def test_one_commit_answers_for_itself_while_the_next_is_refused(path: Path, migrations: Path) -> None:
    with faulty_vfs("refusing") as vfs:
        async with open_group(path, migrations, vfs="refusing") as db:
            await db.write(add("before"))
            vfs.arm(sync=1, lasting=3)  # the batch, and the first two of it that are run again by themselves
            results: list[outcome.Outcome[int]] = []
            gate = Gate()
            db.submit(gate, lambda _result: None)
            for word in ("a", "b", "c", "d"):
                db.submit(add(word), results.append)
            gate.open()
            await db.write(add("last"))
            vfs.arm()

    failed = [result for result in results if isinstance(result, outcome.Error)]
    assert 1 <= len(failed) <= 2
    assert all(isinstance(result.error, StorageFailed) for result in failed)
    lost = [word for word, result in zip("abcd", results, strict=True) if isinstance(result, outcome.Error)]
    assert words_in(path) == ["before", *(word for word in "abcd" if word not in lost), "last"]


async def test_a_commit_whose_sync_failed_does_not_come_back_after_a_kill(
    tmp_path: Path, path: Path, migrations: Path
) -> None:
    with faulty_vfs("unsynced") as vfs:
        async with open_group(path, migrations, vfs="unsynced") as db:
            await db.write(add("kept"))
            vfs.arm(sync=1, lasting=2)  # the commit, and the one that is to write over it
            with pytest.raises(StorageFailed, match=r"small\.db"):
                await db.write(add("lost"))
            assert vfs.fired == 2
            left = as_after_a_kill(path, tmp_path / "killed")

    assert words_in(left) == ["kept"]


async def test_a_kill_loses_nothing_that_was_answered(tmp_path: Path, path: Path, migrations: Path) -> None:
    words = [str(number) for number in range(40)]
    async with open_group(path, migrations) as db:
        await write_all(db, words)
        left = as_after_a_kill(path, tmp_path / "killed")

    assert sorted(words_in(left)) == sorted(words)


async def test_a_big_log_is_copied_back_when_nothing_waits(path: Path, migrations: Path) -> None:
    async with open_group(path, migrations) as db:
        await db.write(add("big", body_bytes=(IDLE_PAGES + 100) * 4096))
        # The copy comes after the answer, at the first moment when nothing waits.
        with trio.fail_after(20):
            while size_of(path) <= IDLE_PAGES * 4096:
                await db.write(lambda tx: None)

    assert words_in(path) == ["big"]


async def test_a_huge_log_is_cut_even_under_steady_work(path: Path, migrations: Path) -> None:
    async with open_group(path, migrations, synchronous="NORMAL") as db:
        gate = Gate()
        db.submit(gate, lambda _result: None)
        for number in range(4):
            db.submit(add(str(number), body_bytes=FORCED_PAGES // 2 * 4096), lambda _result: None)
        gate.open()
        await db.write(add("next"))
        await db.write(add("after the next"))
        log_bytes = size_of(log_of(path))

    assert log_bytes < 100 * 4096


async def test_a_reader_in_the_middle_of_a_scan_only_delays_the_copying_of_the_log(
    path: Path, migrations: Path
) -> None:
    async with open_group(path, migrations) as db:
        for word in ("a", "b", "c"):
            await db.write(add(word))
        scan = db.reader.execute("SELECT word FROM entry ORDER BY no")
        assert next(scan) == ("a",)

        await db.write(add("big", body_bytes=(FORCED_PAGES + 100) * 4096))
        await db.write(add("d"))

        assert [word for (word,) in scan] == ["b", "c"]  # what it began with
        assert db.reader.row("SELECT count(*) FROM entry") == (5,)


async def test_a_clean_close_leaves_one_file_and_no_thread_or_descriptor(path: Path, migrations: Path) -> None:
    async def once(number: int) -> None:
        async with open_group(path, migrations) as db:
            await db.write(add(str(number)))

    await once(0)
    threads, before = threading.active_count(), sorted(descriptors())

    for number in range(1, 21):
        await once(number)

    assert threading.active_count() == threads
    assert sorted(descriptors()) == before
    assert [each.name for each in path.parent.iterdir() if each.is_file()] == ["small.db"]


class StoppingClock(SystemEntropy):
    """A clock that breaks when it is told to: a bug in the middle of the writer."""

    broken = False

    def monotonic_s(self) -> float:
        if self.broken:
            raise Boom("the clock stopped")
        return super().monotonic_s()


async def test_a_writer_that_breaks_answers_everybody_and_refuses_the_rest(path: Path, migrations: Path) -> None:
    clock = StoppingClock()
    results: list[outcome.Outcome[int]] = []
    async with open_group(path, migrations, entropy=clock) as db:
        await db.write(add("kept"))
        clock.broken = True
        for number in range(5):
            db.submit(add(str(number)), results.append)
        with pytest.raises(StorageFailed, match=r"the clock stopped.*not known"):
            await db.write(add("last"))
        with pytest.raises(StorageFailed, match="the writer failed"):
            await db.write(add("later"))

    assert len(results) == 5
    assert all(isinstance(result, outcome.Error) for result in results)
    assert words_in(path)[0] == "kept"


async def test_a_database_that_another_process_holds_is_an_error_and_not_a_wait_for_each_request(
    path: Path, migrations: Path
) -> None:
    async with open_group(path, migrations) as db:
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        results: list[outcome.Outcome[int]] = []
        for number in range(20):
            db.submit(add(str(number)), results.append)
        with trio.fail_after(30), pytest.raises(StorageFailed, match="another process"):
            await db.write(add("held up"))
        other.execute("ROLLBACK")
        other.close()

        assert await db.write(add("free")) == 1

    assert len(results) == 20


async def test_a_failure_in_a_full_batch_undoes_only_itself(path: Path, migrations: Path) -> None:
    results: list[outcome.Outcome[int]] = []
    async with open_group(path, migrations) as db:
        gate = Gate()
        db.submit(gate, lambda _result: None)
        for number in range(30):
            word = str(number)
            db.submit(add_then_fail(word) if number % 3 == 0 else add(word), results.append)
        gate.open()

    assert [isinstance(result, outcome.Error) for result in results] == [number % 3 == 0 for number in range(30)]
    assert words_in(path) == [str(number) for number in range(30) if number % 3]
