from __future__ import annotations

from functools import partial
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from world_kit import (
    AT_MS,
    HOLDER,
    Home,
    acceptance,
    call,
    check_sequences,
    dump,
    execution_of,
    frames,
    make_home,
    open_store,
    open_turn,
    transcript,
    uuid,
)

from peen.errors import StaleClaim
from peen.session import writes
from peen.session.acceptance import accept_queued
from peen.session.ending import (
    MAX_ERROR_BYTES,
    MAX_LISTED_CALLS,
    MAX_UNDELIVERED,
    Ending,
    cut,
    end_unfinished,
    interrupted,
    system_text,
)
from peen.store import activities, audit, executions, inbox, sessions, turns
from peen.store.audit import CallRow
from peen.store.database import Database
from peen.store.spending import NOTHING_SPENT, Spent
from peen.wire.records import Claim, EventRecord, MessageRecord, ModelCallRecord, ModelProgress, ToolCallRecord, Usage
from peen.wire.turncalls import CommitSteps, EmitEvents, OpenedTurn

FAILED = Ending(state="failed", reason="timeout", error="too slow", classification="timeout")
CANCELLED = Ending(state="cancelled", reason="cancelled", error="", classification="cancelled")
LOST = interrupted("interrupted", "the worker was lost")
ALL = [FAILED, CANCELLED, LOST]


def block(event_type: str, index: int) -> EventRecord:
    return EventRecord(type=event_type, data=Raw(b'{"type":"%s","index":%d}' % (event_type.encode(), index)))


async def turn_in_the_middle(db: Database, home: Home) -> OpenedTurn:
    """A turn with two calls, one of them answered, one of them running, and two open blocks."""
    opened = await open_turn(db, home, "go")
    request = CommitSteps(
        execution_id=opened.execution_id,
        holder=HOLDER,
        messages=[
            MessageRecord(role="assistant", content="I try", tool_calls=[call("a"), call("b", "write", b'{"p":1}')]),
            MessageRecord(role="tool", content="seen", tool_call_id="a"),
        ],
        events=[
            block("content_block_start", 0),
            block("content_block_stop", 0),
            block("content_block_start", 1),
            block("content_block_start", 2),
        ],
        claims=[
            Claim(step="r0.t1.handler", kind="effect", given=Raw(b"{}"), call_id="b"),
            Claim(step="r0.t2.handler", kind="read", given=Raw(b"{}")),
        ],
    )
    await commit(db, home, request)
    return opened


def steps_of(db: Database, execution_no: int) -> list[tuple[str, str]]:
    return [(step.step, step.state) for step in activities.steps(db.reader, execution_no)]


async def commit(db: Database, home: Home, request: CommitSteps) -> None:
    change = partial(
        writes.commit_steps,
        writer=home.writer,
        request=request,
        payload=b"p",
        next_turn_id=uuid(3999).bytes,
        at_ms=AT_MS,
    )
    await db.write(change)


async def end(db: Database, home: Home, turn_no: int, ending: Ending) -> int | None:
    turn = turns.by_no(db.reader, turn_no)
    assert turn is not None
    return await db.write(
        partial(end_unfinished, turn=turn, ending=ending, at_ms=AT_MS + 1, generation_no=home.generation_no)
    )


@pytest.mark.parametrize("ending", ALL, ids=lambda ending: ending.state)
async def test_open_blocks_are_closed_and_then_comes_exactly_one_terminal_frame(ending: Ending) -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await turn_in_the_middle(db, home)
        sequence = await end(db, home, opened.turn, ending)
        shown = frames(db, home, after=6)
        check_sequences(db.reader)

    name = "turn.cancelled" if ending.state == "cancelled" else "turn.failed"
    assert sequence == 6 + len(shown)
    assert [(frame, data.get("index"), data.get("reason")) for frame, data in shown if frame != "notice.created"] == [
        ("content_block_stop", 1, None),
        ("content_block_stop", 2, None),
        (name, None, ending.reason),
    ]
    assert shown[-1][0] == name


@pytest.mark.parametrize("ending", ALL, ids=lambda ending: ending.state)
async def test_a_second_end_is_none_and_changes_nothing(ending: Ending) -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await turn_in_the_middle(db, home)
        await end(db, home, opened.turn, LOST)
        before = dump(db)

        assert await end(db, home, opened.turn, ending) is None
        assert dump(db) == before


