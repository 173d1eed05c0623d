from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest
import trio
from msgspec import Raw
from session_kit import made_before
from trio.testing import MockClock, wait_all_tasks_blocked
from world_kit import (
    HOLDER,
    ClockEntropy,
    Home,
    accept_message,
    call,
    dump,
    frame_types,
    frames,
    make_home,
    open_request,
    open_store,
    open_turn,
    uuid,
)

from peen.session.serve import WorkerCalls
from peen.session.writer import TurnEnd
from peen.store.database import Database
from peen.store.direct import MemoryFile
from peen.testing.faults import Faults
from peen.wire.records import EventRecord, MessageRecord, Terminal
from peen.wire.turncalls import CommitSteps, Committed, EmitEvents, Emitted, HistoryPage, HistoryRows, OpenedTurn
from peen.wire.worker import WireError, encode
from peen.wire.workerstruct import WorkerStruct

REPLIES: Final = {
    "turn.open": OpenedTurn,
    "steps.commit": Committed,
    "events.emit": Emitted,
    "history.page": HistoryRows,
}


class Caller:
    """A worker's end without a socket: calls are answered in `answers`, ends told in `ends`, both noted in `order`."""

    def __init__(self, db: Database, home: Home) -> None:
        self.db, self.home = db, home
        self.answers: list[WorkerStruct | WireError] = []
        self.order: list[str] = []
        self.ends: list[TurnEnd] = []
        self.answered = trio.Event()
        self._calls = WorkerCalls(db, home.writer, entropy=ClockEntropy(1), on_end=self._ended)

    def send(self, method: str, payload: bytes) -> None:
        self._calls.handle(method, Raw(payload), lambda answer: self._hear(method, answer))

    async def ask(self, method: str, request: WorkerStruct) -> WorkerStruct | WireError:
        self.send(method, encode(request))
        await wait_all_tasks_blocked()
        return self.answers[-1]

    def codes(self) -> list[str]:
        return [answer.code for answer in self.answers if isinstance(answer, WireError)]

    def _hear(self, method: str, answer: bytes | WireError) -> None:
        self.order.append(method)
        self.answered.set()
        kind = REPLIES.get(method, Emitted)
        self.answers.append(answer if isinstance(answer, WireError) else msgspec.json.decode(answer, type=kind))

    def _ended(self, end: TurnEnd) -> None:
        self.order.append("end")
        self.ends.append(end)


@asynccontextmanager
async def caller(file: MemoryFile | None = None, faults: Faults | None = None) -> AsyncIterator[Caller]:
    async with open_store(file, faults=faults) as db:
        yield Caller(db, await make_home(db))


def piece(number: int) -> EventRecord:
    return EventRecord(type="content_block_delta", data=Raw(b'{"number":%d}' % number))


def commit(execution_id: str, **parts: Any) -> CommitSteps:
    return CommitSteps(execution_id=execution_id, holder=HOLDER, **parts)


async def test_a_turn_is_opened_worked_on_and_ended_over_the_wire() -> None:
    async with caller() as own:
        turn_id = await accept_message(own.db, own.home, "go")
        opened = await own.ask("turn.open", open_request(turn_id, "go"))
        assert isinstance(opened, OpenedTurn)
        reply = MessageRecord(role="assistant", content="done", tool_calls=[call("a", "look", b'{"b": [1, 2.50]}')])
        done = Terminal(state="completed", text="done")
        committed = await own.ask("steps.commit", commit(opened.execution_id, messages=[reply], terminal=done))
        page = await own.ask("history.page", HistoryPage(after_sequence=1, up_to_sequence=9))

        assert committed == Committed(message_sequence=2)
        assert isinstance(page, HistoryRows)
        assert [row.message for row in page.history] == [reply]
        assert [(end.turn_id, end.state) for end in own.ends] == [(turn_id, "completed")]


async def test_the_end_is_heard_before_the_worker_that_committed_it_is_answered() -> None:
    async with caller() as own:
        opened = await open_turn(own.db, own.home)
        await own.ask("steps.commit", commit(opened.execution_id, terminal=Terminal(state="failed", reason="timeout")))

        assert own.order == ["end", "steps.commit"]
        assert [(end.state, end.reason) for end in own.ends] == [("failed", "timeout")]


