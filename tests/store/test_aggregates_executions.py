from __future__ import annotations

from functools import partial
from uuid import UUID

import pytest
from msgspec import Raw
from world_kit import AT_MS, HOLDER, Home, dump, execution_of, make_generation, make_home, open_store, open_turn, uuid

from peen.errors import StaleClaim, StepConflict
from peen.store import activities, executions
from peen.store.database import Database
from peen.store.executions import ExecutionRow
from peen.wire.records import Claim, Completion

OWN = bytes.fromhex(HOLDER)


class Running:
    """An execution that has just been opened, and writes to it."""

    def __init__(self, db: Database, home: Home, row: ExecutionRow) -> None:
        self.db, self.home, self.row = db, home, row

    async def claim(self, step: str, kind: str = "read") -> None:
        claim = Claim(step=step, kind=kind, given=Raw(b"{}"))
        change = partial(
            activities.claim, execution_no=self.row.no, claim=claim, given=b"{}",
            generation_no=self.home.generation_no, at_ms=AT_MS,
        )  # fmt: skip
        await self.db.write(change)

    async def complete(
        self, step: str, payload: bytes = b"p", *, failed: bool = False, generation_no: int | None = None
    ) -> bool:
        change = partial(
            activities.complete, execution_no=self.row.no,
            completion=Completion(step=step, output=Raw(b"1"), failed=failed), output=b"1", payload=payload,
            generation_no=generation_no or self.home.generation_no, at_ms=AT_MS,
        )  # fmt: skip
        return await self.db.write(change)

    async def held(self, *, holder: bytes = OWN, generation_no: int | None = None) -> ExecutionRow:
        change = partial(
            executions.held, execution_id=self.row.id, holder=holder,
            generation_no=generation_no or self.home.generation_no,
        )  # fmt: skip
        return await self.db.write(change)

    def states(self) -> list[tuple[str, str]]:
        return [(step.step, step.state) for step in activities.steps(self.db.reader, self.row.no)]


async def begin(db: Database, *, frame: int = 1) -> Running:
    home = await make_home(db, frame)
    opened = await open_turn(db, home, frame=frame)
    row = executions.by_id(db.reader, UUID(opened.execution_id).bytes)
    assert row is not None
    return Running(db, home, row)


async def test_a_step_runs_once_it_is_claimed_and_keeps_its_input_and_output() -> None:
    async with open_store() as db:
        run = await begin(db)
        await run.claim("r0.model", "model")
        claimed = activities.steps(db.reader, run.row.no)
        is_fresh = await run.complete("r0.model")
        completed = activities.steps(db.reader, run.row.no)

    assert is_fresh
    assert [(step.step, step.kind, step.state, step.given, step.output) for step in claimed + completed] == [
        ("r0.model", "model", "running", b"{}", None),
        ("r0.model", "model", "completed", b"{}", b"1"),
    ]


async def test_steps_are_listed_in_the_order_of_the_workflow_not_of_their_claims() -> None:
    in_order = ["open.turnStart", "r0.prepare", "r0.model", "r0.t0.handler", "r0.t1.handler", "r1.model", "r10.model"]
    async with open_store() as db:
        run = await begin(db)
        for step in reversed(in_order):
            await run.claim(step)

        assert [step for step, _ in run.states()] == in_order


async def test_a_completion_repeated_with_the_same_payload_changes_nothing_and_with_another_is_a_conflict() -> None:
    async with open_store() as db:
        run = await begin(db)
        await run.claim("r0.model")
        await run.complete("r0.model", b"same")
        before = dump(db)

        assert not await run.complete("r0.model", b"same")
        with pytest.raises(StepConflict, match=r"r0\.model"):
            await run.complete("r0.model", b"other")
        assert dump(db) == before


@pytest.mark.parametrize("step", ["r0.model", "r1.model"])
async def test_a_step_that_does_not_run_under_this_generation_cannot_be_completed(step: str) -> None:
    async with open_store() as db:
        run = await begin(db)
        await run.claim("r0.model")
        other = await db.write(partial(make_generation, session_no=run.home.no, number=77))

        with pytest.raises(StaleClaim, match=step.replace(".", r"\.")):
            await run.complete(step, generation_no=other)
        assert run.states() == [("r0.model", "running")]


async def test_only_the_holder_in_its_generation_holds_a_running_execution() -> None:
    async with open_store() as db:
        run = await begin(db)
        other = await db.write(partial(make_generation, session_no=run.home.no, number=77))

        assert await run.held() == run.row
        with pytest.raises(StaleClaim):
            await run.held(holder=bytes(16))
        with pytest.raises(StaleClaim):
            await run.held(generation_no=other)
        run.row = run.row._replace(id=uuid(404).bytes)
        with pytest.raises(StaleClaim, match="no such execution"):
            await run.held()


