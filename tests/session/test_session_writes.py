from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, structs
from world_kit import (
    AT_MS,
    HOLDER,
    Home,
    accept_message,
    acceptance,
    call,
    check_sequences,
    dump,
    execution_of,
    frame_types,
    frames,
    make_generation,
    make_home,
    open_request,
    open_store,
    open_turn,
    transcript,
    uuid,
)

from peen.errors import StaleClaim, StepConflict, StorageError
from peen.session import adoption, writes
from peen.session.acceptance import accept_queued, end_accepted, fence
from peen.session.ending import Ending, interrupted
from peen.session.writer import TurnEnd, Writer
from peen.store import activities, executions, generations, inbox, messages, sessions, turns
from peen.store.database import Database
from peen.store.direct import MemoryFile
from peen.testing.faults import Faults
from peen.wire.records import Claim, Completion, EventRecord, MessageRecord, ModelCallRecord, Terminal
from peen.wire.turncalls import (
    CommitSteps,
    Committed,
    Continuation,
    EmitEvents,
    HistoryPage,
    OpenedTurn,
    OpenTurn,
    RestoreExecution,
)
from peen.wire.worker import encode

FAILED = Ending(state="failed", reason="agentRun", error="broken", classification="agentRun")


def claim(step: str, kind: str = "read") -> Claim:
    return Claim(step=step, kind=kind, given=Raw(b"{}"))


def completion(step: str, output: bytes = b"1") -> Completion:
    return Completion(step=step, output=Raw(output))


def frame(frame_type: str = "tool.use", data: bytes = b"{}") -> EventRecord:
    return EventRecord(type=frame_type, data=Raw(data))


@dataclass
class Turn:
    """An open turn, and writes to it as its worker would send them."""

    db: Database
    home: Home
    opened: OpenedTurn

    def request(self, **parts: Any) -> CommitSteps:
        return CommitSteps(execution_id=self.opened.execution_id, holder=HOLDER, **parts)

    async def send(self, request: CommitSteps, *, writer: Writer | None = None) -> tuple[Committed, TurnEnd | None]:
        change = partial(
            writes.commit_steps, writer=writer or self.home.writer, request=request, payload=encode(request),
            next_turn_id=uuid(3999).bytes, at_ms=AT_MS,
        )  # fmt: skip
        return await self.db.write(change)

    async def commit(self, **parts: Any) -> tuple[Committed, TurnEnd | None]:
        return await self.send(self.request(**parts))

    async def emit(self, *events: EventRecord, writer: Writer | None = None) -> None:
        request = EmitEvents(execution_id=self.opened.execution_id, holder=HOLDER, events=list(events))
        await self.db.write(partial(writes.emit, writer=writer or self.home.writer, request=request, at_ms=AT_MS))

    def steps(self) -> list[tuple[str, str]]:
        row = executions.root_of(self.db.reader, self.opened.turn)
        assert row is not None
        return [(step.step, step.state) for step in activities.steps(self.db.reader, row.no)]


async def begin(db: Database, *, frame: int = 1) -> Turn:
    home = await make_home(db)
    return Turn(db, home, await open_turn(db, home, "go", frame=frame))


# --- admission


async def open_with(db: Database, home: Home, request: OpenTurn, *, number: int = 1) -> OpenedTurn:
    change = partial(
        adoption.open_turn, writer=home.writer, request=request, execution_id=uuid(5000 + number).bytes,
        run_id=uuid(6000 + number).bytes, at_ms=AT_MS,
    )  # fmt: skip
    return await db.write(change)