@pytest.mark.parametrize("ending", ALL, ids=lambda ending: ending.state)
async def test_replies_and_results_become_incomplete_and_a_system_message_names_the_lost_calls(ending: Ending) -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await turn_in_the_middle(db, home)
        await end(db, home, opened.turn, ending)
        marked = db.reader.rows("SELECT role, incomplete FROM message ORDER BY key")
        told = transcript(db, home)[-1].message

    assert marked == [("user", 0), ("assistant", 1), ("tool", 1), ("system", 0)]
    assert (told.role, told.injected) == ("system", True)
    assert '- write {"p":1}' in told.content
    assert "- look" not in told.content


@pytest.mark.parametrize(("ending", "reason"), [(LOST, LOST.reason), (CANCELLED, "stop")])
async def test_an_interrupted_or_stopped_execution_is_paused_so_that_somebody_can_look_at_it(
    ending: Ending, reason: str
) -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await turn_in_the_middle(db, home)
        before = execution_of(db, str(uuid(3001)))
        await end(db, home, opened.turn, ending)
        after = execution_of(db, str(uuid(3001)))

        assert (after.state, after.holder) == ("paused", None)
        assert after.control_revision == before.control_revision + 1
        assert executions.pause_reason(db.reader, home.no) == reason
        assert steps_of(db, after.no) == [("r0.t1.handler", "uncertain"), ("r0.t2.handler", "interrupted")]


async def test_a_failed_execution_ends_with_its_turn_and_none_of_its_steps_runs() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await turn_in_the_middle(db, home)
        await end(db, home, opened.turn, FAILED)
        row = execution_of(db, str(uuid(3001)))

        assert (row.state, row.holder) == ("failed", None)
        assert steps_of(db, row.no) == [("r0.t1.handler", "uncertain"), ("r0.t2.handler", "interrupted")]


@pytest.mark.parametrize("ending", ALL, ids=lambda ending: ending.state)
async def test_whoever_worked_on_the_turn_can_write_nothing_more(ending: Ending) -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await turn_in_the_middle(db, home)
        await end(db, home, opened.turn, ending)
        before = dump(db)
        request = CommitSteps(
            execution_id=opened.execution_id, holder=HOLDER, messages=[MessageRecord(role="assistant", content="late")]
        )

        with pytest.raises(StaleClaim):
            await commit(db, home, request)
        assert dump(db) == before


@pytest.mark.parametrize("ending", ALL, ids=lambda ending: ending.state)
async def test_turn_and_model_run_carry_the_state_and_the_reason(ending: Ending) -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await turn_in_the_middle(db, home)
        await end(db, home, opened.turn, ending)
        turn = turns.by_no(db.reader, opened.turn)
        run = db.reader.row("SELECT state, failure_classification, failure_detail, completed_at_ms FROM model_run")

    assert turn is not None
    assert (turn.state, turn.failure_classification, turn.completed_at_ms) == (
        ending.state,
        ending.classification,
        AT_MS + 1,
    )
    assert run == (ending.state, ending.classification, ending.error, AT_MS + 1)


async def test_an_error_of_any_length_is_cut_in_the_frame() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        await end(db, home, opened.turn, Ending("failed", "agentRun", "é" * 5000, "agentRun"))
        _, data = frames(db, home)[-1]

    assert MAX_ERROR_BYTES - 3 <= len(data["error"].encode()) <= MAX_ERROR_BYTES


@pytest.mark.parametrize(("ending", "state"), [(FAILED, "undelivered"), (LOST, "queued"), (CANCELLED, "queued")])
async def test_messages_that_still_waited_are_named_and_only_a_stop_keeps_them_waiting(
    ending: Ending, state: str
) -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        waiting = acceptance(home, "also this", frame=2, turn_id=str(uuid(3001)))
        await db.write(partial(accept_queued, session_no=home.no, acceptance=waiting, capacity=16))
        await end(db, home, opened.turn, ending)
        row = inbox.by_frame(db.reader, home.no, uuid(2).bytes)

        assert row is not None
        assert row.state == state
        assert "- also this" in transcript(db, home)[-1].message.content


# --- what the next model is told


@pytest.mark.parametrize(
    ("state", "how"),
    [("failed", "failed before"), ("interrupted", "was interrupted"), ("cancelled", "The user stopped")],
)
def test_the_system_message_says_how_the_turn_ended(
    state: Literal["failed", "interrupted", "cancelled"], how: str
) -> None:
    text = system_text(Ending(state, "reason", "it broke", "reason"), [])

    assert how in text
    assert ("it broke" in text) == (state != "cancelled")
    assert ("Do not continue" in text) == (state == "cancelled")
    assert "tool calls" not in text


