from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec import Raw
from world_kit import (
    AT_MS,
    HOLDER,
    Home,
    accept_message,
    acceptance,
    check_sequences,
    dump,
    execution_of,
    make_home,
    open_store,
    open_turn,
    uuid,
)

from peen.errors import SessionBusy, SessionNotFound
from peen.session import writes
from peen.session.acceptance import accept
from peen.store import (
    admissions,
    audit,
    compactions,
    controlevents,
    deletion,
    executions,
    feed,
    images,
    jobs,
    messages,
    notices,
    reasoning,
    sessions,
    snapshots,
    turns,
)
from peen.store.blobs.rows import Blobs
from peen.store.blobs.text import Blob, hash_of
from peen.store.compactions import CompactionRow
from peen.store.database import Database, Tx
from peen.store.direct import MemoryFile
from peen.store.feed import NewEvent
from peen.testing.faults import Faults, SimulatedCrash
from peen.wire.joboutput import STDOUT, Piece, chunk_of
from peen.wire.records import Claim, EventRecord, MessageRecord, ModelCallRecord, RefusedImage, Terminal
from peen.wire.turncalls import CommitSteps, OpenedTurn

BLOBS = {"blob", "blobhash", "blob_use"}
SHARED = {"snapshot", "sqlite_sequence", "blob_dictionary"}
"""Tables whose rows belong to no session: of these only what nobody else uses goes."""


async def complete_turn(db: Database, home: Home, *, frame: int) -> OpenedTurn:
    """A turn with a row in every table that a turn writes to."""
    opened = await open_turn(db, home, f"message {frame}", frame=frame)
    blobs = await Blobs.open(db)
    await db.write(partial(_note_and_keep, blobs=blobs, home=home, turn_no=opened.turn, frame=frame))
    claim = Claim(step="r0.model", kind="model", given=Raw(b"{}"))
    asked = ModelCallRecord(
        round=0, state="completed", request_sequence=1, started_at_ms=AT_MS, completed_at_ms=AT_MS, response=Raw(b"{}")
    )
    request = CommitSteps(
        execution_id=opened.execution_id, holder=HOLDER, messages=[MessageRecord(role="assistant", content="done")],
        events=[EventRecord(type="tool.use", data=Raw(b"{}"))], calls=[asked], claims=[claim],
    )  # fmt: skip
    commit = partial(
        writes.commit_steps, writer=home.writer, payload=b"", next_turn_id=uuid(7000 + frame).bytes, at_ms=AT_MS
    )
    await db.write(partial(commit, request=request))
    failed = Terminal(state="failed", reason="timeout", error="too slow", classification="timeout")
    end = CommitSteps(execution_id=opened.execution_id, holder=HOLDER, terminal=failed)
    await db.write(partial(commit, request=end))
    execution = execution_of(db, str(uuid(3000 + frame)))
    noted = partial(controlevents.add_event, execution_no=execution.no, event_type="x", data={"n": frame}, at_ms=AT_MS)
    await db.write(noted)
    admitted = partial(
        admissions.admit, session_no=home.no, execution_no=execution.no, control_revision=1, caller="api",
        is_automatic=False, provenance=b"{}", at_ms=AT_MS,
    )  # fmt: skip
    await db.write(admitted)
    await db.write(partial(_run_command, home=home, turn_no=opened.turn, execution_no=execution.no, frame=frame))
    return opened


def _run_command(tx: Tx, home: Home, turn_no: int, execution_no: int, frame: int) -> None:
    """A command that printed something, was signalled, and has ended."""
    owner, job_id = jobs.Owner(home.no, home.generation_no), uuid(8000 + frame).bytes
    jobs.create(
        tx, owner, job_id=job_id, turn_no=turn_no, execution_no=execution_no, call_id="c", purpose="x", command="true",
        directory="/", at_ms=AT_MS,
    )  # fmt: skip
    jobs.append(tx, owner, job_id, [chunk_of(1, [Piece(STDOUT, False, b"x\n")])], at_ms=AT_MS)
    job = jobs.by_id(tx, home.no, job_id)
    assert job is not None
    jobs.add_signal(tx, job, signal="stop", at_ms=AT_MS)
    jobs.end(tx, owner, job_id, state="exited", exit_code=0, detail="", pid=7, at_ms=AT_MS)