async def test_admission_takes_the_message_out_of_the_inbox_and_opens_turn_execution_and_run_at_once() -> None:
    async with open_store() as db:
        home = await make_home(db)
        turn_id = await accept_message(db, home, "go")
        waiting = inbox.opening(db.reader)
        opened = await open_with(db, home, open_request(turn_id, "go"))
        (turn,) = turns.running(db.reader)
        execution = execution_of(db, turn_id)
        message = inbox.by_frame(db.reader, home.no, uuid(1).bytes)
        run = db.reader.row("SELECT turn_no, execution_no, state FROM model_run")

        assert len(waiting) == 1
        assert inbox.opening(db.reader) == []
        assert message is not None
        assert (message.state, message.turn_no) == ("delivered", turn.no)
        assert (execution.turn_no, execution.state, execution.generation_no) == (turn.no, "running", home.generation_no)
        assert run == (turn.no, execution.no, "running")
        assert opened.execution_id == str(uuid(5001))
        assert frame_types(db, home) == ["userMessage.created", "turn.started"]
        assert [row.message.content for row in transcript(db, home)] == ["go"]


async def test_a_turn_is_opened_once() -> None:
    async with open_store() as db:
        home = await make_home(db)
        turn_id = await accept_message(db, home, "go")
        await open_with(db, home, open_request(turn_id, "go"))
        before = dump(db)

        with pytest.raises(StaleClaim, match="not waiting to open it"):
            await open_with(db, home, open_request(turn_id, "go"), number=2)
        assert dump(db) == before


async def test_a_turn_without_an_accepted_message_or_of_another_session_is_not_opened() -> None:
    async with open_store() as db:
        one, two = await make_home(db, 1), await make_home(db, 2)
        turn_id = await accept_message(db, one, "go")
        before = dump(db)

        with pytest.raises(StaleClaim):
            await open_with(db, one, open_request(str(uuid(404))))
        with pytest.raises(StaleClaim):
            await open_with(db, two, open_request(turn_id))
        assert dump(db) == before


async def test_a_worker_whose_generation_has_ended_opens_nothing_and_writes_nothing() -> None:
    async with open_store() as db:
        turn = await begin(db)
        home = turn.home
        end = partial(generations.ended, state="failed", detail="lost", exit_code=None, at_ms=AT_MS)
        await db.write(partial(end, generation_id=uuid(2001).bytes))
        waiting = await accept_message(db, home, "next", frame=2)
        before = dump(db)

        with pytest.raises(StaleClaim, match="generation has ended"):
            await open_with(db, home, open_request(waiting), number=2)
        done = Terminal(state="completed", text="done")
        with pytest.raises(StaleClaim, match="generation has ended"):
            await turn.commit(terminal=done)
        assert dump(db) == before


async def test_a_turn_that_was_ended_before_its_worker_came_is_not_opened() -> None:
    async with open_store() as db:
        home = await make_home(db)
        turn_id = await accept_message(db, home, "go")
        change = partial(end_accepted, session_no=home.no, turn_id=uuid(3001).bytes, ending=FAILED, at_ms=AT_MS)
        await db.write(change)
        before = dump(db)

        with pytest.raises(StaleClaim):
            await open_with(db, home, open_request(turn_id))
        assert dump(db) == before


async def test_admission_brings_the_transcript_before_the_turn_from_where_the_worker_knows_it() -> None:
    async with open_store() as db:
        first = await begin(db)
        reply = MessageRecord(role="assistant", content="done")
        await first.commit(messages=[reply], terminal=Terminal(state="completed", text="done"))
        found = []
        for number, known in ((2, 0), (3, 1), (4, 99)):
            turn_id = await accept_message(db, first.home, "more", frame=number)
            request = structs.replace(open_request(turn_id, "more"), known_sequence=known, messages=[])
            found.append(await open_with(db, first.home, request, number=number))
            execution = execution_of(db, turn_id)
            await db.write(
                partial(
                    end_accepted, session_no=first.home.no, turn_id=uuid(3000 + number).bytes, ending=FAILED, at_ms=1
                )
            )
            assert execution.state == "running"

    assert [[row.sequence for row in opened.history] for opened in found] == [[1, 2], [2, 3], []]
    assert [opened.has_more for opened in found] == [False] * 3
    assert [opened.history_sequence for opened in found] == [2, 3, 4]