def test_only_calls_without_a_result_are_named_with_their_arguments_cut() -> None:
    calls = [
        (call("a", "look"), "succeeded"),
        (call("b", "edit"), "failed"),
        (call("c", "write", b'"' + b"x" * 5000 + b'"'), "noResult"),
    ]

    text = system_text(FAILED, calls)

    assert "look" not in text
    assert "edit" not in text
    assert "- write" in text
    assert len(text) < 1000


def test_of_very_many_undelivered_messages_the_first_are_named_cut_and_the_others_counted() -> None:
    text = system_text(FAILED, [], [f"message {n} {'x' * 5000}" for n in range(MAX_UNDELIVERED + 3)])

    assert text.count("- message") == MAX_UNDELIVERED
    assert "- message 9" in text
    assert "- and 3 more" in text
    assert len(text) < MAX_UNDELIVERED * 1100


def test_of_very_many_lost_calls_the_last_ones_are_named_and_the_others_counted() -> None:
    lost: list[tuple[ToolCallRecord, str]] = [
        (call(f"id{n}", f"tool{n}."), "noResult") for n in range(MAX_LISTED_CALLS + 5)
    ]

    text = system_text(FAILED, lost)

    assert text.count("- tool") == MAX_LISTED_CALLS
    assert "- 5 earlier calls" in text
    assert "tool4." not in text
    assert "tool5." in text


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.integers(3, 60))
def test_a_cut_text_is_a_beginning_of_the_text_that_never_exceeds_its_bytes_and_splits_no_character(
    text: str, max_bytes: int
) -> None:
    short = cut(text, max_bytes)

    assert len(short.encode()) <= max_bytes
    if len(text.encode()) <= max_bytes:
        assert short == text
    else:
        assert short.endswith("…")
        assert text.startswith(short[:-1])
        # No more was left out than had to be: the next character would not have fitted.
        assert len(text[: len(short)].encode()) + len("…".encode()) > max_bytes


async def asking(db: Database, home: Home, *claims: str) -> OpenedTurn:
    """A turn with these steps under way: `r0.model` asks for an answer, `r0.compact` for a summary."""
    opened = await open_turn(db, home)
    steps = [Claim(step=step, kind=step.partition(".")[2], given=Raw(b"{}")) for step in claims or ("r0.model",)]
    await commit(db, home, CommitSteps(execution_id=opened.execution_id, holder=HOLDER, claims=steps))
    return opened


def attempt(state: Literal["failed", "cancelled"], **facts: Any) -> ModelCallRecord:
    at_ms = facts.pop("at_ms", AT_MS)
    return ModelCallRecord(
        round=0, state=state, request_sequence=1, started_at_ms=at_ms, completed_at_ms=at_ms, **facts
    )


async def note(db: Database, home: Home, opened: OpenedTurn, progress: ModelProgress) -> None:
    request = EmitEvents(execution_id=opened.execution_id, holder=HOLDER, events=[], progress=progress)
    await db.write(partial(writes.emit, writer=home.writer, request=request, at_ms=AT_MS))


def recorded(db: Database, home: Home) -> list[CallRow]:
    (run,) = audit.runs(db.reader, home.no, stage=None, state=None, limit=9, offset=0)
    return [call for attempts in audit.rounds(db.reader, run.no) for call in attempts]


OVERLOADED = attempt("failed", failure_kind="server_error", failure_detail="try later", status=503, delay_ms=40)
UNDER_WAY = attempt("cancelled", status=200, streamed=True, usage=Usage(prompt=7), at_ms=AT_MS - 5)
TOLD_BY: list[tuple[Ending, str, str]] = [
    (FAILED, "cancelled", "its answer was cut off when the turn failed (timeout): too slow"),
    (CANCELLED, "cancelled", "its answer was cut off by a Stop"),
    (LOST, "interrupted", "its answer was cut off: the worker was lost"),
]


