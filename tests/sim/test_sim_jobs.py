"""Commands in simulated worlds: how the stories go when nothing goes wrong, and some that need faults of their own."""

from __future__ import annotations

import pytest
from engine_kit import asks, says
from sim_commands import about, run
from sim_model import Script
from sim_play import Body, Play, Scenario
from sim_scenarios import SCENARIOS
from sim_worker import CommandingWorker
from sim_world import START_S, World

from peen.patience import STOP_QUIET_S
from peen.store import jobs
from peen.store.jobs import JobRow

FIRST = run("out first; sleep 2; err second; sleep 60; out third", background=True)
ENDS = {
    "command": [("failed", -1, False), ("exited", 3, False)],
    "command_background": [("exited", 4, True)],
    "command_timeout": [("exited", 5, True)],
    "command_stop": [("exited", 0, True), ("signalled", -1, False)],
    "command_signal": [("signalled", -1, True), ("signalled", -1, True)],
    "command_worker": [("interrupted", -1, True), ("interrupted", -1, False), ("exited", 0, False)],
    "command_controller": [("interrupted", -1, True), ("interrupted", -1, False)],
}
"""State, exit code and whether the call returned before, of the jobs of each story, in any order."""


def rows(world: World) -> list[JobRow]:
    """The jobs of the first session, oldest first."""
    return jobs.page(world.reader(), world.homes[0].no, limit=100, offset=0)[::-1]


def ends(world: World) -> list[tuple[str, int, bool]]:
    return [(row.state, row.exit_code, row.is_detached) for row in rows(world)]


def told(world: World) -> list[str]:
    """Types of the notices about jobs, in order."""
    return [kind for (kind,) in world.reader().rows("SELECT type FROM notice WHERE source = 'tools.job' ORDER BY key")]


def signals(world: World) -> list[list[tuple[str, bool]]]:
    """Of each job what was asked of it, and whether that came in time."""
    reader = world.reader()
    asked = [jobs.signals(reader, row.no, limit=100, offset=0) for row in rows(world)]
    return [[(each.signal, each.accepted) for each in of_job] for of_job in asked]


def story(body: Body, *rounds: tuple[str, str], seed: int = 0) -> World:
    """A world whose model makes these calls, one a round."""
    script: Script = {"go": [*([asks(call)] for call in rounds), [says("done")]], "next": []}
    return Scenario("story", script, body, worker=CommandingWorker).run(seed=seed)


@pytest.mark.parametrize("name", ENDS)
def test_the_commands_of_a_story_end_as_they_should(name: str) -> None:
    assert sorted(ends(SCENARIOS[name].run())) == sorted(ENDS[name])


@pytest.mark.parametrize(
    ("name", "notices"),
    [
        ("command", []),
        ("command_background", ["job.exited"]),
        ("command_timeout", ["job.exited"]),
        ("command_stop", ["job.exited"]),
        ("command_signal", ["job.signalled", "job.signalled"]),
        ("command_worker", ["job.failed"] * 2),
        ("command_controller", ["job.failed"] * 2),
    ],
)
def test_ends_that_no_call_tells_are_told(name: str, notices: list[str]) -> None:
    assert told(SCENARIOS[name].run()) == notices


def test_a_stop_records_its_signal_and_kills_what_does_not_obey_while_the_other_job_goes_on() -> None:
    world = SCENARIOS["command_stop"].run()
    detached, foreground = rows(world)

    assert signals(world) == [[], [("stop", True)]]
    assert foreground.ended_at_ms is not None
    assert 3000 <= foreground.ended_at_ms - world.stopped_s[0][1] * 1000 - 1_700_000_000_000 <= 5000
    assert detached.ended_at_ms is not None
    assert detached.ended_at_ms - detached.started_at_ms == pytest.approx(62_000, abs=100)


def test_signals_are_recorded_in_time_or_not() -> None:
    assert signals(SCENARIOS["command_signal"].run()) == [[("stop", True)], [("kill", True), ("stop", False)]]


