from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from tool_world import World

from peen.errors import Conflict, NotFound, PeenError
from peen.tool.registry import standard_tools
from peen.wire.execution import Execution, ExecutionView
from peen.wire.turncalls import ExecutionsRead

ID = "e8ec0710-0000-4000-8000-000000000008"
PAUSED = Execution(
    id=ID, session_id="s", turn_id="t", kind="root", state="paused", pause_reason="stop", control_revision=2,
    round_limit=8, created_at="2026-01-31T12:00:00.000Z",
)  # fmt: skip
VIEW = ExecutionView(execution=PAUSED, stop_revision=1, activities=[], control_events=[], inbox=[])


class PlayedWork:
    """Retained work that notes what it is asked, and refuses with `refusal` if there is one."""

    def __init__(self, refusal: PeenError | None = None) -> None:
        self.asked: list[tuple[object, ...]] = []
        self._refusal = refusal

    async def read(self, execution_id: str | None, *, max_bytes: int) -> ExecutionsRead:
        self._note("read", execution_id, max_bytes)
        if execution_id is None:
            return ExecutionsRead(paused=[PAUSED], has_more=True)
        return ExecutionsRead(view=VIEW, omitted_activities=3)

    async def resolve(
        self,
        execution_id: str,
        activity_id: str,
        *,
        decision: Literal["accept", "retry"],
        outcome: str | None,
        control_revision: int,
    ) -> str:
        self._note("resolve", execution_id, activity_id, decision, outcome, control_revision)
        return "r0.t0.handler"

    async def resume_later(self, execution_id: str, *, control_revision: int) -> None:
        self._note("continue", execution_id, control_revision)

    def _note(self, *what: object) -> None:
        self.asked.append(what)
        if self._refusal is not None:
            raise self._refusal


def world(directory: Path, work: PlayedWork | None) -> World:
    own = World(directory)
    own.context = dataclasses.replace(own.context, work=work)
    return own


RESOLUTION = {"executionId": ID, "activityId": "a", "decision": "accept", "controlRevision": 2}


async def test_without_an_id_the_paused_executions_are_listed(tmp_path: Path) -> None:
    work = PlayedWork()

    told = await world(tmp_path, work).ok("readExecution")

    assert [row["id"] for row in told["paused"]] == [ID]
    assert told["hasMore"] is True
    ((_, wanted, max_bytes),) = work.asked
    assert wanted is None
    assert isinstance(max_bytes, int)
    assert 0 < max_bytes < world(tmp_path, work).context.max_result_bytes


async def test_with_an_id_that_execution_is_shown_with_what_was_left_out(tmp_path: Path) -> None:
    told = await world(tmp_path, PlayedWork()).ok("readExecution", executionId=ID)

    assert told == {"view": msgspec.json.decode(msgspec.json.encode(VIEW)), "omittedActivities": 3}


async def test_a_decision_is_handed_on_and_says_that_nothing_was_resumed(tmp_path: Path) -> None:
    work = PlayedWork()

    told = await world(tmp_path, work).ok("resolveExecutionActivity", **RESOLUTION, outcome="it is there")

    assert work.asked == [("resolve", ID, "a", "accept", "it is there", 2)]
    assert told == {"step": "r0.t0.handler", "decision": "accept", "resumed": False}


async def test_what_may_be_done_again_has_no_outcome(tmp_path: Path) -> None:
    work = PlayedWork()
    arguments = {**RESOLUTION, "decision": "retry", "outcome": "x"}

    assert "only an accepted activity" in await world(tmp_path, work).refused("resolveExecutionActivity", **arguments)
    assert work.asked == []


async def test_a_continuation_is_admitted_for_the_revision_that_was_read(tmp_path: Path) -> None:
    work = PlayedWork()

    told = await world(tmp_path, work).ok("continueExecution", executionId=ID, controlRevision=2)

    assert work.asked == [("continue", ID, 2)]
    assert told == {"executionId": ID, "admitted": True, "begins": "when this turn has ended"}


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        (Conflict("it is running"), "conflict: it is running. Read the execution again"),
        (NotFound("no such execution"), "not found: no such execution; call readExecution"),
    ],
)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("readExecution", {"executionId": ID}),
        ("resolveExecutionActivity", RESOLUTION),
        ("continueExecution", {"executionId": ID, "controlRevision": 2}),
    ],
)
async def test_what_the_controller_refuses_is_told_with_the_next_step(
    tmp_path: Path, name: str, arguments: dict[str, object], refusal: PeenError, says: str
) -> None:
    assert (await world(tmp_path, PlayedWork(refusal)).refused(name, **arguments)).startswith(says)


async def test_without_a_controller_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    assert "cannot be reached" in await world(tmp_path, None).refused("readExecution")


@pytest.mark.parametrize("name", ["readExecution", "resolveExecutionActivity", "continueExecution"])
def test_an_interrupted_call_may_simply_be_made_again(name: str) -> None:
    assert standard_tools().is_repeatable(name)


def test_the_kind_of_decision_is_limited_in_the_schema() -> None:
    (definition,) = [each for each in standard_tools().definitions if each.name == "resolveExecutionActivity"]
    schema = msgspec.json.decode(definition.parameters)

    assert schema["properties"]["decision"]["enum"] == ["accept", "retry"]
    assert sorted(schema["required"]) == ["activityId", "controlRevision", "decision", "executionId"]