def _note_and_keep(tx: Tx, blobs: Blobs, home: Home, turn_no: int, frame: int) -> None:
    """A notice that the turn opened with; a blob of its own, and one that all turns share."""
    noted = notices.add(
        tx, home.no, notice_type="x", source="api", summary="x", data=b"{}", delivery="queue", is_pending=True,
        at_ms=AT_MS,
    )  # fmt: skip
    notices.mark_delivered(tx, home.no, [noted], at_ms=AT_MS, opening_turn_no=turn_no)
    refused = RefusedImage(sha256=hash_of(b"%d" % frame).hex(), reason="too large")
    images.refuse(tx, home.no, refused, model="up/m", up_to_sequence=1, turn_no=turn_no, at_ms=AT_MS)
    reasoning.refuse(tx, home.no, "up/m", up_to_sequence=1)
    last = sessions.message_sequence(tx, home.no)
    head = compactions.head(tx, home.no)
    summary = CompactionRow(
        sequence=1 if head is None else head.sequence + 1, supersedes=None if head is None else head.sequence,
        from_sequence=1, to_sequence=last, message_count=1, input_tokens=1, summary_tokens=1, model="m",
        prompt_sha256=b"", summary="s", created_at_ms=AT_MS,
    )  # fmt: skip
    compactions.add(tx, home.no, summary, prompt_no=snapshots.save(tx, home.no, "prompt", "Sum up.", at_ms=AT_MS))
    kept = [b"%d" % frame * 600, b"shared" * 100]
    blobs.save(tx, home.no, [Blob(hash_of(data), data) for data in kept])


async def begin_deletion(db: Database, home: Home) -> None:
    await db.write(partial(deletion.mark, session_id=home.id, at_ms=AT_MS))


