"""What both variants of the store promise to their callers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import outcome
import pytest
import trio
from store_kit import FIRST, OPENERS, Boom, Opener, add, add_then_fail, words_in, write_migrations

from peen.errors import StorageFailed
from peen.ids import SessionNo
from peen.store.database import Database, Touched, TransactionLost, Tx


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    return write_migrations(tmp_path / "migrations", FIRST)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "small.db"


@pytest.fixture(params=sorted(OPENERS))
def opener(request: pytest.FixtureRequest) -> Opener:
    return OPENERS[request.param]


@pytest.fixture
async def db(opener: Opener, path: Path, migrations: Path) -> AsyncIterator[Database]:
    async with opener(path, migrations) as database:
        yield database


async def test_what_a_write_returns_is_committed_and_seen_by_the_reader(db: Database) -> None:
    number = await db.write(add("one"))

    assert db.reader.row("SELECT word FROM entry WHERE no = ?", (number,)) == ("one",)
    assert db.reader.rows("SELECT no, word FROM entry") == [(number, "one")]
    assert db.reader.row("SELECT word FROM entry WHERE no = 99") is None


async def test_the_reader_cannot_write(db: Database) -> None:
    with pytest.raises(apsw.ReadOnlyError):
        db.reader.execute("INSERT INTO entry (word) VALUES ('sneaked in')")

    assert await db.write(add("allowed")) == 1


async def test_a_change_that_raises_is_undone_and_its_caller_gets_the_exception(db: Database, path: Path) -> None:
    with pytest.raises(Boom, match="bad"):
        await db.write(add_then_fail("bad"))
    await db.write(add("good"))

    assert words_in(path) == ["good"]


async def test_a_broken_constraint_reaches_its_caller_unchanged(db: Database) -> None:
    await db.write(add("taken"))

    with pytest.raises(apsw.ConstraintError, match=r"entry\.word"):
        await db.write(add("taken"))


async def test_one_failing_request_does_not_disturb_the_others_of_its_batch(db: Database, path: Path) -> None:
    results: dict[str, outcome.Outcome[int]] = {}
    for word in ("a", "b", "c"):
        change = add_then_fail(word) if word == "b" else add(word)
        db.submit(change, lambda result, word=word: results.__setitem__(word, result))  # type: ignore[misc]
    await db.write(add("d"))

    assert {word: type(result) for word, result in results.items()} == {
        "a": outcome.Value,
        "b": outcome.Error,
        "c": outcome.Value,
    }
    assert words_in(path) == ["a", "c", "d"]


async def test_requests_are_committed_in_the_order_in_which_they_were_submitted(db: Database, path: Path) -> None:
    words = [f"{number:03d}" for number in range(700)]  # more than two full batches
    answered: list[str] = []
    finished = trio.Event()

    def done(word: str, _result: outcome.Outcome[int]) -> None:
        answered.append(word)
        if word == words[-1]:
            finished.set()

    for word in words:
        db.submit(add(word), lambda result, word=word: done(word, result))  # type: ignore[misc]
    with trio.fail_after(30):
        await finished.wait()

    assert answered == words
    assert words_in(path) == words


async def test_cancelled_before_it_is_queued_means_not_written(db: Database, path: Path) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await db.write(add("never"))

    assert scope.cancelled_caught
    assert words_in(path) == []


async def test_cancelled_while_it_waits_still_gives_the_answer(db: Database, path: Path) -> None:
    answers: list[int] = []
    with trio.CancelScope() as scope:

        async def ask() -> None:
            answers.append(await db.write(add("written")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            db.submit(lambda tx: None, lambda _result: scope.cancel())  # settled before or with the write

    assert answers in ([], [1])
    assert words_in(path) == ["written"] * len(answers)


async def test_touched_ranges_are_told_before_the_callers_are_woken(db: Database) -> None:
    told: list[Touched | str] = []
    db.on_commit = told.append

    def touching(session: int, first: int, last: int, *, fail: bool = False) -> Any:
        def change(tx: Tx) -> None:
            tx.touch(SessionNo(session), first, last)
            if fail:
                raise Boom

        return change

    db.submit(touching(1, 1, 2), lambda _result: told.append("first"))
    db.submit(touching(1, 3, 5), lambda _result: told.append("second"))
    db.submit(touching(1, 6, 9, fail=True), lambda _result: told.append("failed"))
    await db.write(touching(2, 1, 1))

    seen: set[str] = set()
    merged: Touched = {}
    for item in told:
        if isinstance(item, dict):
            for session, (first, last) in item.items():
                low, high = merged.get(session, (first, last))
                merged[session] = (min(low, first), max(high, last))
        else:
            seen.add(item)
            assert item != "second" or merged[SessionNo(1)] == (1, 5)
    assert merged == {SessionNo(1): (1, 5), SessionNo(2): (1, 1)}
    assert seen == {"first", "second", "failed"}


async def test_a_commit_that_touched_nothing_is_not_announced(db: Database) -> None:
    told: list[Touched] = []
    db.on_commit = told.append

    await db.write(add("quiet"))

    assert told == []


async def test_a_transaction_outlived_by_its_handle_takes_no_statement(db: Database, path: Path) -> None:
    kept: list[Tx] = []
    await db.write(kept.append)

    with pytest.raises(TransactionLost):
        kept[0].execute("INSERT INTO entry (word) VALUES ('late')")

    assert words_in(path) == []


async def test_even_an_exit_raised_by_a_change_only_reaches_its_caller(db: Database) -> None:
    def leave(tx: Tx) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await db.write(leave)

    assert await db.write(add("still here")) == 1


async def test_everything_submitted_before_the_close_is_answered(opener: Opener, path: Path, migrations: Path) -> None:
    results: list[outcome.Outcome[int]] = []
    async with opener(path, migrations) as db:
        for number in range(300):
            db.submit(add(str(number)), results.append)

    assert [result.unwrap() for result in results] == list(range(1, 301))
    assert words_in(path) == [str(number) for number in range(300)]


async def test_after_the_close_a_request_is_refused(opener: Opener, path: Path, migrations: Path) -> None:
    async with opener(path, migrations) as db:
        pass

    with pytest.raises(StorageFailed, match=r"small\.db: closed"):
        await db.write(add("late"))
    with pytest.raises(StorageFailed, match="closed"):
        db.submit(add("late"), lambda _result: None)


async def test_a_body_that_raises_closes_the_store_and_raises_the_same(
    opener: Opener, path: Path, migrations: Path
) -> None:
    async def use() -> None:
        async with opener(path, migrations) as db:
            await db.write(add("kept"))
            raise Boom("in the body")

    with pytest.raises(Boom, match="in the body"):
        await use()

    assert words_in(path) == ["kept"]
