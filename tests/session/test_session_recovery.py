from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from engine_kit import asks, engine, says, work
from session_kit import made_before
from structlog.testing import capture_logs
from trio.testing import MockClock
from world_kit import (
    AT_MS,
    HOLDER,
    ClockEntropy,
    Home,
    accept_message,
    acceptance,
    check_sequences,
    dump,
    execution_of,
    frames,
    make_home,
    open_request,
    open_store,
    open_turn,
    transcript,
    uuid,
)

from peen.actors import holds
from peen.errors import StaleClaim
from peen.session import adoption, writes
from peen.session.acceptance import accept_queued, fence, known_frame
from peen.session.recovery import Recovered, recover
from peen.session.state import Outcome
from peen.store import executions, generations, inbox, turns
from peen.store.database import Database
from peen.store.direct import MemoryFile
from peen.testing.faults import Faults, SimulatedCrash
from peen.wire.records import Terminal
from peen.wire.turncalls import CommitSteps

ENTROPY = ClockEntropy(3)
TERMINAL = {"turn.completed", "turn.failed", "turn.cancelled"}


async def test_a_running_turn_ends_as_interrupted_with_its_execution_paused() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await open_turn(db, home)
        found = await recover(db, ENTROPY)
        row = execution_of(db, str(uuid(3001)))
        name, data = frames(db, home)[-1]

        assert found == Recovered(turns=1, generations=1)
        assert (name, data["reason"]) == ("turn.failed", "interrupted")
        assert (row.state, row.holder, row.control_revision) == ("paused", None, 2)
        assert executions.pause_reason(db.reader, home.no) == "interrupted"
        assert transcript(db, home)[-1].message.role == "system"
        check_sequences(db.reader)


async def test_a_message_that_was_accepted_and_never_opened_has_a_turn_that_ended() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await accept_message(db, home, "hello")
        found = await recover(db, ENTROPY)
        (turn,) = turns.page(db.reader, home.no, limit=9, offset=0)
        known = known_frame(db.reader, home.no, str(uuid(1)))

        assert found.turns == 1
        assert inbox.opening(db.reader) == []
        assert turn.state == "interrupted"
        assert transcript(db, home)[0].message.content == "hello"
        assert known is not None
        assert known.outcome is not None
        assert (known.outcome.state, known.outcome.reason) == ("interrupted", "interrupted")


@pytest.mark.parametrize("opened", [True, False])
async def test_a_turn_whose_stop_was_stored_is_cancelled_however_it_ends(opened: bool) -> None:
    async with open_store() as db:
        home = await make_home(db)
        if opened:
            await open_turn(db, home)
        else:
            turn_id = await accept_message(db, home, "hello")
        await db.write(partial(fence, session_no=home.no, at_ms=AT_MS))
        if not opened:  # nothing begins after a Stop
            begin = partial(
                adoption.open_turn, writer=home.writer, request=open_request(turn_id), execution_id=uuid(5001).bytes,
                run_id=uuid(6001).bytes, at_ms=AT_MS,
            )  # fmt: skip
            with pytest.raises(StaleClaim, match="Stop"):
                await db.write(begin)
        await recover(db, ENTROPY)
        (turn,) = turns.page(db.reader, home.no, limit=9, offset=0)

        assert [name for name, _ in frames(db, home) if name in TERMINAL] == ["turn.cancelled"]
        assert turn.state == "cancelled"
        if opened:
            assert executions.pause_reason(db.reader, home.no) == executions.STOP


async def test_messages_that_waited_for_a_turn_are_named_and_wait_on() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await open_turn(db, home)
        waiting = acceptance(home, "also this", frame=2, turn_id=str(uuid(3001)))
        await db.write(partial(accept_queued, session_no=home.no, acceptance=waiting, capacity=16))
        await recover(db, ENTROPY)
        row = inbox.by_frame(db.reader, home.no, uuid(2).bytes)

        assert row is not None
        assert row.state == "queued"
        assert "also this" in transcript(db, home)[-1].message.content


