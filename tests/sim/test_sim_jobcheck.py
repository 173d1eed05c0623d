"""The check of commands itself: a world in which a promise about a job was broken does not pass."""

from __future__ import annotations

from collections.abc import Callable

import apsw
import pytest
from engine_kit import asks, says
from sim_check import Broken, check
from sim_commands import run
from sim_model import Script
from sim_play import Body, Play, Scenario
from sim_programs import SimProgram, Written
from sim_scenarios import SCENARIOS
from sim_worker import CommandingWorker
from sim_world import World

IN_PARTS = "'out one; sleep 0.5; err two; sleep 0.5; part three; exit 4'"
"""The command of `command_background`."""


def tampered(world: World, sql: str) -> None:
    """Change what the disk holds."""
    connection = apsw.Connection(":memory:")
    connection.deserialize("main", world.disk.image)
    connection.execute(sql)
    world.disk.image = connection.serialize("main")
    connection.close()


def program(world: World) -> SimProgram:
    """The first one."""
    return world.space.programs[0]


def lose_a_notice(world: World) -> None:
    tampered(world, "UPDATE notice SET data = NULL WHERE source = 'tools.job'")


def tell_an_end_twice(world: World) -> None:
    tampered(
        world, "UPDATE notice SET source = 'tools.job', data = (SELECT data FROM notice WHERE source = 'tools.job')"
    )


def tell_another_end(world: World) -> None:
    tampered(world, "UPDATE notice SET type = 'job.exited' WHERE type = 'job.failed'")


def forget_that_the_call_returned(world: World) -> None:
    tampered(world, "UPDATE job SET is_detached = 0")


def tell_of_a_stopped_command(world: World) -> None:
    tampered(world, "UPDATE job SET is_detached = 1")


def leave_a_job_running(world: World) -> None:
    tampered(world, "UPDATE job SET state = 'running', ended_at_ms = NULL WHERE is_detached = 1")


def show_no_notice(world: World) -> None:
    tampered(world, "UPDATE feed SET type = 'tool.use' WHERE type = 'notice.created'")


def deliver_no_notice(world: World) -> None:
    tampered(world, "UPDATE notice SET state = 'pending' WHERE source = 'tools.job'")


def lose_a_chunk(world: World) -> None:
    tampered(world, "DELETE FROM job_output WHERE key = (SELECT min(key) FROM job_output)")


def count_bytes_twice(world: World) -> None:
    tampered(world, "UPDATE job SET byte_count = 2 * byte_count")


def garble_output(world: World) -> None:
    tampered(world, "UPDATE job_output SET data = zeroblob(length(data))")


def print_more(world: World) -> None:
    program(world).written.append(Written(0.0, 0, b"and more\n"))


def print_late(world: World) -> None:
    written = program(world).written
    written[0] = written[0]._replace(at_s=written[0].at_s + 2)


def live_on(world: World) -> None:
    program(world).members[0].ended_s = None


def live_longer(world: World) -> None:
    program(world).members[0].ended_s = 1000.0


def exit_otherwise(world: World) -> None:
    tampered(world, "UPDATE job SET exit_code = 9 WHERE state = 'exited'")


def exit_when_signalled(world: World) -> None:
    tampered(world, "UPDATE job SET exit_code = 0 WHERE state = 'signalled'")


def call_it_signalled(world: World) -> None:
    tampered(world, "UPDATE job SET state = 'signalled', exit_code = -1")


def start_nothing(world: World) -> None:
    world.space.processes[0].programs.started.clear()


def forget_a_signal(world: World) -> None:
    tampered(world, "DELETE FROM job_signal")


def show_something_else(world: World) -> None:
    tampered(world, "UPDATE activity SET output = CAST(replace(CAST(output AS TEXT), 'one', 'own') AS BLOB)")


def show_another_cursor(world: World) -> None:
    change = "replace(CAST(output AS TEXT), 'nextStdoutCursor\\\":3', 'nextStdoutCursor\\\":2')"
    tampered(world, f"UPDATE activity SET output = CAST({change} AS BLOB)")


def show_another_state(world: World) -> None:
    change = "replace(CAST(output AS TEXT), 'state\\\":\\\"exited', 'state\\\":\\\"failed')"
    tampered(world, f"UPDATE activity SET output = CAST({change} AS BLOB) WHERE call_id IS NOT NULL")


def return_another_end(world: World) -> None:
    tampered(world, "UPDATE job SET exit_code = 4 WHERE exit_code = 3")


def say_another_code(world: World) -> None:
    data = "CAST(replace(CAST(data AS TEXT), 'exitCode\":4', 'exitCode\":5') AS BLOB)"
    tampered(world, f"UPDATE notice SET data = {data}")


def say_no_reason(world: World) -> None:
    tampered(world, "UPDATE notice SET data = CAST(json_remove(CAST(data AS TEXT), '$.reason') AS BLOB)")


def exchange_jobs(world: World) -> None:
    tampered(world, "UPDATE job SET call_id = 'call_9_9'")