async def test_the_rest_of_a_long_transcript_is_paged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "MAX_HISTORY_PAGE_BYTES", 1000)
    async with open_store() as db:
        first = await begin(db)
        many = [MessageRecord(role="assistant", content=f"{number}") for number in range(5)]
        await first.commit(messages=many, terminal=Terminal(state="completed"))
        turn_id = await accept_message(db, first.home, "more", frame=2)
        opened = await open_with(db, first.home, open_request(turn_id, "more"), number=2)
        read = list(opened.history)
        has_more = opened.has_more
        pages = 0
        while has_more:
            page = HistoryPage(after_sequence=read[-1].sequence, up_to_sequence=opened.history_sequence)
            rows = adoption.history_page(db.reader, first.home.writer, page)
            read, has_more, pages = read + rows.history, rows.has_more, pages + 1

    assert pages > 1
    assert [row.message.content for row in read] == ["go", "0", "1", "2", "3", "4"]


# --- steps


async def test_a_commit_ends_steps_writes_their_records_and_begins_others() -> None:
    audit = ModelCallRecord(round=0, state="completed", request_sequence=1, started_at_ms=1, completed_at_ms=2)
    async with open_store() as db:
        turn = await begin(db)
        await turn.commit(claims=[claim("r0.model", "model")])
        committed, end = await turn.commit(
            completions=[completion("r0.model")],
            messages=[MessageRecord(role="assistant", content="x", tool_calls=[call("a")])],
            events=[frame("tool.use")],
            calls=[audit],
            claims=[claim("r1.prepare", "prepare"), claim("r0.t0.handler")],
            passed=[completion("r1.prepare", b"{}")],
        )

        assert (committed, end) == (Committed(message_sequence=2), None)
        assert turn.steps() == [
            ("r0.model", "completed"),
            ("r0.t0.handler", "running"),
            ("r1.prepare", "completed"),
        ]
        assert frame_types(db, turn.home, after=2) == ["tool.use"]
        assert db.reader.row("SELECT count(*) FROM model_call") == (1,)


Spoil = Callable[[Turn], Any]


async def other_holder(turn: Turn) -> CommitSteps:
    return structs.replace(turn.request(messages=[MessageRecord(role="user", content="x")]), holder="ff" * 16)


async def unknown_execution(turn: Turn) -> CommitSteps:
    return structs.replace(turn.request(events=[frame()]), execution_id=str(uuid(404)))


async def ended(turn: Turn) -> CommitSteps:
    await turn.commit(terminal=Terminal(state="failed", reason="agentRun"))
    return turn.request(events=[frame()])


async def completed(turn: Turn) -> CommitSteps:
    await turn.commit(terminal=Terminal(state="completed", text="done"))
    return turn.request(claims=[claim("r0.model")])


async def paused(turn: Turn) -> CommitSteps:
    change = partial(
        end_accepted, session_no=turn.home.no, turn_id=uuid(3001).bytes, ending=interrupted("interrupted", "lost"),
        at_ms=AT_MS,
    )  # fmt: skip
    await turn.db.write(change)
    return turn.request(terminal=Terminal(state="completed", text="done"))


async def unclaimed(turn: Turn) -> CommitSteps:
    return turn.request(completions=[completion("r0.model")], messages=[MessageRecord(role="user", content="x")])


@pytest.mark.parametrize("spoil", [other_holder, unknown_execution, ended, completed, paused, unclaimed])
async def test_who_does_not_hold_the_execution_writes_nothing(spoil: Spoil) -> None:
    async with open_store() as db:
        turn = await begin(db)
        request = await spoil(turn)
        before = dump(db)

        with pytest.raises(StaleClaim):
            await turn.send(request)
        assert dump(db) == before


async def test_another_generation_and_another_session_write_nothing_even_with_the_right_holder() -> None:
    async with open_store() as db:
        turn = await begin(db)
        neighbour = await make_home(db, 2)
        later = await db.write(partial(make_generation, session_no=turn.home.no, number=88))
        before = dump(db)

        for writer in (
            Writer(turn.home.no, later, turn.home.blobs),
            Writer(neighbour.no, turn.home.generation_no, turn.home.blobs),
        ):
            with pytest.raises(StaleClaim):
                await turn.send(turn.request(events=[frame()]), writer=writer)
            with pytest.raises(StaleClaim):
                await turn.emit(frame(), writer=writer)
        assert dump(db) == before