def test_an_orderly_stop_of_the_controller_ends_jobs_and_tells_so() -> None:
    async def body(play: Play) -> None:
        await play.send("go")
        await play.wait_idle()

    world = story(body, run("trap 60; out one; leave forever; forever", background=True))

    assert ends(world) == [("signalled", -1, True)]
    assert told(world) == ["job.signalled"]
    assert world.reader().rows("SELECT state FROM notice") == [("pending",)]


def test_a_job_outlives_turns_and_holds_its_worker() -> None:
    async def body(play: Play) -> None:
        await play.send("go")
        await play.wait_idle()
        await play.sleep(550.0)
        await play.send("next")
        await play.wait_idle()
        await play.wait_jobs()

    world = story(body, run("out one; sleep 1100; out two", background=True))

    assert ends(world) == [("exited", 0, True)]
    assert len(world.space.processes) == 1


def test_the_jobs_of_a_worker_that_stands_still_end_with_it() -> None:
    async def body(play: Play) -> None:
        await play.send("go")
        await play.wait_idle()
        play.freeze_worker()
        await play.wait_jobs()
        await play.send("next")
        await play.wait_idle()

    world = story(body, run("out one; sleep 5; out two; forever", background=True))

    assert ends(world) == [("interrupted", -1, True)]
    assert told(world) == ["job.failed"]


def test_a_job_whose_worker_is_replaced_is_told_of_once_although_it_goes_on() -> None:
    async def body(play: Play) -> None:
        await play.send("go")
        await play.wait_idle()
        play.haunt_worker()
        await play.wait_jobs()
        await play.sleep(10.0)
        await play.send("next")
        await play.wait_idle()

    world = story(body, run("out one; sleep 5; out two; sleep 1; exit 6", background=True))
    (ghost,) = world.ghosts

    assert ends(world) == [("interrupted", -1, True)]
    assert told(world) == ["job.failed"]
    assert {"job.output", "job.end"} <= set(ghost.refused)


def test_a_job_that_is_ended_by_its_model_while_it_fills_its_pipe_is_stored_whole() -> None:
    async def body(play: Play) -> None:
        await play.send("go")
        await play.wait_idle()

    world = story(
        body,
        run("fill 400000; err beside; fill 400000; forever", background=True),
        about("waitJob", 1, timeout="3s"),
        about("signalJob", 1, signal="kill"),
    )

    assert ends(world) == [("signalled", -1, True)]
    assert rows(world)[0].byte_count == 2 * 400_005 + len("beside\n")


def test_what_waits_in_the_pipe_of_a_command_that_has_ended_is_stored_however_slow_the_store_is() -> None:
    async def body(play: Play) -> None:
        await play.send("go")
        await play.wait_idle()
        play.freeze_worker()
        await play.sleep(4.0)
        assert play.world.space.programs[0].poll() == 8
        play.thaw_worker()
        await play.wait_jobs()

    world = story(body, run("out one; sleep 1; fill 360000; exit 8", background=True))

    assert ends(world) == [("exited", 8, True)]
    assert rows(world)[0].byte_count == len("one\n") + 360_000


def test_a_call_reads_everything_that_was_printed_before_it_an_unfinished_line_included() -> None:
    async def body(play: Play) -> None:
        await play.send("go")
        await play.wait_idle()

    world = story(
        body,
        run("out one; sleep 0.4; part two; forever", background=True),
        about("waitJob", 1, timeout="420ms"),
    )
    results = [message.content for message in world.ledger.asked[2].messages if message.role == "tool"]

    assert '"stdout":"one\\ntwo"' in results[-1]


RACES = 40
STEP_S = 0.005
"""Around the moment in question, in both directions; frames are under way for up to 2 ms."""


