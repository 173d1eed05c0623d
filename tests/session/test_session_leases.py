"""Leases of steps and of whoever holds their execution, on the store, in virtual time."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from engine_kit import StoreJournal
from msgspec import Raw
from session_kit import House, completes, house, waits_then_completes
from trio.testing import MockClock, wait_all_tasks_blocked
from world_kit import (
    HOLDER,
    ClockEntropy,
    Home,
    accept_message,
    dump,
    execution_of,
    frame_types,
    make_home,
    open_request,
    open_store,
)

from peen.entropy import AwakeClock, SeededEntropy, monotonic_ms
from peen.errors import StaleClaim, StepConflict
from peen.execution.steps import Done, Next, Step, Steps
from peen.session.leases import CAUSE, LOOK_S, fence_off
from peen.session.serve import WorkerCalls
from peen.store import activities, leases, turns
from peen.store.database import Database
from peen.store.leases import LEASE_MS
from peen.wire.records import Claim, Completion, ToolCallRecord
from peen.wire.turncalls import CommitSteps, RenewLeases

LEASE_S = LEASE_MS / 1000
READ, EFFECT = "r0.t0.handler", "r0.t1.handler"


class Holder:
    """A worker that has opened a turn, and writes to it as over its socket."""

    def __init__(self, db: Database, home: Home, entropy: ClockEntropy) -> None:
        self.db, self.home, self.entropy = db, home, entropy
        self.journal = StoreJournal(WorkerCalls(db, home.writer, entropy=entropy, on_end=lambda _end: None))

    async def open(self, *, frame: int = 1) -> None:
        self.turn_id = await accept_message(self.db, self.home, "go", frame=frame)
        self.execution_id = (await self.journal.open_turn(open_request(self.turn_id, "go"))).execution_id
        self.no = execution_of(self.db, self.turn_id).no

    async def claim(self, step: str, kind: str = "read") -> None:
        claims = [Claim(step=step, kind=kind, given=Raw(b"{}"))]
        await self.journal.commit(CommitSteps(execution_id=self.execution_id, holder=HOLDER, claims=claims))

    async def complete(self, step: str) -> None:
        done = [Completion(step=step, output=Raw(b"1"))]
        await self.journal.commit(CommitSteps(execution_id=self.execution_id, holder=HOLDER, completions=done))

    async def renew(self, holder: str = HOLDER) -> None:
        await self.journal.renew(RenewLeases(execution_id=self.execution_id, holder=holder))

    async def fence_off(self) -> bool:
        clock_ms, at_ms = monotonic_ms(self.entropy), self.entropy.now_ms()
        return await self.db.write(partial(fence_off, execution_no=self.no, clock_ms=clock_ms, at_ms=at_ms))

    def steps(self) -> dict[str, tuple[str, int]]:
        return {row.step: (row.state, row.attempt) for row in activities.steps(self.db.reader, self.no)}

    def is_silent(self) -> bool:
        return [each.no for each in leases.silent(self.db.reader, clock_ms=monotonic_ms(self.entropy))] == [self.no]


async def begin(db: Database) -> Holder:
    own = Holder(db, await make_home(db), ClockEntropy(3))
    await own.open()
    return own


async def test_a_step_is_completed_within_its_lease_and_refused_after_it(autojump_clock: MockClock) -> None:
    async with open_store() as db:
        own = await begin(db)
        await own.claim(READ)
        await own.claim(EFFECT, "effect")
        await trio.sleep(LEASE_S - 0.5)
        await own.complete(READ)
        await trio.sleep(0.5)
        before = dump(db)

        with pytest.raises(StaleClaim, match="lease"):
            await own.complete(EFFECT)
        assert dump(db) == before
        assert own.steps() == {READ: ("completed", 1), EFFECT: ("running", 1)}


async def test_a_renewal_keeps_the_execution_and_every_step_that_runs(autojump_clock: MockClock) -> None:
    async with open_store() as db:
        own = await begin(db)
        await own.claim(READ)
        for _ in range(10):
            await trio.sleep(LEASE_S - 1)
            await own.renew()
        assert not own.is_silent()
        await own.complete(READ)

        assert own.steps() == {READ: ("completed", 1)}


async def test_a_renewal_that_comes_too_late_is_refused_and_revives_nothing(autojump_clock: MockClock) -> None:
    async with open_store() as db:
        own = await begin(db)
        await own.claim(READ)
        await trio.sleep(LEASE_S)
        before = dump(db)

        with pytest.raises(StaleClaim, match="run out"):
            await own.renew()
        assert dump(db) == before
        with pytest.raises(StaleClaim):
            await own.complete(READ)


async def test_only_the_holder_renews(autojump_clock: MockClock) -> None:
    async with open_store() as db:
        own = await begin(db)
        with pytest.raises(StaleClaim, match="not held by the writer"):
            await own.renew("00" * 15 + "02")


async def test_a_lapsed_step_that_may_be_repeated_gets_another_attempt_and_an_effect_does_not(
    autojump_clock: MockClock,
) -> None:
    async with open_store() as db:
        own = await begin(db)
        await own.claim(READ)
        await own.claim(EFFECT, "effect")
        with pytest.raises(StepConflict):  # as long as the lease lives, nobody takes a step
            await own.claim(READ)
        await trio.sleep(LEASE_S)
        await own.claim(READ)
        with pytest.raises(StepConflict):
            await own.claim(EFFECT, "effect")
        assert own.steps() == {READ: ("running", 2), EFFECT: ("running", 1)}

        assert not await own.fence_off()  # the new attempt has a lease, so the execution stays with its holder

        assert own.steps() == {READ: ("running", 2), EFFECT: ("uncertain", 1)}
        with pytest.raises(StepConflict):  # not without a decision
            await own.claim(EFFECT, "effect")
        await own.complete(READ)
        assert own.steps()[READ] == ("completed", 2)


async def test_a_holder_without_any_lease_is_fenced_off_and_can_write_nothing_more(autojump_clock: MockClock) -> None:
    async with open_store() as db:
        own = await begin(db)
        await own.claim(READ)
        await own.claim(EFFECT, "effect")
        assert not await own.fence_off()
        await trio.sleep(LEASE_S)
        assert own.is_silent()
        assert await own.fence_off()
        row = execution_of(db, own.turn_id)
        before = dump(db)

        assert (row.state, row.holder, row.pause_reason) == ("paused", None, "interrupted")
        assert own.steps() == {READ: ("interrupted", 1), EFFECT: ("uncertain", 1)}
        for late in (own.renew(), own.complete(READ), own.complete(EFFECT), own.claim("r0.t2.handler")):
            with pytest.raises(StaleClaim):
                await late
        assert dump(db) == before
        assert not await own.fence_off()


async def test_a_step_of_ten_minutes_lives_by_the_renewals_of_its_turn(autojump_clock: MockClock) -> None:
    async with open_store() as db:
        own = await begin(db)
        steps = Steps(own.journal, execution_id=own.execution_id, holder=HOLDER)

        async def slow() -> Done[ToolCallRecord]:
            await trio.sleep(600.0)
            return Done(ToolCallRecord(id="c", name="look", arguments=Raw(b"{}")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(steps.keep_leases)
            await steps.run(Step(id=READ, kind="read", given=b"{}"), slow, lambda _done: Next())
            nursery.cancel_scope.cancel()

        assert own.steps() == {READ: ("completed", 1)}


# --- the watch


async def abandoned(own: House) -> str:
    """A turn whose worker beats and has forgotten it; its id."""
    own.plays(waits_then_completes)
    await own.send(own.message(), own.socket())
    link = own.workers.links[own.home.no]
    link.forget()
    return link.commands[0].turn_id


async def test_an_abandoned_turn_ends_as_interrupted_and_the_session_takes_the_next_message(
    autojump_clock: MockClock,
) -> None:
    async with house() as own:
        turn_id = await abandoned(own)
        await trio.sleep(LEASE_S - 1)
        assert own.ends() == []
        await trio.sleep(1 + LOOK_S)
        row = execution_of(own.db, turn_id)

        assert [(name, data["reason"], data["error"]) for name, data in own.ends()] == [
            ("turn.failed", "interrupted", CAUSE)
        ]
        assert (row.state, row.holder, row.pause_reason) == ("paused", None, "interrupted")
        assert f"give up: {CAUSE}" in [what for _, what, _ in own.workers.log]
        own.plays(completes)
        await own.send(own.message("and now?"), own.socket())
        assert [name for name, _ in own.ends()] == ["turn.failed", "turn.completed"]


async def test_a_message_that_waits_behind_an_abandoned_turn_waits_on(autojump_clock: MockClock) -> None:
    async with house() as own:
        await abandoned(own)
        await own.send(own.message("also this"), own.socket())
        await trio.sleep(LEASE_S + LOOK_S)

        assert [name for name, _ in own.ends()] == ["turn.failed"]
        assert own.db.reader.rows("SELECT state FROM inbox ORDER BY no") == [("delivered",), ("queued",)]


async def test_a_worker_that_does_not_die_keeps_nobody_waiting(autojump_clock: MockClock) -> None:
    async with house() as own:
        await abandoned(own)
        own.workers.is_immortal = True
        await trio.sleep(LEASE_S + LOOK_S)

        assert [name for name, _ in own.ends()] == ["turn.failed"]


async def test_a_turn_that_no_actor_knows_is_ended_all_the_same(autojump_clock: MockClock) -> None:
    async with house() as own:
        holder = Holder(own.db, own.home, own.entropy)
        await holder.open()
        await trio.sleep(LEASE_S + LOOK_S)
        await wait_all_tasks_blocked()

        assert [name for name, _ in own.ends()] == ["turn.failed"]
        assert turns.running(own.db.reader) == []


async def test_the_worker_that_works_on_another_turn_is_spared(autojump_clock: MockClock) -> None:
    async with house() as own:
        await Holder(own.db, own.home, own.entropy).open(frame=99)  # which no actor knows
        own.plays(waits_then_completes)
        await own.send(own.message(), own.socket())
        await trio.sleep(LEASE_S + LOOK_S)
        assert [name for name, _ in own.ends()] == ["turn.failed"]
        own.workers.links[own.home.no].go_on.set()
        await wait_all_tasks_blocked()

        assert [name for name, _ in own.ends()] == ["turn.failed", "turn.completed"]
        assert not any(what.startswith("give up") for _, what, _ in own.workers.log)


async def test_a_turn_that_is_stopped_in_the_moment_of_its_abandonment_has_one_end(autojump_clock: MockClock) -> None:
    for late_s in (-0.1, 0.0, 0.1, 3.9):
        async with house() as own:
            await abandoned(own)
            own.workers.links[own.home.no].obeys_stop = False
            await trio.sleep(LEASE_S + late_s)
            await own.sessions.stop(own.home.uuid)
            await trio.sleep(20.0)

            assert len(own.ends()) == 1, late_s
            assert turns.running(own.db.reader) == []
            own.plays(completes)
            await own.send(own.message("and now?"), own.socket())
            assert frame_types(own.db, own.home)[-1] == "turn.completed"


async def test_a_turn_between_two_steps_is_held_by_its_own_lease(autojump_clock: MockClock) -> None:
    async with house() as own:
        own.plays(waits_then_completes)
        await own.send(own.message(), own.socket())
        await trio.sleep(600.0)
        own.workers.links[own.home.no].go_on.set()
        await wait_all_tasks_blocked()

        assert [name for name, _ in own.ends()] == ["turn.completed"]


def test_the_clock_of_leases_leaves_out_the_time_in_which_nothing_could_be_heard() -> None:
    entropy = SeededEntropy(1)
    clock = AwakeClock(entropy)
    for _ in range(3):
        entropy.advance(5_000)
        clock.now_ms()
    entropy.advance(3_600_000)
    stood_still = clock.now_ms()
    entropy.advance(1_000)

    assert stood_still == 20_000
    assert clock.now_ms() == 21_000
