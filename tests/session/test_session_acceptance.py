from __future__ import annotations

import dataclasses
from contextlib import suppress
from functools import partial
from uuid import UUID

import msgspec
import pytest
from session_kit import made_before
from world_kit import (
    AT_MS,
    HOLDER,
    MODEL,
    Home,
    accept_message,
    acceptance,
    check_sequences,
    dump,
    execution_of,
    frame_types,
    frames,
    make_home,
    message_send,
    open_store,
    open_turn,
    transcript,
    uuid,
)

from peen.errors import QueueFull, StaleClaim, StorageFull
from peen.session import writes
from peen.session.acceptance import TurnOver, accept, accept_queued, end_accepted, fence, known_frame
from peen.session.ending import Ending, interrupted
from peen.session.state import Known, Outcome
from peen.store import executions, inbox, sessions, turns
from peen.store.database import Database
from peen.testing.faults import Faults
from peen.wire.client import content_digest
from peen.wire.records import EventRecord, Terminal
from peen.wire.turncalls import CommitSteps, EmitEvents
from peen.wire.worker import SystemPrompt

FAILED = Ending(state="failed", reason="timeout", error="too slow", classification="timeout")
LOST = interrupted("interrupted", "the worker was lost")
TURN = str(uuid(3001))


async def end(db: Database, home: Home, ending: Ending = FAILED) -> int | None:
    change = partial(end_accepted, session_no=home.no, turn_id=UUID(TURN).bytes, ending=ending, at_ms=AT_MS + 1)
    return await db.write(change)


async def queue(db: Database, home: Home, text: str, *, frame: int, capacity: int = 16) -> int:
    waiting = acceptance(home, text, frame=frame, turn_id=TURN)
    return await db.write(partial(accept_queued, session_no=home.no, acceptance=waiting, capacity=capacity))


# --- a message that opens a turn


async def test_acceptance_stores_the_message_with_its_settings_and_tells_the_feed() -> None:
    async with open_store() as db:
        home = await make_home(db)
        plain = acceptance(home, "hello")
        message = msgspec.structs.replace(
            plain.message,
            model=MODEL,
            reasoning_effort="low",
            system_prompt=SystemPrompt(mode="append", content="brief"),
        )
        chosen = dataclasses.replace(plain, message=message)
        sequence = await db.write(partial(accept, session_no=home.no, acceptance=chosen))
        (row,) = inbox.opening(db.reader)

    assert sequence == 1
    assert (row.content, row.directory, row.state) == ("hello", "/srv/project-1", "opening")
    assert msgspec.json.decode(row.settings) == {
        "model": MODEL,
        "reasoningEffort": "low",
        "systemPrompt": {"mode": "append", "content": "brief"},
    }


async def test_an_accepted_message_is_in_the_feed_and_not_yet_in_the_transcript() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await accept_message(db, home, "hello")

        assert frames(db, home) == [("userMessage.created", {"message": "hello"})]
        assert transcript(db, home) == []
        check_sequences(db.reader)


async def test_an_acceptance_that_fails_at_any_statement_stores_nothing() -> None:
    file = await made_before()
    for statement in range(1, 100):
        plan = Faults.full_at(statement)
        async with open_store(file, faults=plan) as db:
            home = await make_home(db)
            before = dump(db)
            with suppress(StorageFull):
                await accept_message(db, home)
            after = dump(db)
        if not plan.fired:
            assert after != before
            return
        assert after == before, f"statement {statement}"
    raise AssertionError("there was always another statement to fail at")


# --- the end of an accepted message


async def test_the_end_of_a_turn_that_was_never_opened_opens_it_with_the_message_as_its_transcript() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await accept_message(db, home, "hello")
        sequence = await end(db, home, LOST)
        turn = turns.by_id(db.reader, UUID(TURN).bytes)
        row = inbox.by_frame(db.reader, home.no, uuid(1).bytes)

        types = frame_types(db, home)
        assert sequence == len(types)
        assert (types[0], types[-1], types.count("turn.failed")) == ("userMessage.created", "turn.failed", 1)
        assert [(told.message.role, told.message.content[:5]) for told in transcript(db, home)] == [
            ("user", "hello"),
            ("system", "The p"),
        ]
        assert turn is not None
        assert (turn.state, turn.model, turn.generation_id) == ("interrupted", MODEL, None)
        assert row is not None
        assert (row.state, row.turn_no) == ("undelivered", turn.no)
        assert executions.root_of(db.reader, turn.no) is None
        check_sequences(db.reader)