async def test_calls_are_carried_out_and_answered_in_their_order() -> None:
    async with caller() as own:
        opened = await open_turn(own.db, own.home)
        for number in range(30):
            if number % 3:
                request: WorkerStruct = EmitEvents(
                    execution_id=opened.execution_id, holder=HOLDER, events=[piece(number)]
                )
                own.send("events.emit", encode(request))
            else:
                own.send("steps.commit", encode(commit(opened.execution_id, events=[piece(number)])))
        await wait_all_tasks_blocked()

        numbers = [data["number"] for _, data in frames(own.db, own.home, after=2)]
        assert numbers == list(range(30))
        assert own.order == ["events.emit" if number % 3 else "steps.commit" for number in range(30)]
        assert own.codes() == []


@pytest.mark.parametrize(
    ("method", "payload", "words"),
    [
        ("turn.dance", b"{}", "unknown method turn.dance"),
        ("steps.commit", b"{", "steps.commit"),
        ("steps.commit", b"{}", "executionId"),
        ("steps.commit", b'{"executionId":"x","holder":"y","more":1}', "more"),
        ("events.emit", b'{"executionId":"x","holder":"y","events":1}', "events"),
        ("turn.open", b"[]", "turn.open"),
        ("history.page", b'{"afterSequence":"x"}', "afterSequence"),
    ],
)
async def test_a_malformed_call_is_refused_by_name_and_writes_nothing(method: str, payload: bytes, words: str) -> None:
    async with caller() as own:
        await open_turn(own.db, own.home)
        before = dump(own.db)
        own.send(method, payload)
        await wait_all_tasks_blocked()

        (refused,) = own.answers
        assert isinstance(refused, WireError)
        assert refused.code == "VALIDATION_FAILED"
        assert words in refused.message
        assert dump(own.db) == before


async def test_what_the_store_refuses_is_answered_with_its_code() -> None:
    async with caller() as own:
        opened = await open_turn(own.db, own.home)
        await own.ask("turn.open", open_request(str(uuid(404))))
        stale = CommitSteps(execution_id=opened.execution_id, holder="ff" * 16)
        await own.ask("steps.commit", stale)
        await own.ask("events.emit", EmitEvents(execution_id=opened.execution_id, holder="ff" * 16, events=[piece(1)]))

        assert own.codes() == ["STALE_CLAIM"] * 3
        assert own.ends == []


async def test_a_fault_of_peen_is_answered_without_its_details_and_the_next_call_is_served() -> None:
    async with caller() as own:
        opened = await open_turn(own.db, own.home)
        bad_data = EventRecord(type="content_block_delta", data=Raw(b"{}"))
        wrong = CommitSteps(execution_id=opened.execution_id, holder="not hexadecimal", events=[bad_data])
        await own.ask("steps.commit", wrong)
        sound = await own.ask("steps.commit", commit(opened.execution_id, events=[piece(1)]))

        refused = own.answers[0]
        assert refused == WireError(code="INTERNAL_SERVER_ERROR", message="internal server error")
        assert isinstance(sound, Committed)


async def test_a_full_disk_is_answered_as_such() -> None:
    file = await made_before()
    async with open_store(file) as db:
        opened = await open_turn(db, await make_home(db))
    async with caller(file, Faults.full_at(1)) as own:
        await own.ask("steps.commit", commit(opened.execution_id, events=[piece(1)]))
        await own.ask("steps.commit", commit(opened.execution_id, events=[piece(2)]))

        assert own.codes() == ["STORAGE_FULL"]
        assert [data["number"] for _, data in frames(own.db, own.home, after=2)] == [2]


async def test_a_terminal_commit_on_a_full_disk_is_tried_until_there_is_space(autojump_clock: MockClock) -> None:
    file = await made_before()
    async with open_store(file) as db:
        opened = await open_turn(db, await make_home(db))
    async with caller(file, Faults.full_at(1, lasting=12)) as own:
        end = commit(opened.execution_id, terminal=Terminal(state="completed", text="done"))
        own.send("steps.commit", encode(end))
        with trio.fail_after(600.0):
            await own.answered.wait()

        assert own.codes() == []
        assert [end.state for end in own.ends] == ["completed"]
        assert frame_types(own.db, own.home).count("turn.completed") == 1