async def test_a_completion_repeated_as_it_was_writes_nothing_again() -> None:
    async with open_store() as db:
        turn = await begin(db)
        await turn.commit(claims=[claim("r0.model")])
        request = turn.request(
            completions=[completion("r0.model")], messages=[MessageRecord(role="assistant", content="x")],
            events=[frame()], claims=[claim("r0.t0.handler")],
        )  # fmt: skip
        first, _ = await turn.send(request)
        before = dump(db)

        assert await turn.send(request) == (first, None)
        assert dump(db) == before


@pytest.mark.parametrize(
    "changed",
    [
        {"completions": [completion("r0.model", b"2")]},
        {"messages": []},
        {"messages": [MessageRecord(role="assistant", content="y")]},
        {"events": [frame(), frame()]},
        {"claims": []},
        {"terminal": Terminal(state="completed")},
    ],
    ids="-".join,
)
async def test_a_completion_repeated_with_anything_else_is_a_conflict(changed: dict[str, Any]) -> None:
    async with open_store() as db:
        turn = await begin(db)
        await turn.commit(claims=[claim("r0.model")])
        request = turn.request(
            completions=[completion("r0.model")], messages=[MessageRecord(role="assistant", content="x")],
            claims=[claim("r0.t0.handler")],
        )  # fmt: skip
        await turn.send(request)
        before = dump(db)

        with pytest.raises(StepConflict):
            await turn.send(structs.replace(request, **changed))
        assert dump(db) == before


async def test_a_step_is_claimed_once() -> None:
    async with open_store() as db:
        turn = await begin(db)
        await turn.commit(claims=[claim("r0.model")])
        before = dump(db)

        with pytest.raises(StepConflict):
            await turn.commit(claims=[claim("r0.model")], events=[frame()])
        assert dump(db) == before


# --- the end


async def test_a_completed_turn_tells_model_text_and_reason_and_counts() -> None:
    async with open_store() as db:
        turn = await begin(db)
        await turn.commit(claims=[claim("r0.model")])
        _, end = await turn.commit(
            completions=[completion("r0.model")],
            messages=[MessageRecord(role="assistant", content="done")],
            terminal=Terminal(state="completed", text="done", finish_reason="stop"),
        )
        session = sessions.by_no(db.reader, turn.home.no)
        row = turns.by_no(db.reader, turn.opened.turn)
        run = db.reader.row("SELECT state, finish_reason FROM model_run")
        shown = frames(db, turn.home)[-1]
        execution = execution_of(db, str(uuid(3001)))

    assert end == TurnEnd(str(uuid(3001)), "completed", "", 3)
    assert shown == ("turn.completed", {"model": "scripted/script", "text": "done", "finishReason": "stop"})
    assert session is not None
    assert (session.completed_turn_count, session.feed_sequence) == (1, 3)
    assert row is not None
    assert row.state == execution.state == "completed"
    assert run == ("completed", "stop")


async def test_a_finish_reason_that_nobody_gave_is_left_out() -> None:
    async with open_store() as db:
        turn = await begin(db)
        await turn.commit(terminal=Terminal(state="completed", text=""))

        assert frames(db, turn.home)[-1] == ("turn.completed", {"model": "scripted/script", "text": ""})


async def test_a_turn_cannot_complete_while_one_of_its_steps_runs() -> None:
    async with open_store() as db:
        turn = await begin(db)
        await turn.commit(claims=[claim("r0.model"), claim("r0.t0.handler")])
        before = dump(db)

        with pytest.raises(StaleClaim, match="steps is running"):
            await turn.commit(completions=[completion("r0.model")], terminal=Terminal(state="completed"))
        assert dump(db) == before


async def test_a_turn_can_fail_while_its_steps_run() -> None:
    async with open_store() as db:
        turn = await begin(db)
        await turn.commit(claims=[claim("r0.t0.handler", "effect")])
        _, end = await turn.commit(terminal=Terminal(state="failed", reason="timeout", error="slow"))

        assert end == TurnEnd(str(uuid(3001)), "failed", "timeout", len(frames(db, turn.home)))
        assert turn.steps() == [("r0.t0.handler", "uncertain")]


