"""Paused work that was asked for while another turn ran: stored, begun in its turn, dropped by a Stop."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import pytest
import trio
from session_kit import TERMINAL, House, completes, house, waits_then_completes
from trio.testing import MockClock, wait_all_tasks_blocked
from world_kit import AT_MS, Home, dump, frame_types, uuid

from peen.errors import Conflict, NotFound, SessionBusy
from peen.session import inspection
from peen.session.ending import interrupted
from peen.session.requests import ResumeRequest
from peen.session.resumption import abandon
from peen.store import admissions, controlevents, executions, sessions, turns
from peen.store.direct import MemoryFile
from peen.wire.execution import Admission, Execution

SHUTDOWN = interrupted("shutdown", "the controller was stopped")
ROUNDS = 12


async def pause(own: House, home: Home | None = None) -> ResumeRequest:
    """A turn that a Stop has paused; the request to go on with it."""
    home = home or own.home
    own.plays(waits_then_completes, home)
    await own.send(own.message(home=home), own.socket())
    await own.sessions.stop(home.uuid)
    await wait_all_tasks_blocked()
    row = executions.paused_of(own.db.reader, home.no, limit=1)[0]
    return ResumeRequest(str(UUID(bytes=row.id)), row.control_revision, "api")


async def run_another(own: House, home: Home | None = None) -> None:
    """A turn that runs until `finish`."""
    own.plays(waits_then_completes, home or own.home)
    own.workers.links.pop((home or own.home).no, None)
    await own.send(own.message("another", home=home), own.socket())


async def finish(own: House) -> None:
    own.workers.links[own.home.no].go_on.set()
    await wait_all_tasks_blocked()


def shown(own: House, request: ResumeRequest, home: Home | None = None) -> Execution:
    """The execution as clients see it."""
    home = home or own.home
    return inspection.resource(home.uuid, inspection.found(own.db.reader, home.no, request.execution_id))


def events(own: House, request: ResumeRequest) -> list[tuple[str, Any]]:
    row = inspection.found(own.db.reader, own.home.no, request.execution_id)
    return [(name, msgspec.json.decode(data)) for name, data, _ in controlevents.events(own.db.reader, row.no)]


def story(own: House, home: Home | None = None) -> list[str]:
    """Begins and ends of turns."""
    return [
        name.removeprefix("turn.")
        for name in frame_types(own.db, home or own.home)
        if name in TERMINAL | {"turn.started", "turn.resumed"}
    ]


async def test_what_is_asked_for_while_a_turn_runs_is_stored_shown_and_begun_at_its_end(
    autojump_clock: MockClock,
) -> None:
    async with house() as own:
        request = await pause(own)
        await run_another(own)
        await own.sessions.resume(own.home.uuid, request)
        waiting = shown(own, request)
        assert waiting.state == "paused"
        assert waiting.admission is not None
        assert waiting.admission.caller == "api"
        assert story(own)[-1] == "started"  # the other turn goes on undisturbed

        await finish(own)

        (resumed,) = own.workers.links[own.home.no].resumed
        assert resumed.execution_id == request.execution_id
        assert story(own)[-3:] == ["completed", "resumed", "completed"]
        assert shown(own, request).admission is None
        assert [name for name, _ in events(own, request)] == [
            "execution.adopted", "execution.paused", "execution.continueRequested", "execution.resumed",
            "execution.adopted",
        ]  # fmt: skip
        assert admissions.first(own.db.reader, own.home.no) is None


async def test_to_ask_again_at_the_same_revision_changes_nothing(autojump_clock: MockClock) -> None:
    async with house() as own:
        request = await pause(own)
        await run_another(own)
        await own.sessions.resume(own.home.uuid, request)
        before = dump(own.db)

        await own.sessions.resume(own.home.uuid, request)

        assert dump(own.db) == before


@pytest.mark.parametrize(
    ("wrong", "error"),
    [({"control_revision": 99}, Conflict), ({"execution_id": str(uuid(77))}, NotFound)],
)
async def test_what_cannot_go_on_is_not_admitted(
    wrong: dict[str, Any], error: type[Exception], autojump_clock: MockClock
) -> None:
    async with house() as own:
        request = await pause(own)
        await run_another(own)
        before = dump(own.db)
        asked = {"execution_id": request.execution_id, "control_revision": request.control_revision, **wrong}

        with pytest.raises(error):
            await own.sessions.resume(own.home.uuid, ResumeRequest(caller="api", **asked))
        assert dump(own.db) == before


async def test_several_go_on_one_after_the_other_in_the_order_of_their_admission(autojump_clock: MockClock) -> None:
    async with house() as own:
        requests = [await pause(own) for _ in range(3)]
        await run_another(own)
        wanted = [requests[1], requests[2], requests[0]]
        for request in wanted:
            await own.sessions.resume(own.home.uuid, request)
        await finish(own)

        link = own.workers.links[own.home.no]
        assert [each.execution_id for each in link.resumed] == [request.execution_id for request in wanted]
        assert story(own)[-7:] == ["completed", *["resumed", "completed"] * 3]


async def test_a_stop_drops_what_was_admitted_in_its_own_transaction(autojump_clock: MockClock) -> None:
    async with house() as own:
        request = await pause(own)
        await run_another(own)
        await own.sessions.resume(own.home.uuid, request)
        own.workers.links[own.home.no].obeys_stop = False
        await own.sessions.stop(own.home.uuid)  # returns with its first transaction; the turn still has to end

        assert turns.running(own.db.reader) != []
        assert shown(own, request).admission is None
        assert events(own, request)[-1] == ("execution.continuationDropped", {"reason": "stop"})
        own.plays(completes)
        await trio.sleep(20.0)
        assert "resumed" not in story(own)


async def test_work_that_is_given_up_is_not_admitted_any_more(autojump_clock: MockClock) -> None:
    async with house() as own:
        request = await pause(own)
        await run_another(own)
        await own.sessions.resume(own.home.uuid, request)
        change = partial(
            abandon, session_no=own.home.no, execution_id=UUID(request.execution_id).bytes,
            control_revision=request.control_revision, caller="api", at_ms=AT_MS,
        )  # fmt: skip
        await own.db.write(change)
        assert admissions.first(own.db.reader, own.home.no) is None
        await finish(own)

        assert "resumed" not in story(own)


async def test_one_that_has_become_impossible_does_not_block_the_next(autojump_clock: MockClock) -> None:
    async with house() as own:
        first, second = await pause(own), await pause(own)
        await run_another(own)
        for request in (first, second):
            await own.sessions.resume(own.home.uuid, request)
        # What no decision does any more: the revision moves, and the admission is still there.
        await own.db.write(
            lambda tx: tx.execute(
                "UPDATE execution SET control_revision = control_revision + 1 WHERE id = ?",
                (UUID(first.execution_id).bytes,),
            ).fetchall()
        )
        await finish(own)

        link = own.workers.links[own.home.no]
        assert [each.execution_id for each in link.resumed] == [second.execution_id]
        name, data = events(own, first)[-1]
        assert (name, "controlRevision" in data["reason"]) == ("execution.continuationDropped", True)
        assert admissions.first(own.db.reader, own.home.no) is None


async def test_an_admission_that_meets_the_end_of_the_turn_is_never_forgotten(autojump_clock: MockClock) -> None:
    for pauses in range(ROUNDS):
        async with house() as own:
            request = await pause(own)
            await run_another(own)
            link = own.workers.links[own.home.no]
            async with trio.open_nursery() as nursery:
                link.go_on.set()
                for _ in range(pauses):
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(own.sessions.resume, own.home.uuid, request)
            await wait_all_tasks_blocked()

            assert story(own)[-3:] == ["completed", "resumed", "completed"], pauses


# --- after the controller


async def test_what_was_admitted_before_a_crash_goes_on_after_it_and_nothing_else_does(
    autojump_clock: MockClock,
) -> None:
    file = MemoryFile()
    async with house(sessions=2, file=file) as own:
        wanted, other = await pause(own), await pause(own)
        elsewhere = await pause(own, own.homes[1])
        await run_another(own)
        await run_another(own, own.homes[1])
        await own.sessions.resume(own.home.uuid, wanted)
        await own.sessions.resume(own.homes[1].uuid, elsewhere)
    async with house(sessions=2, file=file, life=2) as own:
        cut_off = executions.paused_of(own.db.reader, own.home.no, limit=1)[0]
        assert shown(own, wanted).admission is not None
        assert await own.sessions.begin_admitted() == 2
        await wait_all_tasks_blocked()

        assert story(own)[-3:] == ["failed", "resumed", "completed"]
        assert shown(own, wanted).state == "completed"
        assert shown(own, elsewhere, own.homes[1]).state == "completed"
        assert shown(own, other).state == "paused"
        assert inspection.resource("", cut_off).pause_reason == "interrupted"
        assert sessions.by_no(own.db.reader, own.home.no).paused_executions == 2  # type: ignore[union-attr]


async def test_several_that_were_admitted_before_a_crash_go_on_one_after_the_other(autojump_clock: MockClock) -> None:
    file = MemoryFile()
    async with house(file=file) as own:
        requests = [await pause(own), await pause(own)]
        await run_another(own)
        for request in requests:
            await own.sessions.resume(own.home.uuid, request)
    async with house(file=file, life=2) as own:
        await own.sessions.begin_admitted()
        await wait_all_tasks_blocked()

        link = own.workers.links[own.home.no]
        assert [each.execution_id for each in link.resumed] == [request.execution_id for request in requests]
        assert story(own)[-5:] == ["failed", *["resumed", "completed"] * 2]


async def test_a_stop_before_the_crash_counts_after_it(autojump_clock: MockClock) -> None:
    file = MemoryFile()
    async with house(file=file) as own:
        request = await pause(own)
        await run_another(own)
        await own.sessions.resume(own.home.uuid, request)
        own.workers.links[own.home.no].obeys_stop = False
        await own.sessions.stop(own.home.uuid)
    async with house(file=file, life=2) as own:
        assert await own.sessions.begin_admitted() == 0
        await wait_all_tasks_blocked()

        assert story(own)[-1] == "cancelled"
        assert shown(own, request).state == "paused"


async def test_what_was_admitted_before_an_orderly_stop_begins_only_with_the_next_controller(
    autojump_clock: MockClock,
) -> None:
    file = MemoryFile()
    async with house(file=file) as own:
        request = await pause(own)
        await run_another(own)
        await own.sessions.resume(own.home.uuid, request)
        await own.sessions.close(SHUTDOWN)
        await wait_all_tasks_blocked()
        assert story(own)[-1] == "failed"
        with pytest.raises(SessionBusy):
            await own.sessions.resume(own.home.uuid, request)
    async with house(file=file, life=2) as own:
        await own.sessions.begin_admitted()
        await wait_all_tasks_blocked()

        assert story(own)[-2:] == ["resumed", "completed"]


async def test_with_resuming_configured_what_a_person_asked_for_comes_first(autojump_clock: MockClock) -> None:
    file = MemoryFile()
    async with house(file=file) as own:
        request = await pause(own)
        await run_another(own)
        await own.sessions.resume(own.home.uuid, request)
    async with house(file=file, life=2) as own:
        await own.sessions.begin_admitted()
        assert await own.sessions.resume_after_crash() == 1
        await wait_all_tasks_blocked()

        first, second = own.workers.links[own.home.no].resumed
        assert first.execution_id == request.execution_id
        assert [data["caller"] for name, data in events(own, ResumeRequest(second.execution_id, 0, ""))
                if name == "execution.resumed"] == ["recovery"]  # fmt: skip
        assert story(own)[-5:] == ["failed", *["resumed", "completed"] * 2]


# --- a message that a Stop left waiting


async def test_a_message_that_is_continued_never_runs_beside_a_resumption(autojump_clock: MockClock) -> None:
    seen: set[str] = set()
    for pauses in range(ROUNDS):
        async with house() as own:
            own.plays(waits_then_completes)
            await own.send(own.message(), own.socket())
            await own.send(own.message("queued"), own.socket())
            await own.sessions.stop(own.home.uuid)
            await wait_all_tasks_blocked()
            row = executions.paused_of(own.db.reader, own.home.no, limit=1)[0]
            request = ResumeRequest(str(UUID(bytes=row.id)), row.control_revision, "api")
            queued = str(UUID(bytes=own.db.reader.rows("SELECT request_id FROM inbox ORDER BY no DESC LIMIT 1")[0][0]))

            async def go_on(own: House = own, queued: str = queued) -> None:
                try:
                    await own.sessions.continue_input(own.home.uuid, queued, 1)
                except SessionBusy:
                    seen.add("busy")
                except Conflict:
                    seen.add("delivered by the turn that went on")

            own.workers.links.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(own.sessions.resume, own.home.uuid, request)
                for _ in range(pauses):
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(go_on)
            await wait_all_tasks_blocked()

            assert len(turns.running(own.db.reader)) == 1, pauses
            await finish(own)
            assert turns.running(own.db.reader) == []
    assert "busy" in seen


def test_the_view_names_who_asked() -> None:
    assert msgspec.json.encode(Admission(caller="agent", admitted_at="2026-01-31T12:00:00.000Z")) == (
        b'{"caller":"agent","admittedAt":"2026-01-31T12:00:00.000Z"}'
    )
