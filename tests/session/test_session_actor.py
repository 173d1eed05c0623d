"""One conversation, from the message to its acknowledgement, with a played worker and a real store."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest
import trio
from session_kit import (
    Play,
    PlayedLink,
    Socket,
    breaks,
    completes,
    fails,
    house,
    is_lost,
    made_before,
    never_starts,
    refuses,
    replayed,
    returns_early,
    waits_then_completes,
)
from trio.testing import MockClock, wait_all_tasks_blocked
from world_kit import MODEL, check_sequences, dump, execution_of, frame_types, transcript, uuid

from peen.errors import LinkLost
from peen.patience import STOP_QUIET_S
from peen.store import inbox, turns
from peen.testing.faults import Faults
from peen.wire.worker import RunTurn

# --- one message


async def test_a_message_is_carried_out_and_acknowledged_after_the_terminal_frame() -> None:
    async with house() as own:
        socket = own.socket()
        message = own.message("hello")
        await own.send(message, socket)
        acknowledgement = socket.heard[-1]

    assert socket.types() == ["userMessage.created", "turn.started", "turn.completed", "message.completed"]
    assert acknowledgement["data"] == {"queued": False}
    assert acknowledgement["triggeredBy"] == message.id
    assert acknowledgement["metadata"]["requestId"] == socket.heard[0]["metadata"]["requestId"]
    assert "sequence" not in acknowledgement["metadata"]
    assert socket.private == []


async def test_the_worker_is_told_what_the_message_says() -> None:
    async with house() as own:
        await own.send(own.message("hello", model=MODEL), own.socket())
        (command,) = own.workers.links[own.home.no].commands
        (turn,) = turns.page(own.db.reader, own.home.no, limit=9, offset=0)

    assert (command.message, command.model, command.system_prompt) == ("hello", MODEL, None)
    assert command.turn_id == str(UUID(bytes=turn.id))


async def test_every_socket_that_hears_the_session_hears_all_of_it_and_others_hear_nothing() -> None:
    async with house(sessions=2) as own:
        sender, listener = own.socket(), own.socket(own.home.uuid)
        stranger = own.socket(own.homes[1].uuid)
        await own.send(own.message(), sender)

    assert sender.raw == listener.raw
    assert (stranger.raw, stranger.private) == ([], [])


async def test_a_sender_that_hears_only_another_session_is_told_by_itself_after_everybody_else() -> None:
    async with house(sessions=2) as own:
        order: list[str] = []
        listener = own.socket(own.home.uuid)
        sender = NotingSocket(own.homes[1].uuid, order=order, others=listener)
        own.fanout.add(sender)
        message = own.message()
        await own.send(message, sender)

    assert sender.heard == []
    assert [frame["triggeredBy"] for frame in sender.private] == [message.id]
    assert order == ["turn.completed", "message.completed"]
    assert listener.ends() == ["turn.completed", "message.completed"]


class NotingSocket(Socket):
    """Notes what another socket has heard when this one is told."""

    def __init__(self, session_filter: str, *, order: list[str], others: Socket) -> None:
        super().__init__(session_filter)
        self._order, self._others = order, others

    def reply(self, frame: bytes) -> None:
        super().reply(frame)
        self._order += self._others.ends()


async def test_messages_of_one_session_are_served_in_the_order_of_their_receipt() -> None:
    async with house() as own:
        socket = own.socket()
        for number in range(5):
            await own.sessions.submit(own.message(f"{number}"), socket)
        await wait_all_tasks_blocked()
        told = [row.message.content for row in transcript(own.db, own.home) if row.message.role == "user"]

    assert told == ["0", "1", "2", "3", "4"]


# --- the same message again


async def test_a_resend_after_the_end_is_answered_as_the_first_and_starts_nothing() -> None:
    async with house() as own:
        first, second = own.socket(), own.socket()
        message = own.message()
        await own.send(message, first)
        before = dump(own.db)
        await own.send(message, second)

        assert dump(own.db) == before
        assert len(own.workers.links[own.home.no].commands) == 1
    (again,) = second.private
    assert (again["type"], again["data"]) == ("message.completed", {"queued": False})
    assert again["metadata"] == first.heard[-1]["metadata"]
    assert first.private == []


async def test_a_resend_while_the_turn_runs_joins_the_wait_and_both_are_answered() -> None:
    async with house() as own:
        own.plays(waits_then_completes)
        first, second = own.socket(), own.socket()
        message = own.message()
        await own.send(message, first)
        await own.send(message, second)
        waiting = first.ends()
        own.workers.links[own.home.no].go_on.set()
        await wait_all_tasks_blocked()

        assert waiting == []
        assert first.ends() == ["turn.completed", "message.completed"]
        (private,) = second.private
        assert (private["type"], private["triggeredBy"]) == ("message.completed", message.id)
        assert first.private == []
        assert len(turns.page(own.db.reader, own.home.no, limit=9, offset=0)) == 1
        assert [row.message.content for row in transcript(own.db, own.home)] == ["go", "done"]


async def test_a_resend_before_the_turn_is_opened_joins_too(autojump_clock: MockClock) -> None:
    async with house() as own:
        own.workers.start_s = 3.0
        socket = own.socket()
        message = own.message()
        await own.sessions.submit(message, socket)
        await trio.sleep(1.0)
        await own.sessions.submit(message, socket)
        await trio.sleep(5.0)

        assert socket.ends() == ["turn.completed", "message.completed"]
        assert [frame["type"] for frame in socket.private] == ["message.completed"]
        assert len(turns.page(own.db.reader, own.home.no, limit=9, offset=0)) == 1
        assert frame_types(own.db, own.home).count("userMessage.created") == 1


async def test_a_resend_of_a_failed_message_is_answered_with_the_same_failure() -> None:
    async with house() as own:
        own.plays(fails)
        first, second = own.socket(), own.socket()
        message = own.message()
        await own.send(message, first)
        await own.send(message, second)

    assert second.private[0]["data"] == first.heard[-1]["data"]
    assert second.private[0]["data"]["reason"] == "timeout"


async def test_the_same_id_with_other_content_is_refused_whatever_became_of_the_first() -> None:
    async with house() as own:
        own.plays(waits_then_completes)
        first, second = own.socket(), own.socket()
        message = own.message("one thing")
        other = msgspec.structs.replace(message, message="another thing")
        await own.send(message, first)
        before = dump(own.db)
        await own.send(other, second)
        assert dump(own.db) == before
        own.workers.links[own.home.no].go_on.set()
        await wait_all_tasks_blocked()
        await own.send(other, second)

    assert [frame["data"]["code"] for frame in second.private] == ["VALIDATION_FAILED"] * 2
    assert first.ends() == ["turn.completed", "message.completed"]


# --- while a turn runs


async def test_a_message_while_a_turn_runs_joins_its_queue_and_is_acknowledged_as_queued() -> None:
    async with house() as own:
        own.plays(waits_then_completes)
        socket = own.socket()
        await own.send(own.message("first"), socket)
        second = own.message("second")
        await own.send(second, socket)
        row = inbox.by_frame(own.db.reader, own.home.no, uuid(2).bytes)

        assert row is not None
        assert row.state == "queued"
        assert socket.types()[-3:] == ["userMessage.created", "userMessage.queued", "message.completed"]
        assert socket.heard[-1]["data"] == {"queued": True}
        assert socket.heard[-1]["triggeredBy"] == second.id
        own_request = socket.heard[-1]["metadata"]["requestId"]
        assert own_request == socket.heard[-2]["metadata"]["requestId"] != socket.heard[0]["metadata"]["requestId"]


async def test_a_resend_of_a_queued_message_is_answered_as_queued_and_queues_nothing() -> None:
    async with house() as own:
        own.plays(waits_then_completes)
        socket = own.socket()
        await own.send(own.message("first"), socket)
        second = own.message("second")
        await own.send(second, socket)
        before = dump(own.db)
        await own.send(second, socket)

        assert dump(own.db) == before
        assert [frame["data"] for frame in socket.private] == [{"queued": True}]


async def test_a_queue_that_is_full_refuses_the_next_message_and_stores_nothing_of_it() -> None:
    async with house(queue_capacity=2) as own:
        own.plays(waits_then_completes)
        socket = own.socket()
        for _ in range(3):
            await own.send(own.message(), socket)
        before = dump(own.db)
        await own.send(own.message(), socket)

        assert dump(own.db) == before
        assert [frame["data"]["code"] for frame in socket.private] == ["USER_MESSAGE_QUEUE_FULL"]


async def test_messages_that_still_wait_when_the_turn_completes_open_the_next_one() -> None:
    async with house() as own:
        own.plays(waits_then_completes)
        socket = own.socket()
        await own.send(own.message("first"), socket)
        await own.send(own.message("second"), socket)
        own.plays(completes)
        own.workers.links[own.home.no].go_on.set()
        await wait_all_tasks_blocked()
        link = own.workers.links[own.home.no]

        assert [command.message for command in link.commands] == ["first", "second"]
        assert socket.types()[-5:] == [
            "turn.completed",
            "message.completed",
            "userMessage.delivered",
            "turn.started",
            "turn.completed",
        ]
        assert inbox.opening(own.db.reader) == []
        check_sequences(own.db.reader)


# --- refusals


async def test_an_unknown_model_is_refused_and_nothing_is_stored() -> None:
    async with house() as own:
        socket = own.socket()
        before = dump(own.db)
        message = own.message(model="up/ghost")
        await own.send(message, socket)

        assert dump(own.db) == before
    (refusal,) = socket.private
    assert (refusal["data"]["code"], refusal["triggeredBy"]) == ("VALIDATION_FAILED", message.id)
    assert "up/ghost" in refusal["data"]["message"]
    assert socket.heard == []


async def test_a_full_disk_refuses_the_message_stores_nothing_and_the_next_one_is_accepted() -> None:
    plan = Faults.full_at(1)
    async with house(file=await made_before(), faults=plan) as own:
        socket = own.socket()
        before = dump(own.db)
        message = own.message()
        await own.send(message, socket)
        after = dump(own.db)
        await own.send(message, socket)  # the same one: a refused message is judged anew

        assert after == before
        assert plan.fired == 1
    assert [frame["data"]["code"] for frame in socket.private] == ["STORAGE_FULL"]
    assert socket.ends() == ["turn.completed", "message.completed"]


# --- how turns end without the worker's word


@pytest.mark.parametrize(
    ("play", "reason", "words"),
    [
        (never_starts, "interrupted", "could not be started: no memory"),
        (is_lost, "interrupted", "was lost: it was killed"),
        (refuses, "agentRun", "this worker has no such model"),
        (returns_early, "agentRun", "returned without ending the turn"),
        (breaks, "agentRun", "internal error"),
    ],
)
async def test_a_turn_that_its_worker_does_not_end_has_exactly_one_end_all_the_same(
    play: Play, reason: str, words: str
) -> None:
    async with house() as own:
        own.plays(play)
        socket = own.socket()
        await own.send(own.message("hello"), socket)

        ((name, data),) = own.ends()
        assert (name, data["reason"]) == ("turn.failed", reason)
        assert words in data["error"]
        assert "/srv/secret" not in data["error"]
        assert socket.ends() == ["turn.failed", "message.failed"]
        assert socket.heard[-1]["data"]["reason"] == reason
        told = transcript(own.db, own.home)
        assert [row.message.role for row in told] == ["user", "system"]
        assert told[0].message.content == "hello"
        check_sequences(own.db.reader)


async def test_a_worker_that_cannot_start_leaves_a_turn_without_an_execution() -> None:
    async with house() as own:
        own.plays(never_starts)
        await own.send(own.message("hello"), own.socket())
        (turn,) = turns.page(own.db.reader, own.home.no, limit=9, offset=0)
        row = inbox.by_turn(own.db.reader, own.home.no, turn.id)

    assert (turn.state, turn.generation_id) == ("interrupted", None)
    assert row is not None
    assert row.state == "undelivered"


async def test_a_lost_worker_is_dead_before_its_turn_ends_and_can_write_nothing_after(
    autojump_clock: MockClock,
) -> None:
    async with house() as own:
        own.plays(is_lost)
        own.workers.settle_s = 2.0
        socket = own.socket()
        await own.send(own.message(), socket)
        before_it_is_dead = own.ends()
        await trio.sleep(3.0)
        (turn,) = turns.page(own.db.reader, own.home.no, limit=9, offset=0)
        execution = execution_of(own.db, str(UUID(bytes=turn.id)))

        assert before_it_is_dead == []
        assert [what for _, what, _ in own.workers.log] == ["ensure", "settled"]
        assert (execution.state, execution.holder) == ("paused", None)
        assert socket.ends() == ["turn.failed", "message.failed"]


async def test_a_worker_that_commits_its_end_and_is_lost_then_has_one_end() -> None:
    async def ends_and_is_lost(link: PlayedLink, request: RunTurn) -> None:
        await completes(link, request)
        raise LinkLost("killed after its commit")

    async with house() as own:
        own.plays(ends_and_is_lost)
        socket = own.socket()
        await own.send(own.message(), socket)

        assert socket.ends() == ["turn.completed", "message.completed"]


@pytest.mark.parametrize("play", [completes, fails, never_starts, is_lost, refuses, returns_early, breaks])
async def test_after_every_kind_of_end_the_next_message_is_accepted_at_once(
    autojump_clock: MockClock, play: Play
) -> None:
    async with house() as own:
        own.plays(play)
        socket = own.socket()
        await own.send(own.message(), socket)
        own.plays(completes)
        began = trio.current_time()
        await own.send(own.message(), socket)

        assert trio.current_time() == began
        assert socket.ends()[-2:] == ["turn.completed", "message.completed"]
        assert len(own.ends()) == 2


async def test_the_next_message_is_accepted_while_the_last_worker_command_still_returns(
    autojump_clock: MockClock,
) -> None:
    async def lingers(link: PlayedLink, request: RunTurn) -> None:
        await completes(link, request)
        await trio.sleep(60.0)

    async with house() as own:
        own.plays(lingers)
        socket = own.socket()
        await own.send(own.message(), socket)
        await own.send(own.message(), socket)

        assert socket.ends() == ["turn.completed", "message.completed"] * 2


# --- Stop


async def test_a_stop_ends_the_running_turn_as_cancelled_and_the_next_message_is_accepted(
    autojump_clock: MockClock,
) -> None:
    async with house() as own:
        own.plays(waits_then_completes)
        socket = own.socket()
        await own.send(own.message(), socket)
        was_running = await own.sessions.stop(own.home.uuid)
        await wait_all_tasks_blocked()
        own.plays(completes)
        await own.send(own.message(), socket)

        assert was_running
        assert socket.ends() == ["turn.cancelled", "message.failed", "turn.completed", "message.completed"]
        assert next(frame for frame in socket.heard if frame["type"] == "message.failed")["data"] == {
            "code": "TURN_CANCELLED",
            "message": "the turn was cancelled",
        }
        check_sequences(own.db.reader)


async def test_a_stop_without_a_running_turn_ends_nothing(autojump_clock: MockClock) -> None:
    async with house() as own:
        socket = own.socket()

        assert not await own.sessions.stop(own.home.uuid)
        await own.send(own.message(), socket)
        assert socket.ends() == ["turn.completed", "message.completed"]


async def test_a_worker_that_does_not_obey_a_stop_is_killed_and_meanwhile_messages_wait(
    autojump_clock: MockClock,
) -> None:
    async with house() as own:
        own.plays(waits_then_completes)
        socket = own.socket()
        await own.send(own.message(), socket)
        own.workers.links[own.home.no].obeys_stop = False
        began = trio.current_time()
        await own.sessions.stop(own.home.uuid)
        await own.sessions.submit(own.message("while it stops"), socket)
        await wait_all_tasks_blocked()
        fenced = frame_types(own.db, own.home)
        await trio.sleep(STOP_QUIET_S + 0.001)

        assert trio.current_time() - began < STOP_QUIET_S + 1.0
        assert "userMessage.queued" not in fenced
        assert fenced.count("userMessage.created") == 1
        assert [what for _, what, _ in own.workers.log][1] == "give up: it did not obey a Stop"
        assert socket.ends()[:2] == ["turn.cancelled", "message.failed"]
        assert frame_types(own.db, own.home).count("userMessage.created") == 2


# --- idleness, limits, faults


async def test_the_worker_of_an_idle_session_is_stopped_after_the_idle_time(autojump_clock: MockClock) -> None:
    async with house(idle_s=600.0) as own:
        await own.send(own.message(), own.socket())
        await trio.sleep(599.0)
        before = [what for _, what, _ in own.workers.log]
        await trio.sleep(2.0)

        assert before == ["ensure"]
        assert own.workers.log[1:] == [(600.0, "stop: idle", own.home.uuid)]


async def test_a_session_with_a_running_turn_is_not_idle(autojump_clock: MockClock) -> None:
    async with house(idle_s=600.0) as own:
        own.plays(waits_then_completes)
        await own.send(own.message(), own.socket())
        await trio.sleep(5_000.0)

        assert [what for _, what, _ in own.workers.log] == ["ensure"]


async def test_a_worker_that_cannot_be_stopped_takes_no_message_with_it(autojump_clock: MockClock) -> None:
    async with house(idle_s=600.0) as own:
        own.workers.stop_s, own.workers.stop_fault = 5.0, RuntimeError("the nanny broke")
        socket = own.socket()
        await own.send(own.message(), socket)
        await trio.sleep(602.0)
        await own.send(own.message(), socket)  # while the stop is under way
        await trio.sleep(5.0)

        assert socket.ends() == ["turn.completed", "message.completed"] * 2


async def test_turns_beyond_the_limit_wait_for_a_place() -> None:
    async with house(sessions=3, turn_limit=2) as own:
        socket = own.socket()
        for home in own.homes:
            own.plays(waits_then_completes, home)
            await own.send(own.message(home=home), socket)
        at_work = list(own.workers.links)
        own.workers.links[own.homes[0].no].go_on.set()
        await wait_all_tasks_blocked()

        assert at_work == [home.no for home in own.homes[:2]]
        assert list(own.workers.links) == [home.no for home in own.homes]


async def test_an_exception_in_one_session_never_touches_another() -> None:
    async with house(sessions=2) as own:
        broken, sound = own.homes
        own.plays(breaks, broken)
        own.plays(waits_then_completes, sound)
        socket = own.socket(sound.uuid)
        await own.send(own.message(home=sound), socket)
        await own.send(own.message(home=broken), own.socket(broken.uuid))
        own.workers.links[sound.no].go_on.set()
        await wait_all_tasks_blocked()

        assert socket.ends() == ["turn.completed", "message.completed"]
        assert [name for name, _ in own.ends(broken)] == ["turn.failed"]


async def test_what_was_heard_live_is_what_is_stored() -> None:
    async with house() as own:
        socket = own.socket()
        for play in (completes, breaks, never_starts, fails):
            own.plays(play)
            await own.send(own.message(), socket)
        rows = replayed(own, own.home)

    sequenced = [frame for frame in socket.heard if "sequence" in frame["metadata"]]
    assert [(frame["metadata"]["sequence"], frame["type"]) for frame in sequenced] == [
        (row.sequence, row.type) for row in rows
    ]