async def test_a_message_that_was_to_open_the_next_turn_has_a_turn_that_ended() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        for frame in (2, 3):
            waiting = acceptance(home, f"message {frame}", frame=frame, turn_id=str(uuid(3001)))
            await db.write(partial(accept_queued, session_no=home.no, acceptance=waiting, capacity=16))
        done = CommitSteps(
            execution_id=opened.execution_id, holder=HOLDER, terminal=Terminal(state="completed", text="done")
        )
        await commit(db, home, done)
        found = await recover(db, ENTROPY)
        known = [known_frame(db.reader, home.no, str(uuid(frame))) for frame in (2, 3)]

        assert found.turns == 1
        assert [name for name, _ in frames(db, home) if name in TERMINAL] == ["turn.completed", "turn.failed"]
        assert db.reader.rows("SELECT content, state FROM inbox ORDER BY no")[1:] == [
            ("message 2", "undelivered"),
            ("message 3", "queued"),  # it can be continued, or goes on with the paused work
        ]
        assert [None if each is None else each.outcome for each in known] == [
            Outcome("queued", "", str(uuid(4002))),
            Outcome("queued", "", str(uuid(4003))),
        ]
        assert "message 3" in transcript(db, home)[-1].message.content
        check_sequences(db.reader)


async def test_generations_of_a_dead_controller_are_recorded_as_failed() -> None:
    async with open_store() as db:
        await make_home(db, 1)
        await make_home(db, 2)
        found = await recover(db, ENTROPY)

        assert found == Recovered(turns=0, generations=2)
        assert generations.not_ended(db.reader) == []
        assert db.reader.rows("SELECT DISTINCT state, failure_detail FROM generation") == [
            ("failed", "the controller stopped before this worker")
        ]


async def test_a_second_recovery_changes_nothing_more() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await open_turn(db, home, frame=1)
        await accept_message(db, await make_home(db, 2), frame=2)
        await recover(db, ENTROPY)
        before = dump(db)

        assert await recover(db, ENTROPY) == Recovered(turns=0, generations=0)
        assert dump(db) == before


async def test_turns_that_ended_before_the_crash_stay_as_they_were() -> None:
    async with engine(says("done")) as own:
        await own.run_turn()
        before = frames(own.db, own.home), transcript(own.db, own.home)
        await recover(own.db, own.entropy)

        assert (frames(own.db, own.home), transcript(own.db, own.home)) == before


async def test_a_worker_of_the_dead_controller_can_write_nothing() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        await recover(db, ENTROPY)
        before = dump(db)
        request = CommitSteps(execution_id=opened.execution_id, holder=HOLDER)

        with pytest.raises(StaleClaim):
            await commit(db, home, request)
        assert dump(db) == before


async def commit(db: Database, home: Home, request: CommitSteps) -> None:
    change = partial(
        writes.commit_steps,
        writer=home.writer,
        request=request,
        payload=b"",
        next_turn_id=uuid(3999).bytes,
        at_ms=AT_MS,
    )
    await db.write(change)


# --- a crash at every commit of a whole turn


SCRIPT = (asks(("look", work("seen")), ("change", work("changed")), text="I look"), says("done"))


async def crash(file: MemoryFile, plan: Faults) -> str:
    """Run the turn until the plan kills the process; how it ended if nothing killed it."""
    state = "crashed"
    try:
        with capture_logs():
            async with engine(*SCRIPT, file=file, faults=plan) as own:
                state = (await own.run_turn("go")).state
    except BaseException as death:
        if not holds(death, SimulatedCrash):
            raise
    return state


@pytest.mark.parametrize("kill", [Faults.crash_before_commit, Faults.crash_after_commit])
async def test_after_a_crash_at_any_commit_every_accepted_message_has_one_end_and_the_next_turn_works(
    kill: Callable[[int], Faults], autojump_clock: MockClock
) -> None:
    for number in range(1, 100):
        file = await made_before()
        state = await crash(file, kill(number))
        async with engine(says("as new"), file=file, seed=2) as own:
            with capture_logs():
                await recover(own.db, own.entropy)
            accepted = own.db.reader.rows("SELECT turn_id FROM inbox")
            ended = [name for name, _ in frames(own.db, own.home) if name in TERMINAL]

            assert len(ended) == len(accepted), f"{kill.__name__}({number})"
            assert turns.running(own.db.reader) == []
            check_sequences(own.db.reader)
            await own.replace_worker()
            # The upstream refuses what a strict provider refuses, so a lost call would show here.
            assert (await own.run_turn("and now?", frame=77)).state == "completed"
        if state == "completed":
            assert ended == ["turn.completed"]
            return
    raise AssertionError("there was always another commit to crash at")