@pytest.mark.parametrize(("ending", "kind", "detail"), TOLD_BY, ids=lambda given: getattr(given, "state", None))
async def test_a_request_that_was_under_way_is_recorded_as_far_as_it_came_and_says_what_cut_it_off(
    ending: Ending, kind: str, detail: str
) -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await asking(db, home)
        progress = ModelProgress(step="r0.model", failed=[OVERLOADED], under_way=UNDER_WAY)
        await note(db, home, opened, progress)
        await end(db, home, opened.turn, ending)
        first, second = recorded(db, home)
        (spent,) = audit.spent_of_turns(db.reader, [opened.turn]).values()
        session = sessions.standing(db.reader, home.no)

    assert (first.state, first.failure_kind, first.failure_detail) == ("failed", "server_error", "try later")
    assert (first.status, first.streamed, first.delay_ms, first.is_unpriced) == (503, False, 40, False)
    assert (second.attempt, second.state, second.failure_kind, second.failure_detail) == (1, "cancelled", kind, detail)
    assert (second.status, second.streamed, second.delay_ms) == (200, True, None)
    assert (second.started_at_ms, second.completed_at_ms) == (AT_MS - 5, AT_MS + 1)
    assert (second.usage, second.is_unpriced) == (Usage(prompt=7), True)
    assert spent == session.spent == Spent(prompt=7, unpriced=1)


@pytest.mark.parametrize("ending", ALL, ids=lambda ending: ending.state)
async def test_the_first_attempt_is_made_when_its_step_begins_and_of_its_answer_nothing_is_known(
    ending: Ending,
) -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await asking(db, home)
        await end(db, home, opened.turn, ending)
        (only,) = recorded(db, home)

    assert (only.state, only.status, only.streamed, only.delay_ms) == ("cancelled", None, False, None)
    assert (only.usage, only.is_unpriced) == (Usage(), True)
    assert only.failure_kind == ("interrupted" if ending is LOST else "cancelled")


@pytest.mark.parametrize("ending", ALL, ids=lambda ending: ending.state)
async def test_an_attempt_that_was_still_waited_for_is_not_recorded(ending: Ending) -> None:
    waiting = ModelProgress(step="r0.model", failed=[msgspec.structs.replace(OVERLOADED, delay_ms=None)])
    async with open_store() as db:
        home = await make_home(db)
        opened = await asking(db, home)
        await note(db, home, opened, ModelProgress(step="r0.model", under_way=UNDER_WAY))
        await note(db, home, opened, waiting)
        await end(db, home, opened.turn, ending)
        (only,) = recorded(db, home)

        assert (only.state, only.failure_kind, only.delay_ms) == ("failed", "server_error", None)
        assert sessions.standing(db.reader, home.no).spent == NOTHING_SPENT
        assert db.reader.rows("SELECT count(*) FROM activity WHERE progress IS NOT NULL") == [(0,)]


async def test_a_model_that_waits_for_a_summary_has_not_been_asked() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await asking(db, home, "r0.model", "r0.compact")
        await end(db, home, opened.turn, CANCELLED)
        runs = audit.runs(db.reader, home.no, stage=None, state=None, limit=9, offset=0)
        made = {run.stage: [call for calls in audit.rounds(db.reader, run.no) for call in calls] for run in runs}

    assert made["turn"] == []
    assert [(call.failure_kind, call.is_unpriced) for call in made["compaction"]] == [("cancelled", True)]


async def test_what_a_summarizer_was_asked_is_recorded_as_far_as_it_came() -> None:
    waiting = ModelProgress(step="r0.compact", failed=[OVERLOADED, attempt("failed", failure_kind="transport")])
    async with open_store() as db:
        home = await make_home(db)
        opened = await asking(db, home, "r0.compact")
        await note(db, home, opened, waiting)
        await end(db, home, opened.turn, LOST)
        runs = {run.stage: run for run in audit.runs(db.reader, home.no, stage=None, state=None, limit=9, offset=0)}
        (calls,) = audit.rounds(db.reader, runs["compaction"].no)
        spent = audit.spent_of_turns(db.reader, [opened.turn])

        assert [(call.failure_kind, call.is_unpriced) for call in calls] == [
            ("server_error", False), ("transport", True),
        ]  # fmt: skip
        assert spent[opened.turn] == sessions.standing(db.reader, home.no).spent == Spent(unpriced=1)


async def test_progress_of_a_step_that_does_not_run_is_refused() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await asking(db, home)
        with pytest.raises(StaleClaim):
            await note(db, home, opened, ModelProgress(step="r1.model", under_way=UNDER_WAY))


async def test_an_answered_request_is_not_recorded_a_second_time_by_the_end_of_its_turn() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await turn_in_the_middle(db, home)
        await end(db, home, opened.turn, LOST)

        assert db.reader.rows("SELECT state FROM model_call WHERE state = 'cancelled'") == []
