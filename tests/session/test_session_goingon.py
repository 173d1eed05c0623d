"""A decision about paused work and a message or a Stop that meet: one turn at a time, whichever comes first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

import trio
from session_kit import TERMINAL, House, completes, house, refuses, waits_then_completes
from trio.testing import MockClock, wait_all_tasks_blocked
from world_kit import AT_MS, frame_types, transcript

from peen.errors import SessionBusy, SessionNotFound
from peen.session.requests import ResumeRequest
from peen.session.resumption import abandon
from peen.store import executions, inbox, sessions, turns
from peen.store.deletion import mark

ROUNDS = 12


async def pause(own: House) -> ResumeRequest:
    """A turn that a Stop has paused; the request to go on with it."""
    own.plays(waits_then_completes)
    await own.send(own.message(), own.socket())
    await own.sessions.stop(own.home.uuid)
    await wait_all_tasks_blocked()
    (row,) = executions.paused_of(own.db.reader, own.home.no, limit=2)
    return ResumeRequest(str(UUID(bytes=row.id)), row.control_revision, "api")


async def test_a_message_that_meets_a_resumption_never_runs_beside_it(autojump_clock: MockClock) -> None:
    seen: set[str] = set()
    for pauses in range(ROUNDS):
        async with house() as own:
            request = await pause(own)
            own.plays(completes)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(own.sessions.resume, own.home.uuid, request)
                for _ in range(pauses):
                    await trio.lowlevel.checkpoint()
                await own.sessions.submit(own.message("and this"), own.socket())
            await wait_all_tasks_blocked()

            told = frame_types(own.db, own.home)
            assert "turn.resumed" in told
            if "userMessage.queued" in told:  # for the turn that goes on, and no other
                assert told.index("turn.resumed") < told.index("userMessage.queued") < len(told) - 1
            seen |= frames_of_one_turn_at_a_time(own)
    assert "userMessage.queued" in seen


async def test_a_message_that_meets_a_continuation_never_runs_beside_it(autojump_clock: MockClock) -> None:
    seen: set[str] = set()
    for pauses in range(ROUNDS):
        async with house() as own:
            own.plays(waits_then_completes)
            await own.send(own.message(), own.socket())
            await own.send(own.message("behind it"), own.socket())
            await own.sessions.stop(own.home.uuid)
            await wait_all_tasks_blocked()
            (waiting,) = inbox.stopped(own.db.reader, own.home.no)
            own.plays(completes)
            async with trio.open_nursery() as nursery:
                continued = partial(own.sessions.continue_input, own.home.uuid, str(UUID(bytes=waiting.request_id)), 1)
                nursery.start_soon(refused_or_done, continued, seen)
                for _ in range(pauses):
                    await trio.lowlevel.checkpoint()
                await own.sessions.submit(own.message("and this"), own.socket())
            await wait_all_tasks_blocked()

            frames_of_one_turn_at_a_time(own)
            assert turns.running(own.db.reader) == []
            assert inbox.opening(own.db.reader) == []
            assert turns.page(own.db.reader, own.home.no, limit=1, offset=0)[0].state == "completed"
    assert seen == {"done", "refused"}


async def refused_or_done(decision: Callable[[], Awaitable[None]], seen: set[str]) -> None:
    try:
        await decision()
    except SessionBusy:
        seen.add("refused")
    else:
        seen.add("done")


def frames_of_one_turn_at_a_time(own: House) -> set[str]:
    """Types of the session's frames, in which no turn begins while another one runs."""
    running = False
    for name in frame_types(own.db, own.home):
        if name in ("turn.started", "turn.resumed"):
            assert not running, "two turns at once"
            running = True
        elif name in TERMINAL:
            running = False
    return set(frame_types(own.db, own.home))


async def test_a_decision_may_be_the_first_thing_that_a_session_hears(autojump_clock: MockClock) -> None:
    async with house() as own:
        request = await pause(own)
        await own.sessions.forget(own.home.no)  # as after a restart: nobody serves the session yet
        own.plays(completes)

        await own.sessions.resume(own.home.uuid, request)
        await wait_all_tasks_blocked()

        assert "turn.resumed" in frame_types(own.db, own.home)
        assert turns.running(own.db.reader) == []


