"""A resumption and a message that meet: one turn at a time, whichever comes first."""

from __future__ import annotations

from uuid import UUID

import trio
from session_kit import TERMINAL, House, completes, house, waits_then_completes
from trio.testing import MockClock, wait_all_tasks_blocked
from world_kit import frame_types

from peen.session.requests import ResumeRequest
from peen.store import executions, turns

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

            running = False
            for name in frame_types(own.db, own.home):
                if name in ("turn.started", "turn.resumed"):
                    assert not running, "two turns at once"
                    running = True
                elif name in TERMINAL:
                    running = False
                elif name == "userMessage.queued":
                    assert running
                    seen.add("queued")
            assert "turn.resumed" in frame_types(own.db, own.home)
    assert "queued" in seen


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
