"""The actor of a session that is being deleted."""

from __future__ import annotations

from functools import partial

import outcome
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from session_kit import House, Socket, house
from trio.testing import MockClock, wait_all_tasks_blocked
from world_kit import AT_MS, Home, dump

from peen.errors import SessionBusy, SessionNotFound
from peen.session.actor import INBOX_SLOTS
from peen.store import deletion, sessions
from peen.store.database import Database
from peen.wire.client import MessageSend


def mark(db: Database, home: Home) -> list[outcome.Outcome[sessions.SessionRow]]:
    """Queue the mark; what became of it, once it is there."""
    results: list[outcome.Outcome[sessions.SessionRow]] = []
    db.submit(partial(deletion.mark, session_id=home.id, at_ms=AT_MS), results.append)
    return results


async def delete(own: House, home: Home) -> None:
    await own.db.write(partial(deletion.mark, session_id=home.id, at_ms=AT_MS))
    await own.sessions.forget(home.no)
    await deletion.remove(own.db, home.no)


async def test_a_message_to_a_deleted_session_is_refused_and_others_go_on() -> None:
    async with house(sessions=2) as own:
        first, second = own.homes
        await own.send(own.message(home=first), own.socket())

        await delete(own, first)

        with pytest.raises(SessionNotFound):
            await own.sessions.submit(own.message(home=first), own.socket())
        with pytest.raises(SessionNotFound):
            await own.sessions.stop(first.uuid)
        socket = own.socket()
        await own.send(own.message(home=second), socket)
        assert socket.ends() == ["turn.completed", "message.completed"]


async def test_a_message_that_came_before_the_mark_was_stored_is_answered_by_the_actor() -> None:
    async with house() as own:
        socket = own.socket()
        marked = mark(own.db, own.home)
        message = own.message("late")
        await own.sessions.submit(message, socket)  # the session is still there
        await wait_all_tasks_blocked()

        await own.sessions.forget(own.home.no)
        stored = dump(own.db)

    assert [type(result) for result in marked] == [outcome.Value]
    assert [(ack["data"]["code"], ack["triggeredBy"]) for ack in socket.private] == [("SESSION_NOT_FOUND", message.id)]
    assert (stored["inbox"], stored["feed"]) == ([], [])


async def test_an_actor_that_is_forgotten_ends_and_asks_for_no_worker_any_more(autojump_clock: MockClock) -> None:
    async with house(idle_s=1.0) as own:
        await own.send(own.message(), own.socket())
        asked = list(own.workers.log)

        await delete(own, own.home)
        await own.sessions.forget(own.home.no)  # once more changes nothing
        await trio.sleep(5.0)

        assert own.workers.log == asked


TICKS = st.integers(0, 20)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), ticks=st.lists(TICKS, min_size=1, max_size=6), begin=TICKS)
def test_whoever_races_a_deletion_is_answered_and_either_all_goes_or_all_stays(
    seed: int, ticks: list[int], begin: int
) -> None:
    heard: dict[str, str] = {}

    async def submit(own: House, message: MessageSend, socket: Socket, after: int) -> None:
        await pass_ticks(after)
        try:
            await own.sessions.submit(message, socket)
        except SessionNotFound as refused:
            heard[message.id] = refused.code

    async def remove(own: House) -> None:
        await pass_ticks(begin)
        try:
            await delete(own, own.home)
        except SessionBusy as refused:
            heard["deletion"] = refused.code

    async def main() -> None:
        trio._core._run._r.seed(seed)  # one seed, one order of tasks
        async with house() as own:
            socket = own.socket()
            sent = [own.message(str(number)) for number in range(len(ticks))]
            async with trio.open_nursery() as nursery:
                for message, after in zip(sent, ticks, strict=True):
                    nursery.start_soon(submit, own, message, socket, after)
                nursery.start_soon(remove, own)
            await wait_all_tasks_blocked()
            for ack in [*socket.private, *socket.heard]:
                if ack["type"].startswith("message."):
                    heard[ack["triggeredBy"]] = ack["data"].get("code", ack["type"])
            stays = sessions.by_id(own.db.reader, own.home.id) is not None
            refusals = {heard[message.id] for message in sent} - {"message.completed"}
            assert stays == ("deletion" in heard)
            assert refusals <= (set() if stays else {"SESSION_NOT_FOUND"})
            if not stays:
                assert {table for table, rows in dump(own.db).items() if rows} == {"sqlite_sequence", "blob_dictionary"}

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def pass_ticks(count: int) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


def test_a_sender_that_waits_for_room_in_the_inbox_of_a_forgotten_actor_is_refused_as_well() -> None:
    waited = 0

    async def submit(own: House, message: MessageSend, socket: Socket, texts: dict[str, str]) -> None:
        try:
            await own.sessions.submit(message, socket)
        except SessionNotFound as refused:
            texts[message.id] = refused.message

    async def main(seed: int) -> None:
        nonlocal waited
        trio._core._run._r.seed(seed)  # one seed, one order of tasks
        async with house() as own:
            socket, texts = own.socket(), dict[str, str]()
            sent = [own.message(str(number)) for number in range(INBOX_SLOTS + 20)]
            marked = mark(own.db, own.home)
            async with trio.open_nursery() as nursery:
                for message in sent:
                    nursery.start_soon(submit, own, message, socket, texts)
                while not marked:
                    await trio.lowlevel.checkpoint()
                await own.sessions.forget(own.home.no)
            answered = {ack["triggeredBy"] for ack in socket.private if ack["data"]["code"] == "SESSION_NOT_FOUND"}
            assert answered | texts.keys() == {message.id for message in sent}
            assert answered.isdisjoint(texts)
            waited += list(texts.values()).count("metadata.sessionId: this session was deleted")

    for seed in range(10):
        trio.run(main, seed, clock=MockClock(autojump_threshold=0))

    assert waited > 0