async def test_a_turn_that_failed_is_not_counted_as_completed() -> None:
    async with open_store() as db:
        turn = await begin(db)
        await turn.commit(terminal=Terminal(state="failed", reason="agentRun"))
        session = sessions.by_no(db.reader, turn.home.no)

    assert session is not None
    assert session.completed_turn_count == 0


# --- messages that wait for the turn


async def queue(turn: Turn, text: str, *, frame: int) -> None:
    waiting = acceptance(turn.home, text, frame=frame, turn_id=str(uuid(3001)))
    await turn.db.write(partial(accept_queued, session_no=turn.home.no, acceptance=waiting, capacity=16))


def states(turn: Turn) -> list[tuple[str, str]]:
    return turn.db.reader.rows("SELECT content, state FROM inbox ORDER BY no")


async def test_messages_that_wait_are_delivered_in_order_when_the_next_round_begins() -> None:
    async with open_store() as db:
        turn = await begin(db)
        await queue(turn, "one", frame=2)
        await queue(turn, "two", frame=3)
        in_between, _ = await turn.commit(claims=[claim("r0.t0.handler")])
        delivering, _ = await turn.commit(
            completions=[completion("r0.t0.handler")],
            messages=[MessageRecord(role="tool", content="seen", tool_call_id="a")],
            claims=[claim("r1.prepare", "prepare"), claim("r1.model", "model")],
            passed=[completion("r1.prepare", b"{}")],
        )

        assert in_between.delivered == []
        assert [message.content for message in delivering.delivered] == ["one", "two"]
        assert [row.message.content for row in transcript(db, turn.home)] == ["go", "seen", "one", "two"]
        assert delivering.message_sequence == 4
        assert frames(db, turn.home)[-2:] == [
            ("userMessage.delivered", {"message": "one"}),
            ("userMessage.delivered", {"message": "two"}),
        ]
        assert states(turn) == [("go", "delivered"), ("one", "delivered"), ("two", "delivered")]
        check_sequences(db.reader)


async def test_the_first_preparation_of_a_turn_delivers_nothing() -> None:
    async with open_store() as db:
        turn = await begin(db)
        await queue(turn, "one", frame=2)
        first, _ = await turn.commit(claims=[claim("r0.prepare", "prepare"), claim("r0.model", "model")])

        assert first.delivered == []
        assert states(turn)[1] == ("one", "queued")


async def test_an_end_with_a_way_on_does_not_happen_while_messages_wait() -> None:
    way_on = Continuation(
        claims=[claim("r1.prepare", "prepare"), claim("r1.model", "model")], passed=[completion("r1.prepare", b"{}")]
    )
    async with open_store() as db:
        turn = await begin(db)
        await queue(turn, "one more", frame=2)
        await turn.commit(claims=[claim("r0.model", "model")])
        went_on, end = await turn.commit(
            completions=[completion("r0.model")],
            messages=[MessageRecord(role="assistant", content="done")],
            claims=[claim("r0.final", "final")],
            passed=[completion("r0.final")],
            terminal=Terminal(state="completed", text="done"),
            continuation=way_on,
        )
        _, real_end = await turn.commit(
            completions=[completion("r1.model")],
            terminal=Terminal(state="completed", text="really"),
            continuation=Continuation(claims=[claim("r2.model", "model")]),
        )

        assert (went_on.continued, end) == (True, None)
        assert [message.content for message in went_on.delivered] == ["one more"]
        assert real_end is not None
        assert turn.steps() == [
            ("r0.model", "completed"),
            ("r1.prepare", "completed"),
            ("r1.model", "completed"),
        ]
        assert frame_types(db, turn.home).count("turn.completed") == 1