def rows_of(db: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row but the counter of session numbers and what blobs are compressed with: neither ever goes."""
    return {table: rows for table, rows in dump(db).items() if table not in ("sqlite_sequence", "blob_dictionary")}


def is_sound(db: Database) -> bool:
    unsound = db.reader.rows("PRAGMA foreign_key_check")
    return unsound == [] and db.reader.rows("PRAGMA integrity_check") == [("ok",)]


# --- what goes and what stays -----------------------------------------------------------------------------------------


async def test_nothing_of_a_deleted_session_is_left_and_nothing_of_another_is_touched() -> None:
    async with open_store() as db:
        other = await make_home(db, 1)
        await complete_turn(db, other, frame=1)
        before = rows_of(db)
        home = await make_home(db, 2)
        for frame in (2, 3, 4):
            await complete_turn(db, home, frame=frame)

        await begin_deletion(db, home)
        await deletion.remove(db, home.no)

        assert rows_of(db) == before
        assert is_sound(db)
        check_sequences(db.reader)


async def test_the_test_above_has_rows_in_every_table_that_belongs_to_sessions() -> None:
    async with open_store() as db:
        await complete_turn(db, await make_home(db), frame=1)
        filled = {table for table, rows in dump(db).items() if rows}
        tables = dump(db).keys()

    assert filled == tables
    assert {part.table for part in deletion.PARTS} | BLOBS | SHARED | {"session"} == tables


async def test_a_text_that_another_session_uses_stays_and_is_readable_there_alone() -> None:
    async with open_store() as db:
        first, second = await make_home(db, 1), await make_home(db, 2)
        await complete_turn(db, first, frame=1)
        await complete_turn(db, second, frame=2)
        shared = db.reader.rows("SELECT * FROM snapshot")

        await begin_deletion(db, first)
        await deletion.remove(db, first.no)
        assert db.reader.rows("SELECT * FROM snapshot") == shared

        await begin_deletion(db, second)
        await deletion.remove(db, second.no)
        assert db.reader.rows("SELECT * FROM snapshot") == []


# --- the mark ---------------------------------------------------------------------------------------------------------


async def test_a_marked_session_is_hidden_at_once_and_its_workspace_can_be_opened_anew() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await complete_turn(db, home, frame=1)
        await begin_deletion(db, home)

        assert sessions.by_id(db.reader, home.id) is None
        assert sessions.by_workspace(db.reader, "/srv/project-1") is None
        assert (sessions.page(db.reader, limit=10, offset=0), sessions.count(db.reader)) == ([], 0)
        assert deletion.pending(db.reader) == [home.no]

        again, created = await db.write(
            partial(
                sessions.open_or_create, new_id=uuid(77).bytes, workspace="/srv/project-1", agent_space="control",
                root_agent="peen", model="m", at_ms=AT_MS,
            )
        )  # fmt: skip
        await deletion.remove(db, home.no)

        assert created
        assert sessions.page(db.reader, limit=10, offset=0) == [again]
        assert deletion.pending(db.reader) == []


async def test_a_number_of_a_session_is_never_used_again() -> None:
    async with open_store() as db:
        for number in (1, 2):
            home = await make_home(db, number)
            await begin_deletion(db, home)
            await deletion.remove(db, home.no)
        third = await make_home(db, 3)

    assert third.no > home.no


async def test_a_message_that_comes_too_late_is_refused_and_stores_nothing() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await begin_deletion(db, home)
        before = dump(db)

        with pytest.raises(SessionNotFound):
            await db.write(partial(accept, session_no=home.no, acceptance=acceptance(home)))
        assert dump(db) == before


async def test_a_session_is_marked_once() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await begin_deletion(db, home)

        with pytest.raises(SessionNotFound):
            await begin_deletion(db, home)
        with pytest.raises(SessionNotFound):
            await db.write(partial(deletion.mark, session_id=uuid(12345).bytes, at_ms=AT_MS))


@pytest.mark.parametrize("begin", [open_turn, accept_message], ids=["a turn runs", "a turn is about to open"])
async def test_a_session_at_work_is_not_marked(begin: Callable[..., Any]) -> None:
    async with open_store() as db:
        home, idle = await make_home(db, 1), await make_home(db, 2)
        await begin(db, home)
        before = dump(db)

        with pytest.raises(SessionBusy):
            await begin_deletion(db, home)
        assert dump(db) == before
        await begin_deletion(db, idle)


async def test_paused_work_does_not_keep_a_session() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        execution = execution_of(db, str(uuid(3001)))
        await db.write(partial(executions.pause, no=execution.no, reason="stop", at_ms=AT_MS))
        await db.write(
            partial(turns.end_turn, no=opened.turn, state="cancelled", classification="cancelled", at_ms=AT_MS)
        )

        await begin_deletion(db, home)
        await deletion.remove(db, home.no)

        assert {table for table, rows in rows_of(db).items() if rows} == set()


# --- in small transactions --------------------------------------------------------------------------------------------


def total_rows(db: Database) -> int:
    return sum(len(rows) for rows in rows_of(db).values())


async def test_no_transaction_removes_more_rows_than_it_may() -> None:
    async with open_store() as db:
        home = await make_home(db)
        for frame in range(1, 6):
            await complete_turn(db, home, frame=frame)
        await begin_deletion(db, home)
        counts = [total_rows(db)]
        done = False
        while not done:
            done = await db.write(partial(deletion.step, session_no=home.no, rows=7), unchecked=True)
            counts.append(total_rows(db))

    # A blob counts as one with its hash and its use; the last step takes the session along.
    removed = [before - after for before, after in itertools.pairwise(counts)]
    assert counts[0] > 100
    assert counts[-1] == 0
    assert max(removed) <= 3 * 7 + 1
    assert min(removed[:-1]) >= 7


async def test_large_rows_make_a_step_short() -> None:
    def fill(tx: Tx) -> None:
        feed.append(tx, home.no, [NewEvent("x", bytes(1000)) for _ in range(50)], at_ms=AT_MS)

    async with open_store() as db:
        home = await make_home(db)
        await db.write(fill)
        await begin_deletion(db, home)

        done = await db.write(partial(deletion.step, session_no=home.no, size=4_500), unchecked=True)

        assert not done
        assert len(dump(db)["feed"]) == 45


@pytest.mark.parametrize("crash", [Faults.crash_before_commit, Faults.crash_after_commit])
async def test_a_deletion_that_is_cut_off_anywhere_leaves_a_sound_database_and_is_finished_later(
    crash: Callable[[int], Faults],
) -> None:
    file = MemoryFile()
    async with open_store(file) as db:
        other = await make_home(db, 1)
        await complete_turn(db, other, frame=1)
        kept = rows_of(db)
        home = await make_home(db, 2)
        for frame in (2, 3):
            await complete_turn(db, home, frame=frame)
    image = file.image

    for crash_at in itertools.count(1):
        file.image = image
        faults = crash(crash_at)
        try:
            async with open_store(file, faults=faults) as db:
                await begin_deletion(db, home)
                await deletion.remove(db, home.no, rows=5)
        except SimulatedCrash:
            pass
        async with open_store(file) as db:
            was_marked = sessions.by_id(db.reader, home.id) is None
            assert is_sound(db)
            await deletion.finish(db)
            assert deletion.pending(db.reader) == []
            assert rows_of(db) == kept if was_marked else sessions.by_id(db.reader, home.id) is not None
            assert is_sound(db)
        if not faults.fired:
            assert was_marked
            assert crash_at > 5
            return


@pytest.mark.parametrize("fault", [Faults.full_at, Faults.ioerr_at])
async def test_a_step_that_fails_changes_nothing_and_foreign_keys_hold_again(fault: Callable[[int], Faults]) -> None:
    file = MemoryFile()
    async with open_store(file) as db:
        home = await make_home(db)
        await complete_turn(db, home, frame=1)
        await begin_deletion(db, home)
        marked = dump(db)

    async with open_store(file, faults=fault(9)) as db:
        with pytest.raises(Exception, match="disk"):
            await db.write(partial(deletion.step, session_no=home.no), unchecked=True)
        assert dump(db) == marked
        assert db.reader.row("PRAGMA foreign_keys") == (1,)
        await deletion.remove(db, home.no)
        assert total_rows(db) == 0


async def test_a_full_disk_puts_a_deletion_off_and_does_not_lose_it(autojump_clock: object) -> None:
    file = MemoryFile()
    async with open_store(file) as db:
        home = await make_home(db)
        await complete_turn(db, home, frame=1)
        await begin_deletion(db, home)

    async with open_store(file, faults=Faults.full_at(9, lasting=5)) as db:
        await deletion.remove(db, home.no)
        assert total_rows(db) == 0


# --- space -----------------------------------------------------------------------------------------------------------


async def test_the_pages_of_a_session_are_reused_or_given_back() -> None:
    def fill(tx: Tx) -> None:
        feed.append(tx, home.no, [NewEvent("x", bytes(2000)) for _ in range(1500)], at_ms=AT_MS)

    async with open_store() as db:
        home = await make_home(db)
        before = db.reader.row("PRAGMA page_count")
        await db.write(fill)
        await begin_deletion(db, home)
        await deletion.remove(db, home.no)
        free = db.reader.row("PRAGMA freelist_count")
        assert free is not None
        assert free[0] > 2 * deletion.VACUUM_PAGES

        assert await db.write(deletion.give_back_some)
        assert db.reader.row("PRAGMA freelist_count") == (free[0] - deletion.VACUUM_PAGES,)
        await deletion.give_back(db)

        assert db.reader.row("PRAGMA freelist_count") == (0,)
        after = db.reader.row("PRAGMA page_count")
        assert before is not None
        assert after is not None
        assert after[0] <= before[0]
        assert is_sound(db)


async def test_a_disk_that_does_not_take_free_pages_back_is_no_failure() -> None:
    file = MemoryFile()
    async with open_store(file) as db:
        home = await make_home(db)
        await complete_turn(db, home, frame=1)
        await begin_deletion(db, home)
        await deletion.remove(db, home.no)

    async with open_store(file, faults=Faults.full_at(1, lasting=100)) as db:
        await deletion.give_back(db)
        assert is_sound(db)


async def test_readers_of_a_marked_session_by_number_still_find_it() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await complete_turn(db, home, frame=1)
        await begin_deletion(db, home)

        row = sessions.by_no(db.reader, home.no)
        assert row is not None
        assert row.uuid == home.uuid
        assert messages.of_turn(db.reader, opened.turn) != []
        assert list(audit.runs(db.reader, home.no, stage=None, state=None, limit=5, offset=0)) != []
