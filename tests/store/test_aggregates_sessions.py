from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import UUID

import apsw
import pytest
from world_kit import AT_MS, MODEL, accept_message, make_home, open_store, open_turn, uuid

from peen.session.acceptance import end_accepted
from peen.session.ending import Ending, interrupted
from peen.store import executions, inbox, sessions, turns
from peen.store.database import Tx
from peen.store.sessions import SessionRow

FAILED = Ending(state="failed", reason="agentRun", error="broken", classification="agentRun")


def opening(
    number: int, workspace: str, *, agent_space: str = "control", at_ms: int = AT_MS
) -> Callable[[Tx], tuple[SessionRow, bool]]:
    return partial(
        sessions.open_or_create, new_id=uuid(number).bytes, workspace=workspace, agent_space=agent_space,
        root_agent="peen", model=MODEL, at_ms=at_ms,
    )  # fmt: skip


async def test_a_workspace_has_one_session_which_keeps_its_own_agent_space() -> None:
    async with open_store() as db:
        first, was_made = await db.write(opening(1, "/srv/a"))
        second, was_made_again = await db.write(opening(2, "/srv/a", agent_space="docker:full"))

        assert (was_made, was_made_again) == (True, False)
        assert second == first
        assert second.agent_space == "control"
        assert sessions.count(db.reader) == 1


async def test_a_session_is_found_by_id_by_number_and_by_workspace() -> None:
    async with open_store() as db:
        made, _ = await db.write(opening(1, "/srv/a"))

        assert sessions.by_id(db.reader, uuid(1).bytes) == made
        assert sessions.by_no(db.reader, made.no) == made
        assert sessions.by_workspace(db.reader, "/srv/a") == made
        assert made.uuid == str(uuid(1))
        assert sessions.by_id(db.reader, uuid(2).bytes) is None
        assert sessions.by_workspace(db.reader, "/srv/b") is None


async def test_pages_of_sessions_begin_with_the_one_used_last_and_lose_none() -> None:
    async with open_store() as db:
        for number, at_ms in enumerate([30, 10, 20, 20, 40], start=1):
            await db.write(opening(number, f"/srv/{number}", at_ms=at_ms))

        pages = [sessions.page(db.reader, limit=2, offset=offset) for offset in (0, 2, 4, 6)]

    assert [[row.no for row in page] for page in pages] == [[5, 1], [4, 3], [2], []]


async def test_a_message_makes_its_session_the_one_used_last() -> None:
    async with open_store() as db:
        older = await make_home(db, 1)
        await make_home(db, 2)
        await db.write(partial(sessions.take_sequences, no=older.no, messages=1, at_ms=AT_MS + 5))

        used = sessions.page(db.reader, limit=1, offset=0)[0]

    assert (used.no, used.last_message_at_ms, used.updated_at_ms) == (older.no, AT_MS + 5, AT_MS + 5)


async def test_the_cursor_of_the_running_turn_lies_before_its_first_frame_and_goes_when_it_ends() -> None:
    async with open_store() as db:
        home = await make_home(db)
        before = sessions.by_no(db.reader, home.no)
        assert before is not None
        await open_turn(db, home, frame=1)
        running = sessions.by_no(db.reader, home.no)
        assert running is not None
        turn_id = turns.running(db.reader)[0].id
        await db.write(partial(end_accepted, session_no=home.no, turn_id=turn_id, ending=FAILED, at_ms=AT_MS))
        ended = sessions.by_no(db.reader, home.no)
        assert ended is not None

    assert before.active_turn_cursor is None
    assert running.active_turn_cursor == before.feed_sequence == 0
    assert ended.active_turn_cursor is None


async def test_paused_executions_are_counted_with_their_reason() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        assert executions.pause_reason(db.reader, home.no) is None
        turn = turns.by_no(db.reader, opened.turn)
        assert turn is not None
        ending = interrupted("shutdown", "stopped")
        await db.write(partial(end_accepted, session_no=home.no, turn_id=turn.id, ending=ending, at_ms=AT_MS))
        row = sessions.by_no(db.reader, home.no)

        assert row is not None
        assert row.paused_executions == 1
        assert executions.pause_reason(db.reader, home.no) == "shutdown"


async def test_turns_are_listed_newest_first_and_running_ones_by_session() -> None:
    async with open_store() as db:
        one, two = await make_home(db, 1), await make_home(db, 2)
        first = await open_turn(db, one, frame=1)
        turn = turns.by_no(db.reader, first.turn)
        assert turn is not None
        await db.write(partial(end_accepted, session_no=one.no, turn_id=turn.id, ending=FAILED, at_ms=AT_MS))
        second = await open_turn(db, one, frame=2)
        third = await open_turn(db, two, frame=3)

        assert [row.no for row in turns.page(db.reader, one.no, limit=10, offset=0)] == [second.turn, first.turn]
        assert [row.no for row in turns.page(db.reader, one.no, limit=1, offset=1)] == [first.turn]
        assert [row.no for row in turns.running(db.reader, one.no)] == [second.turn]
        assert [row.no for row in turns.running(db.reader)] == [second.turn, third.turn]


async def test_a_turn_ends_once_and_its_first_end_stays() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        ended = [
            await db.write(
                partial(turns.end_turn, no=opened.turn, state=state, classification=state, at_ms=AT_MS + number)
            )
            for number, state in enumerate(["failed", "completed"])
        ]
        row = turns.by_no(db.reader, opened.turn)

    assert ended == [True, False]
    assert row is not None
    assert (row.state, row.failure_classification, row.completed_at_ms) == ("failed", "failed", AT_MS)


async def test_an_accepted_message_waits_until_it_is_settled() -> None:
    async with open_store() as db:
        home = await make_home(db)
        turn_id = await accept_message(db, home, "hello", frame=7)
        waiting = inbox.opening(db.reader)
        by_frame = inbox.by_frame(db.reader, home.no, uuid(7).bytes)
        by_turn = inbox.by_turn(db.reader, home.no, UUID(turn_id).bytes)

        assert waiting == [by_frame] == [by_turn]
        assert (waiting[0].state, waiting[0].content, waiting[0].directory) == ("opening", "hello", "/srv/project-1")
        await db.write(partial(inbox.settle, no=waiting[0].no, state="undelivered", turn_no=None))
        assert inbox.opening(db.reader) == []


async def test_the_same_frame_id_is_accepted_once_a_session() -> None:
    async with open_store() as db:
        one, two = await make_home(db, 1), await make_home(db, 2)
        await accept_message(db, one, "again", frame=1)

        with pytest.raises(apsw.ConstraintError):
            await accept_message(db, one, "again", frame=1)
        await accept_message(db, two, "again", frame=1)

        assert [row.session_no for row in inbox.opening(db.reader)] == [one.no, two.no]
