from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from engine_kit import StoreJournal
from msgspec import Raw, Struct
from world_kit import (
    AT_MS,
    HOLDER,
    Home,
    dump,
    execution_of,
    frames,
    make_home,
    open_store,
    open_turn,
    transcript,
    uuid,
)

from peen.entropy import SeededEntropy
from peen.errors import StaleClaim
from peen.execution.blocks import event
from peen.execution.steps import NOTHING, Done, Next, Step, Steps
from peen.session.serve import WorkerCalls
from peen.store import activities
from peen.store.activities import StepRow
from peen.store.database import Database
from peen.wire.records import EventRecord, MessageRecord, ModelCallRecord, Terminal

MODEL_STEP = Step("r0.model", "model", b'{"round":0}')


class Output(Struct):
    text: str


class World:
    """An execution that has just been opened, and its steps."""

    def __init__(self, db: Database, home: Home, execution_id: str) -> None:
        self.db, self.home = db, home
        calls = WorkerCalls(db, home.writer, entropy=SeededEntropy(1), on_end=lambda _: None)
        self.journal = StoreJournal(calls)
        self.steps = Steps(self.journal, execution_id=execution_id, holder=HOLDER)

    def stored(self) -> list[StepRow]:
        return activities.steps(self.db.reader, execution_of(self.db, str(uuid(3001))).no)

    def states(self) -> list[tuple[str, str]]:
        return [(step.step, step.state) for step in self.stored()]

    def shown(self) -> list[tuple[str, dict[str, Any]]]:
        """Frames since the turn was opened."""
        return frames(self.db, self.home, after=2)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home, "hello")
        yield World(db, home, opened.execution_id)


async def test_the_input_of_a_step_is_stored_before_its_work_begins_and_the_output_before_it_returns() -> None:
    async with world() as own:
        seen: list[StepRow] = []

        async def work() -> Done[Output]:
            seen.extend(own.stored())
            return Done(Output("done"))

        output = await own.steps.run(MODEL_STEP, work, lambda _: NOTHING)
        (after,) = own.stored()

    (before,) = seen
    assert output == Output("done")
    assert (before.state, before.kind, before.given, before.output) == ("running", "model", b'{"round":0}', None)
    assert (after.state, after.output) == ("completed", b'{"text":"done"}')


async def test_everything_a_step_produced_and_what_begins_next_is_one_commit() -> None:
    upcoming = Step("r0.t0.handler", "effect", b"{}", call_id="a")
    audit = ModelCallRecord(round=0, state="completed", request_sequence=1, started_at_ms=AT_MS, completed_at_ms=AT_MS)
    async with world() as own:
        commits_before = len(own.journal.commits)

        async def work() -> Done[Output]:
            return Done(
                Output("x"),
                messages=[MessageRecord(role="assistant", content="x")],
                events=[event("content_block_stop", {"index": 0})],
                calls=[audit],
            )

        await own.steps.run(
            MODEL_STEP, work, lambda _: Next(events=[event("tool.use", {"callId": "a"})], begin=(upcoming,))
        )

        claimed, completed = own.journal.commits[commits_before:]
        assert [claim.step for claim in claimed.claims] == ["r0.model"]
        assert [claim.step for claim in completed.claims] == ["r0.t0.handler"]
        assert own.states() == [("r0.model", "completed"), ("r0.t0.handler", "running")]
        assert [frame_type for frame_type, _ in own.shown()] == ["content_block_stop", "tool.use"]
        assert own.steps.message_sequence == 2


async def test_a_step_that_an_earlier_commit_began_is_not_claimed_again() -> None:
    async with world() as own:
        await own.steps.commit(Next(begin=(MODEL_STEP,)))

        async def work() -> Done[Output]:
            return Done(Output("done"))

        await own.steps.run(MODEL_STEP, work, lambda _: NOTHING)

        assert len(own.journal.commits) == 2
        assert own.states() == [("r0.model", "completed")]


async def test_phases_with_nothing_to_do_are_stored_as_completed_in_the_commit_of_their_neighbour() -> None:
    async with world() as own:
        prepare = Step("r0.prepare", "prepare", b"{}")
        await own.steps.commit(Next(passed=((prepare, b'{"n":1}'),), begin=(MODEL_STEP,)))
        stored = [(step.step, step.state, step.output) for step in own.stored()]

    assert stored == [("r0.prepare", "completed", b'{"n":1}'), ("r0.model", "running", None)]


async def test_work_that_raises_saves_nothing_and_leaves_its_step_running() -> None:
    async with world() as own:

        async def work() -> Done[Output]:
            raise RuntimeError("a fault of Peen")

        with pytest.raises(RuntimeError, match="a fault of Peen"):
            await own.steps.run(MODEL_STEP, work, lambda _: NOTHING)

        assert own.states() == [("r0.model", "running")]
        assert own.shown() == []


async def test_a_step_may_fail_and_is_stored_as_failed_with_what_it_said() -> None:
    async with world() as own:

        async def work() -> Done[Output]:
            return Done(Output("no answer"), failed=True)

        await own.steps.run(MODEL_STEP, work, lambda _: NOTHING)
        (step,) = own.stored()

    assert (step.state, step.output) == ("failed", b'{"text":"no answer"}')


async def test_pieces_of_a_running_step_come_before_the_records_of_its_commit() -> None:
    def piece(number: int) -> EventRecord:
        return event("content_block_delta", {"index": 0, "number": number})

    async with world() as own:

        async def work() -> Done[Output]:
            await own.steps.emit([piece(1), piece(2)])
            await own.steps.emit([piece(3)])
            return Done(Output("x"), events=[piece(4)])

        await own.steps.run(MODEL_STEP, work, lambda _: Next(events=[piece(5)]))
        numbers = [data["number"] for _, data in own.shown()]

    assert numbers == [1, 2, 3, 4, 5]


async def test_after_the_end_of_the_turn_every_write_is_refused_and_nothing_changes() -> None:
    async with world() as own:
        await own.steps.commit(Next(terminal=Terminal(state="failed", reason="agentRun", error="broken")))
        before = dump(own.db)

        with pytest.raises(StaleClaim):
            await own.steps.commit(Next(begin=(MODEL_STEP,)))
        await own.steps.emit([event("content_block_stop", {"index": 0})])
        with pytest.raises(StaleClaim):  # and so the piece before it was judged as well
            await own.steps.commit(NOTHING)
        assert dump(own.db) == before


def test_a_claim_carries_the_input_and_the_call_of_its_step() -> None:
    claim = Step("r0.t0.handler", "effect", b'{"a":1}', call_id="id1").claim()

    assert (claim.step, claim.kind, claim.given, claim.call_id) == ("r0.t0.handler", "effect", Raw(b'{"a":1}'), "id1")


async def test_the_transcript_gets_the_messages_of_a_step_in_their_order() -> None:
    messages = [MessageRecord(role="system", content=text) for text in ("one", "two")]
    async with world() as own:

        async def work() -> Done[Output]:
            return Done(Output("x"), messages=messages)

        await own.steps.run(MODEL_STEP, work, lambda _: NOTHING)
        stored = [row.message.content for row in transcript(own.db, own.home)]

    assert stored == ["hello", "one", "two"]