@pytest.mark.parametrize(
    ("scenario", "breach", "line"),
    [
        ("command_timeout", lose_a_notice, "18: detached job"),
        ("command_stop", tell_an_end_twice, "18: detached job"),
        ("command_worker", tell_another_end, "18: detached job"),
        ("command_timeout", forget_that_the_call_returned, "18: foreground job"),
        ("command_timeout", forget_that_the_call_returned, "18: a call was told that 'fill 9000"),
        ("command_stop", tell_of_a_stopped_command, "18: detached job"),
        ("command_timeout", leave_a_job_running, "18: job"),
        ("command_timeout", show_no_notice, "18: 1 notices are stored and 0 were shown"),
        ("command_timeout", deliver_no_notice, "6: notice"),
        ("command_background", lose_a_chunk, f"19: output of {IN_PARTS} has gaps"),
        ("command_background", count_bytes_twice, f"19: output of {IN_PARTS} is counted as 26 bytes"),
        ("command_background", garble_output, f"19: output of {IN_PARTS} on stream 0 is not what was printed"),
        (
            "command_background",
            print_more,
            "19: output of 'out one; sleep 0.5; err two; sleep 0.5; part three; exit 4' on",
        ),
        (
            "command_background",
            print_late,
            "19: output of 'out one; sleep 0.5; err two; sleep 0.5; part three; exit 4' has",
        ),
        ("command_stop", live_on, "10: 'out first"),
        ("command_stop", live_longer, "10: job of 'out first"),
        ("command_background", exit_otherwise, f"18: job of {IN_PARTS} is stored as exited with 9, and it was 4"),
        ("command_signal", exit_when_signalled, "18: job of 'trap 2"),
        ("command_background", call_it_signalled, f"18: job of {IN_PARTS} is called signalled, and exited with 4"),
        ("command_background", start_nothing, f"18: job of {IN_PARTS} is exited"),
        ("command_background", start_nothing, f"19: output of {IN_PARTS} is stored, and nothing ran"),
        ("command_stop", forget_a_signal, "18: job of 'trap 60"),
        ("command_background", show_something_else, "19: runCommand showed"),
        ("command_background", show_something_else, "19: readJobOutput showed"),
        ("command_background", show_another_cursor, "19: waitJob showed"),
        ("command_background", show_another_state, "18: a call was told that 'out one"),
        ("command", return_another_end, "18: a call was told that 'out one"),
        ("command_background", say_another_code, f"18: the notice of {IN_PARTS} says"),
        ("command_worker", say_no_reason, "18: the notice of 'out first"),
        ("command_background", exchange_jobs, "18: the call call_0_0 returned a job of another call"),
    ],
)
def test_a_broken_promise_about_a_command_is_named(scenario: str, breach: Callable[[World], None], line: str) -> None:
    world = SCENARIOS[scenario].run()
    breach(world)

    with pytest.raises(Broken) as broken:
        check(world)

    assert any(each.startswith(line) for each in str(broken.value).splitlines()), str(broken.value)


def broken(body: Body) -> str:
    """What the check says of a world whose one command never ends by itself."""
    script: Script = {"go": [[asks(run("out one; forever", background=True))], [says("done")]]}
    with pytest.raises(Broken) as found:
        Scenario("story", script, body, worker=CommandingWorker).run()
    return str(found.value)


def test_an_end_without_its_notice_is_seen_in_the_commit_that_makes_it_so_even_if_a_later_one_mends_it() -> None:
    async def body(play: Play) -> None:
        await play.send("go")
        await play.wait_idle()
        await play.world.db.write(lambda tx: tx.execute("UPDATE job SET state = 'exited'"))
        await play.world.db.write(lambda tx: tx.execute("UPDATE job SET state = 'running'"))

    text = broken(body)

    assert text.count(" is exited and was told of as None, in commit ") == 1


def test_a_generation_that_ends_without_its_jobs_is_seen_in_that_commit() -> None:
    async def body(play: Play) -> None:
        await play.send("go")
        await play.wait_idle()
        await play.world.db.write(lambda tx: tx.execute("UPDATE generation SET ended_at_ms = 1"))
        await play.world.db.write(lambda tx: tx.execute("UPDATE generation SET ended_at_ms = NULL"))

    text = broken(body)

    assert text.count(" is running and its worker generation has ended, in commit ") == 1


def test_a_job_that_counts_as_running_although_nothing_of_it_lives_is_seen() -> None:
    async def body(play: Play) -> None:
        await play.send("go")
        await play.wait_idle()
        columns = "session_no, turn_no, execution_no, generation_no, purpose, directory, started_at_ms"
        copy = f"INSERT INTO job (id, call_id, command, state, {columns}) "
        copy += f"SELECT randomblob(16), 'call_9_9', 'of nobody', 'running', {columns} FROM job"
        await play.world.db.write(lambda tx: tx.execute(copy))
        await play.sleep(120.0)

    assert "18: job of 'of nobody' counts as running and ended at " in broken(body)


def test_a_recovery_that_leaves_a_job_running_is_seen() -> None:
    async def body(play: Play) -> None:
        await play.send("go")
        await play.wait_idle()
        await play.crash_controller()
        tampered(play.world, "UPDATE generation SET ended_at_ms = created_at_ms, state = 'failed'")
        await play.restart()

    assert " is running after recovery" in broken(body)