async def test_work_that_cannot_go_on_for_now_stays_paused_and_goes_on_later(autojump_clock: MockClock) -> None:
    async with house() as own:
        request = await pause(own)
        own.plays(refuses)  # say, because its model is not offered at present

        await own.sessions.resume(own.home.uuid, request)
        await wait_all_tasks_blocked()

        (row,) = executions.paused_of(own.db.reader, own.home.no, limit=2)
        assert own.ends()[-1][0] == "turn.failed"
        assert "this worker has no such model" in own.ends()[-1][1]["error"]
        assert row.pause_reason == "interrupted"

        own.plays(completes)
        again = ResumeRequest(request.execution_id, row.control_revision, "api")
        await own.sessions.resume(own.home.uuid, again)
        await wait_all_tasks_blocked()

        assert own.ends()[-1][0] == "turn.completed"


async def test_messages_that_waited_are_named_where_their_work_is_given_up_while_a_stop_ends_it(
    autojump_clock: MockClock,
) -> None:
    async with house() as own:
        own.plays(waits_then_completes)
        await own.send(own.message(), own.socket())
        await own.send(own.message("behind it"), own.socket())
        await own.sessions.stop(own.home.uuid)
        (row,) = executions.paused_of(own.db.reader, own.home.no, limit=2)
        assert turns.running(own.db.reader) != []
        given_up = partial(
            abandon, session_no=own.home.no, execution_id=row.id, control_revision=row.control_revision, caller="api",
            at_ms=AT_MS,
        )  # fmt: skip

        await own.db.write(given_up)
        await wait_all_tasks_blocked()

        assert inbox.stopped(own.db.reader, own.home.no) == []
        told = [each.message.content for each in transcript(own.db, own.home) if each.message.role == "system"]
        assert "- behind it" in told[0].splitlines()


async def test_a_resumption_that_meets_a_deletion_never_runs_in_a_deleted_session(autojump_clock: MockClock) -> None:
    seen: set[str] = set()
    for pauses in range(ROUNDS):
        async with house() as own:
            request = await pause(own)
            own.plays(waits_then_completes)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(resumed_or_refused, own, request, seen)
                for _ in range(pauses):
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(deleted_or_refused, own, seen)
            await wait_all_tasks_blocked()

            is_deleted = sessions.by_id(own.db.reader, own.home.id) is None
            assert is_deleted != bool(turns.running(own.db.reader))
    assert {"resumed", "deleted", "SESSION_NOT_FOUND", "SESSION_BUSY"} <= seen


async def resumed_or_refused(own: House, request: ResumeRequest, seen: set[str]) -> None:
    try:
        await own.sessions.resume(own.home.uuid, request)
    except SessionNotFound as refused:
        seen.add(refused.code)
    else:
        seen.add("resumed")


async def deleted_or_refused(own: House, seen: set[str]) -> None:
    try:
        await own.db.write(partial(mark, session_id=own.home.id, at_ms=AT_MS))
    except SessionBusy as refused:
        seen.add(refused.code)
    else:
        seen.add("deleted")


async def test_a_stop_that_meets_a_resumption_ends_the_turn_that_it_begins(autojump_clock: MockClock) -> None:
    ends: set[str] = set()
    for pauses in range(ROUNDS):
        async with house() as own:
            request = await pause(own)
            own.workers.links.clear()
            own.workers.start_s = 60.0  # so the turn that goes on is still there when the Stop comes
            async with trio.open_nursery() as nursery:
                nursery.start_soon(own.sessions.resume, own.home.uuid, request)
                for _ in range(pauses):
                    await trio.lowlevel.checkpoint()
                begun = "turn.resumed" in frame_types(own.db, own.home)
                was_running = await own.sessions.stop(own.home.uuid)
            await wait_all_tasks_blocked()

            assert was_running or not begun
            # A turn that goes on after the Stop does so with an execution that the Stop has not fenced.
            assert len(turns.running(own.db.reader, own.home.no)) == len(executions.running(own.db.reader, own.home.no))
            if was_running:  # else the Stop came first, and the resumption after it is a decision of its own
                assert turns.running(own.db.reader, own.home.no) == []
                ends.add([name for name in frame_types(own.db, own.home) if name in TERMINAL][-1])
    assert ends == {"turn.cancelled"}
