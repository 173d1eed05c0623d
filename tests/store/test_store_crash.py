"""A simulated process that dies at a commit, and what the next one finds."""

from __future__ import annotations

import itertools
from pathlib import Path

import outcome
import pytest
import trio
from store_kit import FIRST, NAME, SECOND, add, words_in, write_migrations
from trio.testing import MockClock

from peen.errors import StorageFailed, StorageFull
from peen.store.database import Database, Tx
from peen.store.direct import MemoryFile
from peen.store.opening import open_direct
from peen.testing.faults import Faults, SimulatedCrash

WORDS = ["one", "two", "three"]


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    return write_migrations(tmp_path / "migrations", FIRST)


def run_once(where: Path | MemoryFile, migrations: Path, faults: Faults | None) -> list[str]:
    """Write the words that are missing, one after the other; the words found at the end.

    Raises: SimulatedCrash.
    """

    async def main() -> list[str]:
        async with open_direct(where, migrations=migrations, name=NAME, seed=7, faults=faults) as db:
            for word in WORDS:
                if db.reader.row("SELECT no FROM entry WHERE word = ?", (word,)) is None:
                    await db.write(add(word))
            return [word for (word,) in db.reader.rows("SELECT word FROM entry ORDER BY no")]

    return trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_commit_loses_nothing_committed_and_keeps_nothing_else(
    tmp_path: Path, migrations: Path, in_memory: bool, after: bool
) -> None:
    for crash_at in itertools.count(1):
        where = MemoryFile() if in_memory else tmp_path / f"{crash_at}.db"
        faults = Faults.crash_after_commit(crash_at) if after else Faults.crash_before_commit(crash_at)
        if crash_at > len(WORDS):  # no commit is left to crash at: all were tried
            assert run_once(where, migrations, faults) == WORDS
            assert faults.fired == 0
            return

        with pytest.raises(SimulatedCrash):
            run_once(where, migrations, faults)

        survived = WORDS[: crash_at if after else crash_at - 1]
        if isinstance(where, Path):
            assert words_in(where) == survived
        second = Faults()
        assert run_once(where, migrations, second) == WORDS
        assert second.commits == len(WORDS) - len(survived)


def test_a_crash_wakes_everybody_who_waits_and_refuses_whoever_comes_later(migrations: Path) -> None:
    results: list[outcome.Outcome[int]] = []

    async def main() -> None:
        faults = Faults.crash_before_commit(1)
        async with open_direct(MemoryFile(), migrations=migrations, name=NAME, seed=3, faults=faults) as db:
            db.submit(add("one"), results.append)
            db.submit(add("two"), results.append)
            with pytest.raises(SimulatedCrash):
                await db.write(add("three"))
            with pytest.raises(SimulatedCrash):
                db.submit(add("later"), results.append)
            with pytest.raises(SimulatedCrash):
                await db.write(add("later"))

    trio.run(main, clock=MockClock(autojump_threshold=0))

    assert [type(result.error) for result in results if isinstance(result, outcome.Error)] == [SimulatedCrash] * 2


def test_a_crash_in_a_request_that_nobody_waits_for_ends_the_whole_run(migrations: Path) -> None:
    async def main() -> None:
        faults = Faults.crash_after_commit(1)
        async with open_direct(MemoryFile(), migrations=migrations, name=NAME, seed=3, faults=faults) as db:
            db.submit(add("one"), lambda _result: None)
            await trio.sleep_forever()

    with pytest.raises(SimulatedCrash):
        trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_database_in_memory_is_migrated_when_it_is_opened_again(tmp_path: Path, migrations: Path) -> None:
    disk = MemoryFile()
    run_once(disk, migrations, None)
    write_migrations(migrations, FIRST, SECOND)

    async def main() -> tuple[int, ...] | None:
        async with open_direct(disk, migrations=migrations, name=NAME, seed=1) as db:
            return db.reader.row("SELECT count(*) FROM page")

    assert trio.run(main) == (len(WORDS),)


def test_one_seed_gives_one_grouping_into_commits_and_another_seed_another(migrations: Path) -> None:
    def commits(seed: int) -> tuple[int, list[str]]:
        faults = Faults()

        async def one(db: Database, number: int) -> None:
            for turn in range(3):
                await db.write(add(f"{number}.{turn}"))

        async def main() -> list[str]:
            async with open_direct(MemoryFile(), migrations=migrations, name=NAME, seed=seed, faults=faults) as db:
                async with trio.open_nursery() as nursery:
                    for number in range(5):
                        nursery.start_soon(one, db, number)
                return [word for (word,) in db.reader.rows("SELECT word FROM entry ORDER BY no")]

        trio._core._run._r.seed(seed)
        words = trio.run(main, clock=MockClock(autojump_threshold=0))
        return faults.commits, words

    runs = [commits(seed) for seed in range(8)]

    assert runs == [commits(seed) for seed in range(8)]
    assert len({tuple(words) for _, words in runs}) > 1
    assert all(count < 15 for count, _ in runs), "writes never shared a commit"


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (Faults.full_at(1), StorageFull),
        (Faults.ioerr_at(1), StorageFailed),
        (Faults.failed_commit_at(1), StorageFailed),
        (Faults.failed_commit_at(1, kind="full"), StorageFull),
    ],
)
async def test_a_fault_in_a_lone_request_is_the_answer_to_it(
    tmp_path: Path, migrations: Path, faults: Faults, expected: type[Exception]
) -> None:
    path = tmp_path / "small.db"
    async with open_direct(path, migrations=migrations, name=NAME, seed=1, faults=faults) as db:
        with pytest.raises(expected, match=r"small\.db"):
            await db.write(add("lost"))
        assert await db.write(add("next")) == 1

    assert faults.fired == 1
    assert words_in(path) == ["next"]


async def test_no_statement_of_a_change_that_lost_its_transaction_is_committed_by_itself(
    tmp_path: Path, migrations: Path
) -> None:
    path = tmp_path / "small.db"

    def stubborn(tx: Tx) -> None:
        try:
            add("first")(tx)
        except Exception as exc:
            add("second")(tx)
            raise AssertionError from exc

    async with open_direct(path, migrations=migrations, name=NAME, seed=1, faults=Faults.full_at(1)) as db:
        result: list[outcome.Outcome[None]] = []
        db.submit(stubborn, result.append)
        await db.write(add("other"))

    assert words_in(path) in (["first", "other"], ["other"])  # run again by itself, or refused: never "second"
