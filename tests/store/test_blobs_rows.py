"""Blobs in a database: stored once, read by those who sent them, gone when nobody uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib import resources
from pathlib import Path

import apsw
import pytest
import trio
from blob_kit import blob, message, reference
from hypothesis import given, settings
from hypothesis import strategies as st
from world_kit import Home, dump, make_home, open_store

from peen.entropy import SystemEntropy
from peen.ids import SessionNo
from peen.store import sessions
from peen.store.blobs.codec import MAX_BLOB_BYTES
from peen.store.blobs.decode import decode
from peen.store.blobs.encoder import Encoder
from peen.store.blobs.errors import BlobDamaged, BlobMissing, BlobRefused
from peen.store.blobs.rows import Blobs, missing, release
from peen.store.blobs.text import Blob, hash_of
from peen.store.database import Database, Tx
from peen.store.opening import open_database

TEXT = b"the text of a long string " * 30


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Database, Blobs, Home, Home]]:
    """A store with its blobs and two sessions."""
    async with open_store() as db:
        yield db, await Blobs.open(db), await make_home(db, 1), await make_home(db, 2)


async def save(db: Database, blobs: Blobs, session: SessionNo, *which: Blob) -> None:
    await db.write(partial(blobs.save, session_no=session, blobs=which))


async def release_all(db: Database, session: SessionNo, *, rows: int = 2_000, size: int = 1 << 22) -> int:
    """The number of transactions that it took."""
    steps = 1
    while not await db.write(partial(release, session_no=session, rows=rows, size=size)):
        steps += 1
    return steps


def hashes_in(db: Database) -> set[bytes]:
    """Hashes of the stored blobs, and that the tables agree about them."""
    assert db.reader.rows("PRAGMA foreign_key_check") == []
    assert db.reader.rows("SELECT id FROM blob ORDER BY id") == db.reader.rows("SELECT id FROM blobhash ORDER BY id")
    assert db.reader.rows("SELECT id FROM blob WHERE id NOT IN (SELECT blob_id FROM blob_use)") == []
    return {digest for (digest,) in db.reader.rows("SELECT hash FROM blobhash")}


# --- saving and reading


async def test_two_sessions_that_share_content_store_it_once() -> None:
    async with opened() as (db, blobs, first, second):
        await save(db, blobs, first.no, blob(TEXT))
        stored = db.reader.rows("SELECT * FROM blob")
        await save(db, blobs, second.no, blob(TEXT))

        assert db.reader.rows("SELECT * FROM blob") == stored
        assert hashes_in(db) == {hash_of(TEXT)}
        assert blobs.fetch(db.reader, first.no, hash_of(TEXT)) == TEXT
        assert blobs.fetch(db.reader, second.no, hash_of(TEXT)) == TEXT


async def test_saving_a_blob_again_changes_nothing() -> None:
    async with opened() as (db, blobs, home, _):
        await save(db, blobs, home.no, blob(TEXT), blob(TEXT))
        before = dump(db)

        await save(db, blobs, home.no, blob(TEXT))

        assert dump(db) == before


async def test_knowing_a_hash_is_not_enough_to_read_what_another_session_stored() -> None:
    async with opened() as (db, blobs, first, second):
        await save(db, blobs, first.no, blob(TEXT))

        with pytest.raises(BlobMissing) as caught:
            blobs.fetch(db.reader, second.no, hash_of(TEXT))
        assert caught.value.hashes == [hash_of(TEXT)]
        assert await db.write(partial(missing, session_no=second.no, hashes=[hash_of(TEXT)])) == [hash_of(TEXT)]
        assert await db.write(partial(missing, session_no=first.no, hashes=[hash_of(TEXT)])) == []


@pytest.mark.parametrize(
    "bad", [Blob(hash_of(TEXT), TEXT + b"!"), Blob(b"short", TEXT), blob(bytes(MAX_BLOB_BYTES + 1))]
)
async def test_a_blob_whose_bytes_are_not_what_its_hash_says_is_refused_with_all_that_came(bad: Blob) -> None:
    async with opened() as (db, blobs, home, _):
        before = dump(db)
        with pytest.raises(BlobRefused):
            await save(db, blobs, home.no, blob(b"sound"), bad)

        assert dump(db) == before


async def test_damaged_bytes_are_told_when_they_are_read() -> None:
    async with opened() as (db, blobs, home, _):
        await save(db, blobs, home.no, blob(TEXT))
        await db.write(lambda tx: tx.execute("UPDATE blob SET data = x'00'").fetchall())

        with pytest.raises(BlobDamaged):
            blobs.fetch(db.reader, home.no, hash_of(TEXT))


# --- a step and what it names


async def test_a_growing_list_is_read_back_from_the_database() -> None:
    messages = [message(n) for n in range(120)]
    encoder, chain = Encoder(), list[bytes]()
    async with opened() as (db, blobs, home, _):
        for each in messages:
            encoder.append(each)
            saved = encoder.save()
            await db.write(partial(blobs.accept, session_no=home.no, values=[saved.value], blobs=saved.new_blobs))
            chain = [saved.value] if saved.is_root else [*chain, saved.value]

        assert decode(chain, blobs.fetcher(db.reader, home.no)) == b"[" + b",".join(messages) + b"]"


async def test_a_step_that_names_what_is_not_there_is_refused_whole_and_sent_again_with_it() -> None:
    encoder = Encoder()
    encoder.replace_all([message(n) for n in range(40)])
    saved = encoder.save()
    async with opened() as (db, blobs, home, _):
        before = dump(db)
        sent = saved.new_blobs[1::2]
        with pytest.raises(BlobMissing) as caught:
            await db.write(partial(blobs.accept, session_no=home.no, values=[saved.value], blobs=sent))
        assert dump(db) == before
        assert len(caught.value.hashes) > 1

        for _level in range(10):  # what a missing run names shows when the run has come
            sent += encoder.blobs(caught.value.hashes)
            if len(sent) == len(saved.new_blobs):
                break
            with pytest.raises(BlobMissing) as caught:
                await db.write(partial(blobs.accept, session_no=home.no, values=[saved.value], blobs=sent))
        await db.write(partial(blobs.accept, session_no=home.no, values=[saved.value], blobs=sent))

        assert hashes_in(db) == {each.hash for each in saved.new_blobs}


async def test_a_step_may_not_lean_on_another_session() -> None:
    async with opened() as (db, blobs, first, second):
        await save(db, blobs, second.no, blob(TEXT))
        value = b"[%b]" % reference(b"s", TEXT)

        with pytest.raises(BlobMissing):
            await db.write(partial(blobs.accept, session_no=first.no, values=[value], blobs=[]))
        with pytest.raises(BlobDamaged):
            await db.write(partial(blobs.accept, session_no=first.no, values=[b'["~what"]'], blobs=[]))


# --- release


async def test_release_frees_exactly_what_nobody_else_uses() -> None:
    shared, own, others = blob(TEXT), blob(b"own " * 200), blob(b"of the other " * 90)
    async with opened() as (db, blobs, first, second):
        await save(db, blobs, second.no, shared, others)
        before = dump(db)
        await save(db, blobs, first.no, own, shared)

        assert await release_all(db, first.no) == 1

        assert dump(db) == before
        assert hashes_in(db) == {shared.hash, others.hash}
        with pytest.raises(BlobMissing):
            blobs.fetch(db.reader, first.no, shared.hash)
        await release_all(db, second.no)
        assert hashes_in(db) == set()


async def test_release_works_in_pieces_that_the_caller_bounds() -> None:
    many = [blob(b"%d " % n * 300) for n in range(10)]
    async with opened() as (db, blobs, home, _):
        await save(db, blobs, home.no, *many)
        left = []
        while not await db.write(partial(release, session_no=home.no, rows=4)):
            left.append(len(hashes_in(db)))
        assert left == [6, 2]
        assert hashes_in(db) == set()

        await save(db, blobs, home.no, *many)
        assert await release_all(db, home.no, size=1) == 10
        assert hashes_in(db) == set()


async def test_a_session_cannot_be_removed_before_its_blobs() -> None:
    async with opened() as (db, blobs, home, _):
        await save(db, blobs, home.no, blob(TEXT))
        with pytest.raises(apsw.ConstraintError, match="FOREIGN KEY"):
            await db.write(lambda tx: tx.execute("DELETE FROM session WHERE no = ?", (home.no,)).fetchall())

        assert hashes_in(db) == {hash_of(TEXT)}


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 3), st.sets(st.integers(0, 12), max_size=6)), max_size=12), st.integers(1, 5))
def test_at_any_time_the_file_holds_what_somebody_uses(history: list[tuple[int, set[int]]], rows: int) -> None:
    """Each entry saves some blobs for a session; none at all releases what it has."""
    contents = [blob(b"content %d " % n * 60) for n in range(13)]

    async def main() -> None:
        uses: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
        async with open_store() as db:
            blobs = await Blobs.open(db)
            homes = {number: await make_home(db, number) for number in uses}
            for number, chosen in history:
                if chosen:
                    await save(db, blobs, homes[number].no, *(contents[n] for n in chosen))
                    uses[number] |= chosen
                else:
                    await release_all(db, homes[number].no, rows=rows)
                    uses[number] = set()
                assert hashes_in(db) == {contents[n].hash for used in uses.values() for n in used}
            for number, home in homes.items():
                granted = await db.write(partial(missing, session_no=home.no, hashes=[each.hash for each in contents]))
                assert set(granted) == {each.hash for n, each in enumerate(contents) if n not in uses[number]}

    trio.run(main)


# --- older databases


async def test_a_database_of_the_first_release_is_migrated(tmp_path: Path) -> None:
    migrations = resources.files("peen.store") / "migrations"
    first = tmp_path / "first"
    first.mkdir()
    (first / "0001_initial.sql").write_text((migrations / "0001_initial.sql").read_text())
    path = tmp_path / "peen.db"
    async with open_database(path, migrations=first, name="peen", entropy=SystemEntropy(), reserve_bytes=0) as db:
        await db.write(one_session)

    async with open_database(path, migrations=migrations, name="peen", entropy=SystemEntropy(), reserve_bytes=0) as db:
        blobs = await Blobs.open(db)
        session = sessions.by_workspace(db.reader, "/srv/project")
        assert session is not None
        await save(db, blobs, session.no, blob(TEXT))
        assert blobs.fetch(db.reader, session.no, hash_of(TEXT)) == TEXT


def one_session(tx: Tx) -> None:
    """As the first release made it."""
    tx.execute(
        "INSERT INTO session (id, workspace, agent_space, root_agent, model, created_at_ms, updated_at_ms) "
        "VALUES (zeroblob(16), '/srv/project', 'control', 'peen', 'm', 0, 0)"
    )