async def test_a_pause_voids_the_holder_raises_the_revision_and_leaves_effects_uncertain() -> None:
    async with open_store() as db:
        run = await begin(db)
        await run.claim("r0.t0.handler", "effect")
        await run.claim("r0.t1.handler", "read")
        await run.claim("r0.t2.handler", "effect")
        await run.complete("r0.t2.handler")
        for _ in range(2):  # the second changes nothing
            await db.write(partial(executions.pause, no=run.row.no, reason="interrupted", at_ms=AT_MS))
        row = executions.by_id(db.reader, run.row.id)
        events = db.reader.rows("SELECT type, data FROM control_event")

        assert row is not None
        assert (row.state, row.holder, row.control_revision) == ("paused", None, run.row.control_revision + 1)
        assert [state for _, state in run.states()] == ["uncertain", "interrupted", "completed"]
        assert events[1:] == [("execution.paused", b'{"reason":"interrupted","controlRevision":2}')]
        with pytest.raises(StaleClaim):
            await run.held()


async def test_an_execution_that_a_stop_has_paused_is_held_until_it_is_released() -> None:
    async with open_store() as db:
        run = await begin(db)
        await run.claim("r0.t0.handler", "effect")
        await db.write(partial(executions.fence, no=run.row.no, reason=executions.STOP, at_ms=AT_MS))
        fenced = await run.held()
        running_steps = run.states()
        await db.write(partial(executions.release, no=run.row.no, at_ms=AT_MS))

        assert (fenced.state, fenced.control_revision) == ("paused", run.row.control_revision + 1)
        assert running_steps == [("r0.t0.handler", "running")]
        assert run.states() == [("r0.t0.handler", "uncertain")]
        with pytest.raises(StaleClaim):
            await run.held()


async def test_an_execution_that_was_paused_for_another_reason_is_held_by_nobody() -> None:
    async with open_store() as db:
        run = await begin(db)
        await db.write(partial(executions.fence, no=run.row.no, reason="interrupted", at_ms=AT_MS))

        with pytest.raises(StaleClaim):
            await run.held()


async def test_running_executions_are_those_of_the_session_that_are_neither_paused_nor_ended() -> None:
    async with open_store() as db:
        one, other = await begin(db, frame=1), await begin(db, frame=2)
        before = executions.running(db.reader, one.home.no)
        await db.write(partial(executions.pause, no=one.row.no, reason="interrupted", at_ms=AT_MS))

        assert before == [one.row]
        assert executions.running(db.reader, one.home.no) == []
        assert executions.running(db.reader, other.home.no) == [other.row]


async def test_an_execution_ends_once_and_is_held_by_nobody_then() -> None:
    async with open_store() as db:
        run = await begin(db)
        for state in ("completed", "failed"):
            await db.write(partial(executions.end, no=run.row.no, state=state, output=b"{}", at_ms=AT_MS))
        row = executions.by_id(db.reader, run.row.id)

        assert row is not None
        assert (row.state, row.holder) == ("completed", None)
        with pytest.raises(StaleClaim):
            await run.held()


async def test_an_execution_is_settled_while_none_of_its_own_steps_runs() -> None:
    async with open_store() as db:
        one, other = await begin(db, frame=1), await begin(db, frame=2)

        async def is_settled() -> bool:
            return await db.write(partial(activities.is_settled, execution_no=one.row.no))

        await other.claim("r0.model")
        assert await is_settled()
        await one.claim("r0.model")
        assert not await is_settled()
        await one.complete("r0.model", failed=True)
        assert await is_settled()
        assert one.states() == [("r0.model", "failed")]


async def test_settling_closes_the_steps_of_this_execution_alone() -> None:
    async with open_store() as db:
        one, other = await begin(db, frame=1), await begin(db, frame=2)
        await one.claim("r0.t0.handler", "effect")
        await other.claim("r0.t0.handler", "effect")
        await db.write(partial(activities.settle, execution_no=one.row.no, at_ms=AT_MS))

        assert (one.states(), other.states()) == (
            [("r0.t0.handler", "uncertain")],
            [("r0.t0.handler", "running")],
        )


async def test_a_turn_leads_to_its_root_execution() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        row = executions.root_of(db.reader, opened.turn)

        assert row == execution_of(db, str(uuid(3001)))
        assert row is not None
        assert (row.state, row.holder, row.generation_no) == ("running", OWN, home.generation_no)
        assert executions.root_of(db.reader, opened.turn + 1) is None