async def test_messages_that_still_wait_at_the_end_are_handed_to_a_turn_that_the_first_of_them_opens() -> None:
    async with open_store() as db:
        turn = await begin(db)
        await queue(turn, "one", frame=2)
        await queue(turn, "two", frame=3)
        _, end = await turn.commit(terminal=Terminal(state="completed", text="done"))

        assert end is not None
        assert end.following is not None
        assert (end.following.turn_id, end.following.message.content) == (str(uuid(3999)), "one")
        assert states(turn)[1:] == [("one", "deferred"), ("two", "queued")]

        await open_with(db, turn.home, open_request(str(uuid(3999)), "one"), number=9)

        assert states(turn)[1:] == [("one", "delivered"), ("two", "queued")]
        assert frame_types(db, turn.home)[-3:] == ["turn.completed", "userMessage.delivered", "turn.started"]
        assert [row.content for row in inbox.queued(db.reader, turn.home.no, uuid(3999).bytes)] == ["two"]


# --- after a Stop


async def test_after_a_stop_results_of_tools_that_had_begun_are_saved_and_nothing_follows_from_them() -> None:
    async with open_store() as db:
        turn = await begin(db)
        await turn.commit(claims=[claim("r0.t0.handler", "effect")])
        await db.write(partial(fence, session_no=turn.home.no, at_ms=AT_MS))
        result = MessageRecord(role="tool", content="seen", tool_call_id="a")
        saved, end = await turn.commit(
            completions=[completion("r0.t0.handler")],
            messages=[result],
            claims=[claim("r1.prepare", "prepare"), claim("r1.model", "model")],
            passed=[completion("r1.prepare", b"{}")],
            terminal=Terminal(state="completed", text="done"),
        )

        assert (saved.stopped, end) == (True, None)
        assert turn.steps() == [("r0.t0.handler", "completed")]
        assert transcript(db, turn.home)[-1].message == result
        assert [row.state for row in turns.running(db.reader)] == ["running"]


@pytest.mark.parametrize(
    "parts",
    [
        {"completions": [completion("r0.model")]},
        {"completions": [completion("r0.t0.handler"), completion("r0.model")]},
        {"claims": [claim("r0.t1.handler")]},
        {"events": [frame()]},
        {"terminal": Terminal(state="failed", reason="agentRun")},
    ],
    ids="-".join,
)
async def test_after_a_stop_nothing_else_is_saved(parts: dict[str, Any]) -> None:
    async with open_store() as db:
        turn = await begin(db)
        await turn.commit(claims=[claim("r0.model", "model"), claim("r0.t0.handler", "effect")])
        await db.write(partial(fence, session_no=turn.home.no, at_ms=AT_MS))
        before = dump(db)

        with pytest.raises(StaleClaim, match="Stop"):
            await turn.commit(**parts)
        with pytest.raises(StaleClaim, match="Stop"):
            await turn.emit(frame())
        assert dump(db) == before


# --- sequences


@dataclass(frozen=True)
class Write:
    """One transaction of a worker: how many messages and frames, and whether it is a piece in between."""

    messages: int
    events: int
    is_piece: bool


WRITES = st.lists(st.builds(Write, st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1, max_size=10)
FAULTS = st.one_of(
    st.none(),
    st.builds(Faults.full_at, st.integers(1, 80), lasting=st.integers(1, 10)),
    st.builds(Faults.ioerr_at, st.integers(1, 80), lasting=st.integers(1, 10)),
    st.builds(Faults.failed_commit_at, st.integers(1, 12), lasting=st.integers(1, 3)),
)


@settings(deadline=None)
@given(WRITES, FAULTS, st.integers(0, 3))
def test_sequences_have_no_gap_whatever_fails_and_a_write_that_failed_wrote_nothing(
    sequence: list[Write], faults: Faults | None, seed: int
) -> None:
    async def main() -> None:
        file = MemoryFile()
        async with open_store(file) as db:
            opened = (await begin(db)).opened
        async with open_store(file, faults=faults, seed=seed) as db:
            turn = Turn(db, await make_home(db), opened)
            told, shown = 1, 2
            for write in sequence:
                records = [MessageRecord(role="assistant", content="x")] * (0 if write.is_piece else write.messages)
                events = [frame()] * write.events
                try:
                    await (turn.emit(*events) if write.is_piece else turn.commit(messages=records, events=events))
                except StorageError:
                    pass
                else:
                    told, shown = told + len(records), shown + len(events)
                session = sessions.by_no(db.reader, turn.home.no)
                assert session is not None
                assert (session.message_sequence, session.feed_sequence) == (told, shown)
                check_sequences(db.reader)
            assert (
                messages.page(db.reader, turn.home.no, limit=99, offset=told, newest_first=False, max_bytes=9)[0] == []
            )

    trio.run(main)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.integers(2, 5))
