from __future__ import annotations

import msgspec
import pytest
import trio
from session_kit import completes, house, never_starts, waits_then_completes
from trio.testing import MockClock, wait_all_tasks_blocked
from world_kit import dump, frame_types, uuid

from peen.errors import SessionBusy, SessionNotFound
from peen.session.ending import interrupted
from peen.store import turns

SHUTDOWN = interrupted("shutdown", "the controller was stopped")


async def test_a_message_for_an_unknown_session_is_refused_and_stores_nothing() -> None:
    async with house() as own:
        before = dump(own.db)
        message = msgspec.structs.replace(own.message(), session_id=str(uuid(404)))

        with pytest.raises(SessionNotFound, match="sessions/open"):
            await own.send(message, own.socket())
        assert dump(own.db) == before


async def test_a_session_that_nobody_has_cannot_be_stopped() -> None:
    async with house() as own:
        with pytest.raises(SessionNotFound):
            await own.sessions.stop(str(uuid(404)))


async def test_sessions_run_side_by_side() -> None:
    async with house(sessions=3) as own:
        for home in own.homes:
            own.plays(waits_then_completes, home)
            await own.send(own.message(home=home), own.socket())
        at_once = [turn.session_no for turn in turns.running(own.db.reader)]
        for link in own.workers.links.values():
            link.go_on.set()
        await wait_all_tasks_blocked()

        assert at_once == [home.no for home in own.homes]
        assert [name for home in own.homes for name, _ in own.ends(home)] == ["turn.completed"] * 3


async def test_an_orderly_stop_ends_every_running_turn_as_interrupted_and_its_frames_go_out() -> None:
    async with house(sessions=2) as own:
        own.plays(waits_then_completes, own.homes[0])
        own.plays(waits_then_completes, own.homes[1])
        socket = own.socket()
        for home in own.homes:
            await own.send(own.message(home=home), socket)
        await own.sessions.close(SHUTDOWN)
        own.pump.flush()
        (turn,) = turns.page(own.db.reader, own.home.no, limit=9, offset=0)

        assert [[data["reason"] for _, data in own.ends(home)] for home in own.homes] == [["shutdown"], ["shutdown"]]
        assert sorted(socket.ends()) == ["message.failed"] * 2 + ["turn.failed"] * 2
        assert turn.state == "interrupted"


async def test_after_an_orderly_stop_nothing_is_accepted_and_nothing_stored() -> None:
    async with house() as own:
        await own.send(own.message(), own.socket())
        await own.sessions.close(SHUTDOWN)
        before = dump(own.db)

        with pytest.raises(SessionBusy):
            await own.send(own.message(), own.socket())
        assert dump(own.db) == before


async def test_a_message_that_waited_in_the_inbox_during_an_orderly_stop_opens_no_turn() -> None:
    async with house() as own:
        own.plays(waits_then_completes)
        first, second = own.socket(), own.socket()
        await own.send(own.message(), first)
        await own.sessions.submit(own.message(), second)  # received, and not yet judged
        await own.sessions.close(SHUTDOWN)
        await wait_all_tasks_blocked()

        assert len(turns.page(own.db.reader, own.home.no, limit=9, offset=0)) == 1
        assert len(own.workers.links[own.home.no].commands) == 1


async def test_a_message_that_waited_for_a_stop_when_the_controller_stopped_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with house() as own:
        own.plays(waits_then_completes)
        first, second = own.socket(), own.socket()
        await own.send(own.message(), first)
        own.workers.links[own.home.no].obeys_stop = False
        await own.sessions.stop(own.home.uuid)
        await own.send(own.message(), second)
        await own.sessions.close(SHUTDOWN)
        await trio.sleep(10.0)

        assert [frame["data"]["code"] for frame in second.private] == ["SESSION_BUSY"]
        assert frame_types(own.db, own.home).count("userMessage.created") == 1


async def test_a_turn_that_waited_for_its_place_when_the_controller_stopped_starts_no_worker() -> None:
    async with house(sessions=2, turn_limit=1) as own:
        busy, waiting = own.homes
        own.plays(waits_then_completes, busy)
        own.plays(never_starts, waiting)
        await own.send(own.message(home=busy), own.socket())
        await own.send(own.message(home=waiting), own.socket())
        await own.sessions.close(SHUTDOWN)
        own.workers.links[busy.no].go_on.set()
        await wait_all_tasks_blocked()

        assert [session for _, what, session in own.workers.log if what == "ensure"] == [busy.uuid]
        assert [data["reason"] for _, data in own.ends(waiting)] == ["shutdown"]


async def test_a_worker_that_was_fenced_off_by_an_orderly_stop_writes_nothing_more() -> None:
    async with house() as own:
        own.plays(waits_then_completes)
        await own.send(own.message(), own.socket())
        await own.sessions.close(SHUTDOWN)
        (turn,) = turns.page(own.db.reader, own.home.no, limit=9, offset=0)
        before = dump(own.db)
        own.workers.links[own.home.no].go_on.set()
        await wait_all_tasks_blocked()

        assert dump(own.db) == before
        assert frame_types(own.db, own.home)[-1] == "turn.failed"
        assert turn.state == "interrupted"


async def test_an_orderly_stop_before_any_message_ends_nothing() -> None:
    async with house() as own:
        before = dump(own.db)
        await own.sessions.close(SHUTDOWN)

        assert dump(own.db) == before


async def test_many_clients_sending_at_once_lose_no_message() -> None:
    async with house(queue_capacity=100) as own:
        own.plays(completes)
        sockets = [own.socket() for _ in range(8)]
        messages = [own.message(f"message {number}") for number in range(40)]
        async with trio.open_nursery() as nursery:
            for number, message in enumerate(messages):
                nursery.start_soon(own.sessions.submit, message, sockets[number % 8])
        await wait_all_tasks_blocked()

        answered = [frame["triggeredBy"] for frame in sockets[0].heard if frame["type"] == "message.completed"]
        assert sorted(answered) == sorted(message.id for message in messages)
