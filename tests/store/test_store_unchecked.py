"""Transactions without foreign keys: what removes whole families of rows, beside everybody else's work."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
import trio
import trio.testing
from store_kit import FIRST, OPENERS, SECOND, Boom, Gate, Opener, add, open_group, write_migrations

from peen.store.database import Database, Tx

FAMILY = "INSERT INTO entry (no, word) VALUES (1, 'parent')", "INSERT INTO page (entry_no) VALUES (1)"
UNDELETABLE = "DROP TRIGGER entry_stays"


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    return write_migrations(tmp_path / "migrations", FIRST, SECOND + UNDELETABLE)


@pytest.fixture(params=sorted(OPENERS))
def opener(request: pytest.FixtureRequest) -> Opener:
    return OPENERS[request.param]


def make_family(tx: Tx) -> None:
    for statement in FAMILY:
        tx.execute(statement)


def remove_parent(tx: Tx) -> None:
    tx.execute("DELETE FROM entry")


def remove_then_fail(tx: Tx) -> None:
    remove_parent(tx)
    raise Boom


async def test_a_parent_may_go_before_its_child_in_an_unchecked_transaction_and_in_no_other(
    tmp_path: Path, migrations: Path, opener: Opener
) -> None:
    async with opener(tmp_path / "small.db", migrations) as db:
        await db.write(make_family)
        with pytest.raises(apsw.ConstraintError):
            await db.write(remove_parent)

        await db.write(remove_parent, unchecked=True)

        assert db.reader.rows("SELECT word FROM entry") == []
        await db.write(lambda tx: tx.execute("DELETE FROM page").fetchall())
        await db.write(make_family)
        with pytest.raises(apsw.ConstraintError):
            await db.write(remove_parent)


async def test_one_that_fails_leaves_nothing_and_the_next_one_is_checked_again(
    tmp_path: Path, migrations: Path, opener: Opener
) -> None:
    async with opener(tmp_path / "small.db", migrations) as db:
        await db.write(make_family)
        with pytest.raises(Boom):
            await db.write(remove_then_fail, unchecked=True)

        assert db.reader.rows("SELECT word FROM entry") == [("parent",)]
        with pytest.raises(apsw.ConstraintError):
            await db.write(remove_parent)


async def test_what_waits_beside_it_is_one_commit_and_stays_checked(tmp_path: Path, migrations: Path) -> None:
    results: dict[str, BaseException | None] = {}

    async def note(name: str, db: Database, unchecked: bool) -> None:
        change = remove_parent if name.startswith("remove") else add(name)
        try:
            await db.write(change, unchecked=unchecked)
        except apsw.ConstraintError as refused:
            results[name] = refused
        else:
            results[name] = None

    async with open_group(tmp_path / "small.db", migrations) as db:
        await db.write(make_family)
        gate = Gate()
        db.submit(gate, lambda _result: None)
        async with trio.open_nursery() as nursery:
            for name, unchecked in (("one", False), ("remove all", True), ("remove checked", False), ("two", False)):
                nursery.start_soon(note, name, db, unchecked)
            await trio.testing.wait_all_tasks_blocked()
            gate.open()
        left = db.reader.rows("SELECT word FROM entry")

    assert {name: result is None for name, result in results.items()} == {
        "one": True, "two": True, "remove all": True, "remove checked": False,
    }  # fmt: skip
    assert left == []  # the unchecked one ran last, after the commit of all the others