def test_sequences_have_no_gap_when_many_write_at_once(seed: int, writers: int) -> None:
    async def main() -> None:
        async with open_store(seed=seed) as db:
            turn = await begin(db)
            async with trio.open_nursery() as nursery:
                for number in range(writers):
                    record = MessageRecord(role="assistant", content=f"{number}")
                    nursery.start_soon(partial(turn.commit, messages=[record], events=[frame()] * number))
                    nursery.start_soon(turn.emit, frame(), frame())

            assert len(transcript(db, turn.home)) == 1 + writers
            assert len(frames(db, turn.home)) == 2 + 2 * writers + sum(range(writers))
            check_sequences(db.reader)

    trio.run(main)


# --- long values and restoration


async def test_a_long_input_and_output_are_stored_in_parts_and_read_back_byte_for_byte() -> None:
    text = 'what a tool said, \\u00e9 and a ~ \\\\ quote\\"' * 40
    given_text, output = f'{{"arguments":{{"content":"{text}"}}}}'.encode(), f'{{"content": "{text}"}}'.encode()
    async with open_store() as db:
        turn = await begin(db)
        await turn.commit(claims=[Claim(step="r0.t0.handler", kind="effect", given=Raw(given_text))])
        await turn.commit(completions=[completion("r0.t0.handler", output)])

        row = executions.root_of(db.reader, turn.opened.turn)
        assert row is not None
        (step,) = activities.steps(db.reader, row.no)
        take = partial(turn.home.blobs.take, db.reader, turn.home.no)
        assert (take(step.given), take(step.output or b"")) == (given_text, output)
        assert db.reader.rows("SELECT count(*) FROM blob") == [(1,)]  # the text is stored once for both
        assert len(step.given) + len(step.output or b"") < 200


@given(st.binary(max_size=700).map(lambda data: encode(data.decode("latin-1"))))
def test_any_value_comes_back_as_it_was(value: bytes) -> None:
    async def main() -> None:
        async with open_store() as db:
            home = await make_home(db)
            stored = await db.write(partial(home.blobs.put, session_no=home.no, value=value))
            assert home.blobs.take(db.reader, home.no, stored) == value

    trio.run(main)


async def test_what_a_worker_needs_to_go_on_does_not_grow_with_what_earlier_rounds_said() -> None:
    rounds = 30
    async with open_store() as db:
        turn = await begin(db)
        for number in range(rounds):
            model, tool = f"r{number}.model", f"r{number}.t0.handler"
            await turn.commit(claims=[claim(model, "model")])
            await turn.commit(completions=[completion(model, b'{"text":"answer"}')], claims=[claim(tool)])
            said = b'{"content":"%s","seen":{"n":%d}}' % (b"x" * 50_000, number)
            await turn.commit(completions=[completion(tool, said)])
        await paused(turn)
        row = executions.root_of(db.reader, turn.opened.turn)
        assert row is not None
        change = partial(executions.resume, no=row.no, control_revision=row.control_revision, at_ms=AT_MS, caller="api")
        await db.write(change)

        request = RestoreExecution(execution_id=turn.opened.execution_id, holder="ee" * 16)
        restored = await db.write(partial(adoption.restore, writer=turn.home.writer, request=request, at_ms=AT_MS))

    assert [saved.step for saved in restored.steps] == [f"r{rounds - 1}.model", f"r{rounds - 1}.t0.handler"]
    assert [bytes(each) for each in restored.seen] == [b'{"n":%d}' % number for number in range(rounds - 1)]
    assert len(encode(restored)) < 60_000