def around(moment_s: float, number: int) -> float:
    """One of `RACES` instants close to that one."""
    return round(moment_s + (number - RACES // 2) * STEP_S, 3)


def test_a_command_that_ends_at_its_timeout_is_told_by_its_call_or_by_a_notice() -> None:
    async def body(play: Play) -> None:
        await play.send("go")
        await play.wait_idle()
        await play.wait_jobs()

    seen = set()
    for number in range(RACES):
        world = story(body, run(f"out one; sleep {around(1.0, number)}; exit 7", timeout="1s"), seed=number)
        seen |= {(state, code, is_detached, *told(world)) for state, code, is_detached in ends(world)}

    assert seen == {("exited", 7, False), ("exited", 7, True, "job.exited")}


def test_a_stop_that_meets_the_end_of_a_command_leaves_one_end() -> None:
    seen = set()
    for number in range(RACES):

        async def body(play: Play, number: int = number) -> None:
            await play.send("go")
            await play.wait_until("tool.use")
            await play.sleep(around(0.5, number))
            await play.stop()
            await play.wait_idle()

        world = story(body, run("out one; sleep 0.5; exit 7"), seed=number)
        assert told(world) == []
        seen |= set(ends(world))

    assert seen == {("exited", 7, False), ("signalled", -1, False)}


def test_a_signal_that_meets_the_end_of_a_job_leaves_one_end() -> None:
    seen = set()
    for number in range(RACES):

        async def body(play: Play, number: int = number) -> None:
            await play.send("go")
            await play.wait_idle()
            await play.sleep(around(0.5, number))
            await play.signal_job("kill")
            await play.wait_jobs()

        world = story(body, run("out one; sleep 0.5; exit 7", background=True), seed=number)
        ((asked, in_time),) = signals(world)[0]
        seen |= {(*end, in_time, *told(world)) for end in ends(world)}
        assert asked == "kill"

    assert {each[0] for each in seen} == {"exited", "signalled"}
    assert {each[-1] for each in seen} == {"job.exited", "job.signalled"}


def test_a_worker_that_dies_as_its_job_ends_leaves_one_end() -> None:
    seen = set()
    for number in range(RACES):

        async def body(play: Play, number: int = number) -> None:
            await play.send("go")
            await play.wait_idle()
            await play.sleep(around(0.5, number))
            play.crash_worker()
            await play.wait_jobs()

        world = story(body, run("out one; sleep 0.5; exit 7", background=True), seed=number)
        seen |= {(*end, *told(world)) for end in ends(world)}

    assert seen == {("exited", 7, True, "job.exited"), ("interrupted", -1, True, "job.failed")}


@pytest.mark.parametrize(("steps", "reason"), [("foreign", "of another account"), ("hang", "not ended by SIGKILL yet")])
def test_a_stop_gives_up_what_cannot_be_ended_and_tells_so_while_the_other_job_goes_on(steps: str, reason: str) -> None:
    async def body(play: Play) -> None:
        await play.send("go")
        await play.wait_until("tool.result")
        await play.wait_jobs(2)
        await play.sleep(0.2)
        await play.stop()
        await play.wait_idle()
        await play.sleep(30.0)
        await play.send("next")
        await play.wait_idle()
        await play.wait_jobs()

    world = story(
        body,
        run("out first; sleep 60; exit 4", background=True),
        run(f"leave {steps}, forever; trap 60; forever"),
    )
    detached, stopped = rows(world)

    assert (detached.state, detached.exit_code) == ("exited", 4)
    assert stopped.state == "failed"
    assert f"(sim): {reason}" in stopped.failure_detail
    assert stopped.ended_at_ms is not None
    assert stopped.ended_at_ms / 1000 - world.stopped_s[0][1] - START_S <= STOP_QUIET_S
    assert len(world.space.processes) == 1
    assert told(world) == ["job.failed", "job.exited"]
    (summary,) = world.reader().rows("SELECT summary FROM notice WHERE type = 'job.failed'")[0]
    assert reason in summary


def test_a_job_of_which_something_cannot_be_ended_is_failed_by_a_signal_and_names_it() -> None:
    async def body(play: Play) -> None:
        await play.send("go")
        await play.wait_idle()

    world = story(body, run("leave foreign, forever; forever", background=True), about("signalJob", 1, signal="kill"))

    assert ends(world) == [("failed", -1, True)]
    assert "of another account" in rows(world)[0].failure_detail
    assert told(world) == ["job.failed"]
