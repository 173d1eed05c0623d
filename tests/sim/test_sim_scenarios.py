"""The scenarios as they go when nothing goes wrong, and stories that need more than one fault."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from engine_kit import asks, says, work
from sim_decisions import Wish
from sim_model import SUMMARY, Script
from sim_plan import Plan
from sim_play import Body, Play, Scenario
from sim_scenarios import SCENARIOS
from sim_world import World
from world_kit import uuid

from peen.store import feed
from peen.store.turns import page

ENDS = {
    "plain": ["completed"],
    "tools": ["completed"],
    "queued": ["completed"],
    "stop": ["cancelled", "completed"],
    "retry": ["completed"],
    "notice": ["completed"],
    "failed": ["failed"],
    "compaction": ["completed"] * 4,
    "resume": ["completed", "completed"],
    "accept": ["completed", "completed"],
    "stopped_resume": ["completed", "completed", "completed"],
    "abandon": ["cancelled", "completed"],
    "queue_behind_stop": ["cancelled", "completed", "completed", "completed"],
}


def slow(takes_s: float) -> Script:
    return {"work": [[asks(("change", work("change.1", takes_s=takes_s)))], [says("done")]]}


SLOW = slow(60)


def ends(world: World) -> list[str]:
    """How the turns of the first session ended, the oldest first, without the probe."""
    rows = page(world.reader(), world.homes[0].no, limit=100, offset=0)
    return [turn.state for turn in reversed(rows)][:-1]


def frames(world: World, frame_type: str) -> list[dict[str, Any]]:
    return [frame["data"] for frame in world.clients[0].heard if frame["type"] == frame_type]


@pytest.mark.parametrize("name", ENDS)
def test_a_scenario_ends_as_it_should(name: str) -> None:
    assert ends(SCENARIOS[name].run()) == ENDS[name]


def test_the_tools_of_a_turn_run_side_by_side_and_each_once() -> None:
    world = SCENARIOS["tools"].run()

    assert sorted(run.label for run in world.ledger.runs) == ["change.1", "change.2", "change.3", "look.1", "look.2"]
    assert len({run.began_s for run in world.ledger.runs[:2]}) == 1


def test_queued_messages_reach_the_running_turn_in_order() -> None:
    world = SCENARIOS["queued"].run()
    said = [message.content for message in world.ledger.asked[1].messages if message.role == "user"]

    assert said == ["first", "second", "third"]


def test_a_failed_attempt_is_told_and_never_becomes_part_of_the_answer() -> None:
    world = SCENARIOS["retry"].run()

    assert len(frames(world, "provider.retry")) == 2
    assert frames(world, "turn.completed")[0]["text"] == "whole"


def test_a_conversation_is_summarized_again_and_again_and_each_summary_takes_over() -> None:
    world = SCENARIOS["compaction"].run()
    summaries = world.reader().rows("SELECT key & 0xFFFFFFFF, supersedes & 0xFFFFFFFF FROM compaction ORDER BY key")

    assert summaries == [(1, None), (2, 1), (3, 2)]
    assert [asked.turn_text for asked in world.ledger.asked].count(SUMMARY) == 3
    assert all(text in world.ledger.asked[-1].messages[0].content for text in ("early", "middle"))


def requests_about(world: World, text: str) -> list[list[str]]:
    """What the provider was sent for the turn of that message: the words of each request."""
    return [[message.content for message in asked.messages] for asked in world.ledger.asked if asked.turn_text == text]


def runs(world: World) -> list[str]:
    return sorted(run.label for run in world.ledger.runs)


def test_a_retried_effect_runs_again_and_what_was_read_is_not_read_again() -> None:
    world = SCENARIOS["resume"].run()

    assert runs(world) == ["change.1", "change.1", "change.2", "look.1", "look.2"]
    assert len(frames(world, "turn.resumed")) == 1


def test_an_accepted_effect_does_not_run_again_and_the_model_reads_what_it_came_to() -> None:
    world = SCENARIOS["accept"].run()

    assert runs(world) == ["change.1", "change.2", "look.1", "look.2"]
    assert "it was changed" in requests_about(world, "interrupted")[1]


def test_a_message_that_waited_for_an_interrupted_turn_reaches_it_when_it_goes_on() -> None:
    world = SCENARIOS["resume"].run()

    wanted = ("turn.failed", "turn.resumed", "userMessage.delivered", "turn.completed")
    heard = [frame for frame in world.clients[0].heard if frame["type"] in wanted]
    assert [frame["type"] for frame in heard[:3]] == list(wanted[1:])
    assert heard[1]["data"] == {"message": "for the same turn"}


def test_a_stopped_turn_goes_on_behind_another_one_with_its_own_context() -> None:
    world = SCENARIOS["stopped_resume"].run()
    began = [frame["type"] for frame in world.clients[0].heard if frame["type"] in ("turn.resumed", "turn.completed")]
    resumed = requests_about(world, "stopped")[1:]

    assert began == ["turn.completed", "turn.resumed", "turn.completed", "turn.completed", "turn.completed"]
    assert len(resumed) == 2
    assert all("queued" in said and "between" not in said for said in resumed)


def test_work_that_is_given_up_is_over_and_nothing_that_waited_for_it_is_delivered() -> None:
    world = SCENARIOS["abandon"].run()

    assert world.reader().rows("SELECT state FROM execution ORDER BY no LIMIT 1") == [("cancelled",)]
    assert world.reader().rows("SELECT state FROM inbox WHERE content = 'for nothing'") == [("undelivered",)]
    assert "change.2" not in runs(world)


def test_messages_behind_a_stop_are_delivered_once_somebody_says_so() -> None:
    world = SCENARIOS["queue_behind_stop"].run()

    assert [frame["message"] for frame in frames(world, "userMessage.delivered")] == ["second", "third"]


def story(body: Body, wish: Wish | None = None, script: Script = SLOW) -> World:
    return Scenario("story", script, body, wish=wish).run()


@pytest.mark.parametrize(
    ("takes_s", "is_done", "refused"),
    [(20, True, "steps.commit"), (60, False, "leases.renew")],
    ids=["it ends before it hears of that", "it hears of that at its next renewal"],
)
def test_a_turn_goes_on_while_the_worker_that_was_replaced_still_works_on_it(
    takes_s: float, is_done: bool, refused: str
) -> None:
    async def body(play: Play) -> None:
        await play.send("work")
        await play.wait_until("tool.use")
        await play.sleep(1.0)
        play.haunt_worker()
        await play.wait_until("turn.failed")
        await play.decide()

    world = story(body, Wish(uncertain="retry"), slow(takes_s))
    (ghost,) = world.ghosts

    assert ends(world) == ["completed"]
    assert [(run.label, run.is_done) for run in world.ledger.runs] == [("change.1", is_done), ("change.1", True)]
    assert ghost.refused == [refused]


def test_a_turn_whose_worker_stood_still_goes_on_with_another_one() -> None:
    async def body(play: Play) -> None:
        await play.send("work")
        await play.wait_until("tool.use")
        play.freeze_worker()
        await play.wait_until("turn.failed")
        await play.decide()

    world = story(body, Wish(uncertain="accept", outcome="it was changed"))

    assert ends(world) == ["completed"]
    assert runs(world) == ["change.1"]
    assert len(world.space.processes) == 2


def test_a_user_who_decides_on_what_has_changed_meanwhile_is_refused_and_looks_again() -> None:
    async def body(play: Play) -> None:
        await play.send("work")
        await play.wait_until("tool.use")
        await play.stop()
        await play.wait_until("turn.cancelled")
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(play.decide)

    world = story(body, Wish(uncertain="retry"))

    assert ends(world) == ["completed"]
    assert len(frames(world, "turn.resumed")) == 1
    assert runs(world) == ["change.1", "change.1"]


def test_a_worker_that_dies_in_the_middle_of_a_tool_leaves_its_effect_uncertain() -> None:
    async def body(play: Play) -> None:
        await play.send("work")
        await play.wait_until("tool.use")
        await play.sleep(1.0)
        play.crash_worker()
        await play.wait_idle()

    world = story(body)

    assert ends(world) == ["interrupted"]
    assert world.reader().rows("SELECT state FROM activity WHERE kind = 'effect'") == [("uncertain",)]
    assert "change" in world.ledger.asked[-1].messages[-2].content


def test_a_worker_that_stands_still_is_lost_after_twenty_seconds() -> None:
    async def body(play: Play) -> None:
        await play.send("work")
        await play.wait_until("tool.use")
        play.freeze_worker()
        await play.wait_idle()

    world = story(body)
    details = world.reader().rows("SELECT failure_detail FROM generation ORDER BY no")

    assert ends(world) == ["interrupted"]
    assert details[0] == ("the worker gave no sign of life for 20 s",)


def test_a_worker_that_stands_still_is_killed_by_a_stop() -> None:
    async def body(play: Play) -> None:
        await play.send("work")
        await play.wait_until("tool.use")
        play.freeze_worker()
        await play.stop()
        await play.send("and now")
        await play.wait_idle()

    world = story(body)

    assert ends(world) == ["cancelled", "completed"]
    assert world.reader().rows("SELECT failure_detail FROM generation ORDER BY no LIMIT 1") == [
        ("it did not obey a Stop",)
    ]


def test_a_worker_that_is_replaced_ends_its_turn_and_the_next_message_gets_a_new_one() -> None:
    async def body(play: Play) -> None:
        await play.send("work")
        await play.wait_until("tool.use")
        await play.replace_worker()
        await play.send("and now")
        await play.wait_idle()

    world = story(body)

    assert ends(world) == ["interrupted", "completed"]
    assert len(world.space.processes) == 2


def test_a_controller_that_dies_twice_in_one_story() -> None:
    async def body(play: Play) -> None:
        await play.send("work")
        await play.wait_until("tool.use")
        await play.sleep(0.1)
        await play.crash_controller()
        await play.restart()
        await play.send("and now")
        await play.crash_controller()
        await play.restart()
        await play.post_notice("after two crashes")

    world = story(body)

    assert world.lives == 3
    assert [run.label for run in world.ledger.runs] == ["change.1"]
    assert ends(world)[0] == "interrupted"


def test_a_disk_that_fills_up_in_a_turn_refuses_new_work_and_ends_the_turn_when_it_is_freed() -> None:
    async def body(play: Play) -> None:
        await play.send("work")
        await play.wait_until("tool.use")
        play.fill_disk()
        refused = await play.send("no room")
        await play.sleep(120.0)
        assert refused.answer is not None
        assert refused.answer["data"]["code"] == "STORAGE_FULL"
        play.free_disk()
        await play.wait_idle()

    world = story(body)

    assert ends(world) == ["failed", "completed"]
    assert frames(world, "turn.failed")[0]["reason"] == "storage"


def test_a_turn_that_meets_a_failing_disk_says_so_or_was_stopped_before() -> None:
    reasons = set()
    for number in range(1, SCENARIOS["stop"].run().faults.commits + 1):
        world = SCENARIOS["stop"].run(plan=Plan(failed_commit=number))
        reasons |= {frame["reason"] for frame in frames(world, "turn.failed")}

    assert reasons == {"storage", "interrupted"}


def test_a_resend_after_a_restart_is_answered_and_starts_nothing() -> None:
    async def body(play: Play) -> None:
        sent = await play.send("work")
        await play.wait_until("tool.use")
        await play.sleep(0.1)
        await play.crash_controller()
        await play.restart()
        sent.answer = None
        await play._submit(sent)
        await play.wait_idle()

    world = story(body)
    answer = world.clients[0].sent[str(uuid(1))].answer

    assert answer is not None
    assert answer["type"] == "message.failed"
    assert len(feed.after(world.reader(), world.homes[0].no, 0, limit=500)) > 0
    assert [run.label for run in world.ledger.runs] == ["change.1"]
