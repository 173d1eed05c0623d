"""Decisions of agents about paused work, straight on the store."""

from __future__ import annotations

from functools import partial
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest
from msgspec import Raw
from world_kit import AT_MS, HOLDER, Home, dump, make_home, open_store, open_turn, uuid

from peen.errors import Conflict, NotFound, PeenError, StaleClaim
from peen.session import agentwork, inspection, writes
from peen.session.acceptance import end_accepted
from peen.session.ending import interrupted
from peen.session.requests import ResumeRequest, admitted
from peen.session.writer import Writer
from peen.store import activities, admissions, controlevents, executions
from peen.store.database import Database
from peen.wire.execution import Activity, Execution, ExecutionView
from peen.wire.records import Claim, Completion
from peen.wire.rest import encode
from peen.wire.turncalls import CommitSteps, ContinueExecution, ReadExecution, ResolveExecutionActivity
from peen.wire.workerstruct import CallingTool

EFFECT: Final = "r0.t0.handler"
NOW_MS: Final = AT_MS + 5


class Scene:
    """A session with a turn that was interrupted in an effect, and another that runs the tool call `call-2`."""

    def __init__(self, db: Database, home: Home) -> None:
        self.db, self.home = db, home

    async def play(self) -> None:
        self.paused = (await open_turn(self.db, self.home, frame=1)).execution_id
        await self.claim(self.paused, "call-1", "effect")
        ending = partial(
            end_accepted, session_no=self.home.no, turn_id=uuid(3001).bytes, ending=interrupted("interrupted", "x"),
            at_ms=AT_MS,
        )  # fmt: skip
        await self.db.write(ending)
        self.asking = (await open_turn(self.db, self.home, frame=2)).execution_id
        await self.claim(self.asking, "call-2", "read")
        self.activity = inspection.activity_id(UUID(self.paused).bytes, EFFECT)
        self.revision = self.details().control_revision

    async def claim(self, execution_id: str, call_id: str, kind: str) -> None:
        claim = Claim(step=EFFECT, kind=kind, given=Raw(b'{"name":"x"}'), call_id=call_id)
        await self.commit(execution_id, claims=[claim])

    async def commit(self, execution_id: str, **parts: Any) -> None:
        request = CommitSteps(execution_id=execution_id, holder=HOLDER, **parts)
        change = partial(
            writes.commit_steps, writer=self.home.writer, request=request, payload=encode(request),
            next_turn_id=uuid(99).bytes, at_ms=AT_MS,
        )  # fmt: skip
        await self.db.write(change)

    def details(self) -> executions.ExecutionDetails:
        found = executions.details(self.db.reader, UUID(self.paused).bytes)
        assert found is not None
        return found

    def events(self) -> list[tuple[str, Any]]:
        rows = controlevents.events(self.db.reader, self.details().no)
        return [(name, msgspec.json.decode(data)) for name, data, _ in rows]

    def caller(self, **other: str) -> CallingTool:
        return CallingTool(**{"execution_id": self.asking, "holder": HOLDER, "call_id": "call-2", **other})

    async def resolve(self, *, writer: Writer | None = None, caller: CallingTool | None = None, **other: Any) -> None:
        parts = {
            "execution_id": self.paused, "activity_id": self.activity, "decision": "accept", "outcome": "seen",
            "control_revision": self.revision, **other,
        }  # fmt: skip
        request = ResolveExecutionActivity(caller=caller or self.caller(), **parts)
        change = partial(agentwork.resolve, writer=writer or self.home.writer, request=request, at_ms=NOW_MS)
        await self.db.write(change)

    async def go_on(self, **other: Any) -> Any:
        parts = {"execution_id": self.paused, "control_revision": self.revision, **other}
        request = ContinueExecution(caller=self.caller(), **parts)
        change = partial(agentwork.admit_continuation, writer=self.home.writer, request=request, at_ms=NOW_MS)
        return await self.db.write(change)

    @property
    def provenance(self) -> dict[str, str]:
        return {
            "turnId": str(uuid(3002)),
            "executionId": self.asking,
            "activityId": inspection.activity_id(UUID(self.asking).bytes, EFFECT),
            "callId": "call-2",
        }


async def test_a_decision_is_recorded_with_the_call_that_took_it_and_resumes_nothing() -> None:
    async with open_store() as db:
        own = Scene(db, await make_home(db))
        await own.play()

        await own.resolve()

        assert own.events()[-1] == (
            "activity.resolved",
            {"step": EFFECT, "decision": "accept", "caller": "agent", **own.provenance},
        )
        assert own.details().state == "paused"
        (step,) = activities.steps(db.reader, own.details().no)
        assert (step.state, msgspec.json.decode(step.output or b"")["content"]) == ("completed", "seen")