async def test_a_turn_that_was_never_opened_names_the_model_that_its_message_asked_for() -> None:
    async with open_store() as db:
        home = await make_home(db)
        chosen = dataclasses.replace(acceptance(home), message=message_send(home, "hello", model="up/chosen"))
        await db.write(partial(accept, session_no=home.no, acceptance=chosen))
        await end(db, home)
        turn = turns.by_id(db.reader, UUID(TURN).bytes)

    assert turn is not None
    assert turn.model == "up/chosen"


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_turn_ends_once_whether_or_not_it_was_opened(is_open: bool) -> None:
    async with open_store() as db:
        home = await make_home(db)
        await (open_turn(db, home) if is_open else accept_message(db, home))
        first = await end(db, home)
        before = dump(db)

        assert first is not None
        assert await end(db, home, LOST) is None
        assert dump(db) == before


# --- a frame that comes again


async def test_a_frame_is_known_from_its_acceptance_on_and_its_outcome_from_the_end_on() -> None:
    async with open_store() as db:
        home = await make_home(db)
        frame_id = str(uuid(1))
        digest = content_digest(message_send(home, "hello"))
        found = [known_frame(db.reader, home.no, frame_id)]
        await open_turn(db, home, "hello")
        found.append(known_frame(db.reader, home.no, frame_id))
        await end(db, home)
        found.append(known_frame(db.reader, home.no, frame_id))

    assert found == [
        None,
        Known(digest, None),
        Known(digest, Outcome("failed", "timeout", str(uuid(4001)))),
    ]


async def test_a_frame_is_known_in_its_own_session_only() -> None:
    async with open_store() as db:
        one, two = await make_home(db, 1), await make_home(db, 2)
        await accept_message(db, one)

        assert known_frame(db.reader, two.no, str(uuid(1))) is None


# --- messages that wait for a running turn


async def test_a_queued_message_is_announced_twice_with_its_own_request_and_known_as_queued() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await open_turn(db, home)
        sequence = await queue(db, home, "also this", frame=2)
        known = known_frame(db.reader, home.no, str(uuid(2)))

        assert sequence == 4
        assert frames(db, home, after=2) == [
            ("userMessage.created", {"message": "also this"}),
            ("userMessage.queued", {"message": "also this"}),
        ]
        assert known is not None
        assert known.outcome == Outcome("queued", "", str(uuid(4002)))


async def test_a_message_can_wait_for_a_turn_that_is_still_to_be_opened() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await accept_message(db, home, "first")
        await queue(db, home, "second", frame=2)

        assert [row.content for row in inbox.queued(db.reader, home.no, UUID(TURN).bytes)] == ["second"]
        assert [row.content for row in inbox.opening(db.reader)] == ["first"]


async def test_no_more_messages_wait_than_the_queue_holds() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await open_turn(db, home)
        await queue(db, home, "one", frame=2, capacity=1)
        before = dump(db)

        with pytest.raises(QueueFull, match="PEEN_MAX_QUEUED_USER_MESSAGES"):
            await queue(db, home, "two", frame=3, capacity=1)
        assert dump(db) == before


async def test_nothing_waits_for_a_turn_that_has_ended() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await open_turn(db, home)
        await end(db, home)
        before = dump(db)

        with pytest.raises(TurnOver):
            await queue(db, home, "late", frame=2)
        assert dump(db) == before


# --- Stop


async def test_a_stop_raises_the_stop_revision_and_pauses_what_runs_so_that_nothing_begins() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        was_running = await db.write(partial(fence, session_no=home.no, at_ms=AT_MS))
        session = sessions.by_no(db.reader, home.no)
        row = execution_of(db, TURN)
        (turn,) = turns.running(db.reader, home.no)
        before = dump(db)
        piece = EventRecord(type="tool.use", data=msgspec.Raw(b"{}"))
        end_of_it = CommitSteps(
            execution_id=opened.execution_id, holder=HOLDER, terminal=Terminal(state="completed", text="done")
        )
        for change in (
            partial(
                writes.emit,
                request=EmitEvents(execution_id=opened.execution_id, holder=HOLDER, events=[piece]),
            ),
            partial(writes.commit_steps, request=end_of_it, payload=b"", next_turn_id=uuid(9).bytes),
        ):
            with pytest.raises(StaleClaim, match="Stop"):
                await db.write(partial(change, writer=home.writer, at_ms=AT_MS))

        assert was_running
        assert session is not None
        assert session.stop_revision == 1
        assert (row.state, row.pause_reason, row.control_revision) == ("paused", executions.STOP, 2)
        assert turn.cancel_requested == 1
        assert dump(db) == before


async def test_a_stop_of_a_session_that_does_nothing_is_recorded_and_ends_nothing() -> None:
    async with open_store() as db:
        home, neighbour = await make_home(db, 1), await make_home(db, 2)
        await open_turn(db, neighbour)
        was_running = await db.write(partial(fence, session_no=home.no, at_ms=AT_MS))
        stopped = sessions.by_no(db.reader, home.no)

        assert not was_running
        assert stopped is not None
        assert stopped.stop_revision == 1
        assert execution_of(db, TURN).state == "running"