async def test_work_goes_on_only_after_every_decision_and_the_request_for_it_is_recorded() -> None:
    async with open_store() as db:
        own = Scene(db, await make_home(db))
        await own.play()
        with pytest.raises(Conflict, match=EFFECT):
            await own.go_on()
        await own.resolve(decision="retry", outcome=None)

        await own.go_on()

        row = admissions.first(db.reader, own.home.no)
        assert row is not None
        assert admitted(row) == ResumeRequest(own.paused, own.revision, "agent", provenance=own.provenance)
        assert own.events()[-1] == (
            "execution.continueRequested",
            {"controlRevision": own.revision, "caller": "agent", **own.provenance},
        )
        assert own.details().state == "paused"  # it waits for the end of the asking turn


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"control_revision": 99}, Conflict),
        ({"execution_id": str(uuid(77))}, NotFound),
        ({"execution_id": "x"}, NotFound),
        ({"activity_id": "x"}, NotFound),
    ],
)
async def test_a_decision_that_does_not_fit_changes_nothing(wrong: dict[str, Any], error: type[PeenError]) -> None:
    async with open_store() as db:
        own = Scene(db, await make_home(db))
        await own.play()
        before = dump(db)

        with pytest.raises(error):
            await own.resolve(**wrong)

        assert dump(db) == before


@pytest.mark.parametrize("wrong", [{"call_id": "call-1"}, {"holder": "ff" * 16}, {"execution_id": str(uuid(77))}])
async def test_only_a_call_that_runs_can_decide(wrong: dict[str, str]) -> None:
    async with open_store() as db:
        own = Scene(db, await make_home(db))
        await own.play()
        before = dump(db)

        with pytest.raises(StaleClaim):
            await own.resolve(caller=own.caller(**wrong))

        assert dump(db) == before


async def test_a_call_that_has_ended_or_belongs_to_another_generation_can_decide_nothing() -> None:
    async with open_store() as db:
        own = Scene(db, await make_home(db))
        await own.play()

        with pytest.raises(StaleClaim):
            await own.resolve(writer=Writer(own.home.no, own.home.writer.generation_no + 1, own.home.blobs))
        await own.commit(own.asking, completions=[Completion(step=EFFECT, output=Raw(b'{"content":""}'))])
        with pytest.raises(StaleClaim):
            await own.resolve()


async def test_a_call_that_a_stop_has_fenced_can_decide_nothing() -> None:
    async with open_store() as db:
        own = Scene(db, await make_home(db))
        await own.play()
        asking = executions.details(db.reader, UUID(own.asking).bytes)
        assert asking is not None
        await db.write(partial(executions.fence, no=asking.no, reason=executions.STOP, at_ms=AT_MS))

        with pytest.raises(StaleClaim):
            await own.resolve()


async def test_reading_lists_what_is_paused_or_shows_one_execution_of_this_session() -> None:
    async with open_store() as db:
        own = Scene(db, await make_home(db))
        await own.play()
        other = await make_home(db, 2)

        listed = agentwork.read(db.reader, own.home.writer, ReadExecution(max_bytes=9_000))
        shown = agentwork.read(db.reader, own.home.writer, ReadExecution(execution_id=own.paused, max_bytes=9_000))
        none = agentwork.read(db.reader, own.home.writer, ReadExecution(max_bytes=10))

        assert ([row.id for row in listed.paused], listed.has_more, listed.view) == ([own.paused], False, None)
        assert shown.view is not None
        assert [(each.id, each.state) for each in shown.view.activities] == [(own.activity, "uncertain")]
        assert (none.paused, none.has_more) == ([], True)
        assert agentwork.read(db.reader, other.writer, ReadExecution(max_bytes=9_000)).paused == []
        with pytest.raises(NotFound):
            agentwork.read(db.reader, other.writer, ReadExecution(execution_id=own.paused, max_bytes=9_000))


# --- fitting --------------------------------------------------------------------------------------------------------


def activity(number: int, *, state: str = "completed", size: int = 3_000) -> Activity:
    text = Raw(encode("ü" * size))
    return Activity(id=f"a{number}", step=f"r{number}.model", kind="model", state=state, attempt=1, input=text,
                    output=text)  # fmt: skip


def long_view(*activities: Activity) -> ExecutionView:
    execution = Execution(
        id="e", session_id="s", turn_id="t", kind="root", state="paused", control_revision=2, round_limit=8,
        created_at="2026-01-31T12:00:00.000Z",
    )  # fmt: skip
    return ExecutionView(execution=execution, stop_revision=0, activities=list(activities), control_events=[], inbox=[])


@pytest.mark.parametrize("max_bytes", [3_000, 8_000, 30_000, 200_000])
def test_a_view_is_cut_to_fit_and_what_is_uncertain_stays(max_bytes: int) -> None:
    whole = long_view(*(activity(number) for number in range(30)), activity(30, state="uncertain"))

    shown, omitted = inspection.fitted(whole, max_bytes)

    assert len(encode(shown)) <= max_bytes
    assert shown.activities[-1].state == "uncertain"
    assert omitted == 31 - len(shown.activities)
    kept = [each.id for each in shown.activities]
    assert kept == [f"a{number}" for number in range(31)][omitted:]  # the oldest are left out first
    for each in shown.activities:
        msgspec.json.decode(each.input)


def test_what_fits_is_shown_as_it_is() -> None:
    whole = long_view(activity(0, size=10))

    assert inspection.fitted(whole, 100_000) == (whole, 0)


def test_a_cut_value_says_how_much_is_missing_and_the_uncertain_one_is_cut_last() -> None:
    whole = long_view(activity(0), activity(1, state="uncertain"))

    shown, _ = inspection.fitted(whole, 20_000)

    ended, uncertain = shown.activities
    cut = msgspec.json.decode(ended.input)
    assert len(cut["beginning"].encode()) + cut["omittedBytes"] == len(bytes(whole.activities[0].input))
    assert bytes(uncertain.input) == bytes(whole.activities[1].input)
