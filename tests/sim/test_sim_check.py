"""The check itself: a world in which a promise was broken does not pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import apsw
import pytest
from sim_check import Broken, check
from sim_ghost import Ghost
from sim_scenarios import SCENARIOS
from sim_world import World

from peen.wire.records import MessageRecord
from peen.wire.websocket import text_frame


def tampered(world: World, sql: str) -> None:
    """Change what the disk holds."""
    connection = apsw.Connection(":memory:")
    connection.deserialize("main", world.disk.image)
    connection.execute(sql)
    world.disk.image = connection.serialize("main")
    connection.close()


def lose_a_frame(world: World) -> None:
    del world.clients[0].connections[0][3]


def change_a_frame(world: World) -> None:
    world.clients[0].connections[0][2] = text_frame(
        b'{"type":"turn.started","metadata":{"sessionId":"%s","sequence":2}}' % world.homes[0].uuid.encode()
    )


def run_a_tool_again(world: World) -> None:
    world.ledger.runs.append(world.ledger.runs[0])


def forget_a_claim(world: World) -> None:
    tampered(world, "DELETE FROM activity WHERE call_id IS NOT NULL")


def forget_a_message(world: World) -> None:
    tampered(world, "UPDATE inbox SET state = 'queued' WHERE no = 1")


def tell_a_message_twice(world: World) -> None:
    tampered(world, "UPDATE message SET content = (SELECT content FROM message ORDER BY key LIMIT 1), role = 'user'")


def lose_a_notice(world: World) -> None:
    tampered(world, "UPDATE notice SET state = 'pending' WHERE source = 'api'")


def leave_a_turn_running(world: World) -> None:
    tampered(world, "UPDATE turn SET state = 'running' WHERE no = 1")


def end_a_turn_twice(world: World) -> None:
    tampered(world, "UPDATE feed SET type = 'turn.failed' WHERE type = 'turn.started'")


def write_after_the_end(world: World) -> None:
    tampered(world, "UPDATE generation SET ended_at_ms = started_at_ms")


def refuse_a_request(world: World) -> None:
    world.ledger.refused.append("messages[3]: no result for the call 'call_0_0'")


def grant_a_ghost(world: World) -> None:
    ghost = object.__new__(Ghost)
    ghost.granted = ["steps.commit"]
    world.ghosts.append(ghost)


def begin_after_a_stop(world: World) -> None:
    tampered(world, "UPDATE activity SET started_at_ms = started_at_ms + 1 WHERE key & 0xFFFFFFFF > 0")


def stop_too_slowly(world: World) -> None:
    tampered(world, "UPDATE turn SET completed_at_ms = completed_at_ms + 6000 WHERE state = 'cancelled'")


def forget_a_decision(world: World) -> None:
    tampered(world, "DELETE FROM control_event WHERE type = 'activity.resolved'")


def decide_too_late(world: World) -> None:
    tampered(world, "UPDATE control_event SET created_at_ms = created_at_ms + 60000 WHERE type = 'activity.resolved'")


def run_what_was_accepted(world: World) -> None:
    run = next(run for run in world.ledger.runs if run.label == "change.1")
    tampered(world, "UPDATE activity SET attempt = 2")
    world.ledger.runs.append(replace(run, began_s=run.began_s + 600))


def count_a_call_twice(world: World) -> None:
    tampered(world, "UPDATE session SET prompt_tokens = prompt_tokens + 7")


def forget_a_sum(world: World) -> None:
    tampered(world, "UPDATE model_call SET run_completion_tokens = run_completion_tokens - 3")


def hide_a_price_that_is_not_known(world: World) -> None:
    tampered(world, "UPDATE session SET unpriced_calls = unpriced_calls - 1")


def price_a_call_alone(world: World) -> None:
    tampered(world, "UPDATE model_call SET cost = cost + 1")


def keep_silent_about_a_cut(world: World) -> None:
    tampered(world, "UPDATE model_call SET state = 'cancelled' WHERE key = (SELECT min(key) FROM model_call)")


def read_again(world: World) -> None:
    run = next(run for run in world.ledger.runs if run.label == "look.1")
    tampered(world, "UPDATE activity SET attempt = 2")
    world.ledger.runs.append(replace(run, began_s=run.began_s + 600))


def run_more_often_than_claimed(world: World) -> None:
    run = next(run for run in world.ledger.runs if run.label == "look.1")
    world.ledger.runs.append(replace(run))


def allow_by_itself(world: World) -> None:
    tampered(world, "UPDATE activity SET state = 'interrupted' WHERE state = 'uncertain'")


def lose_an_end(world: World) -> None:
    tampered(world, "UPDATE feed SET type = 'tool.use' WHERE type = 'turn.completed' AND turn_no = 1")


def end_a_segment_twice(world: World) -> None:
    tampered(world, "UPDATE feed SET type = 'turn.failed' WHERE type = 'turn.resumed'")


def resume_unheard(world: World) -> None:
    tampered(world, "DELETE FROM control_event WHERE type = 'execution.resumed'")


def run_two_turns(world: World) -> None:
    tampered(world, "UPDATE feed SET type = 'tool.use' WHERE type = 'turn.cancelled'")


def count_blocks_anew(world: World) -> None:
    tampered(
        world,
        """UPDATE feed SET data = CAST(json_set(CAST(data AS TEXT), '$.index', 0) AS BLOB) WHERE key =
           (SELECT min(key) FROM feed WHERE type = 'content_block_start'
               AND key > (SELECT key FROM feed WHERE type = 'turn.resumed'))""",
    )


def leave_a_block_open(world: World) -> None:
    tampered(world, "UPDATE feed SET type = 'tool.use' WHERE type = 'content_block_stop' AND turn_no = 1")


def begin_while_paused(world: World) -> None:
    tampered(
        world,
        """UPDATE activity SET started_at_ms = 1 +
           (SELECT created_at_ms FROM control_event WHERE type = 'execution.paused' ORDER BY key LIMIT 1)
            WHERE key = (SELECT min(key) FROM activity)""",
    )


def of_the_resumed_turn(world: World) -> list[MessageRecord]:
    """What its last request held."""
    return [asked for asked in world.ledger.asked if asked.turn_text == "stopped"][-1].messages


def tell_of_a_later_turn(world: World) -> None:
    of_the_resumed_turn(world).insert(1, MessageRecord(role="user", content="between"))


def tell_a_message_late(world: World) -> None:
    said = of_the_resumed_turn(world)
    said.append(said.pop(next(at for at, message in enumerate(said) if message.content == "queued")))


def keep_a_message_back(world: World) -> None:
    said = of_the_resumed_turn(world)
    said[:] = [message for message in said if message.content != "queued"]


def tell_a_result_late(world: World) -> None:
    said = of_the_resumed_turn(world)
    at = next(at for at, message in enumerate(said) if message.role == "tool")
    text = f"After its turn had ended, a tool call returned. Its result was:\n{said[at].content}"
    said[at] = MessageRecord(role="system", content=text)


def log_an_error(world: World) -> None:
    world.logs.append({"log_level": "error", "event": "actor failed", "exc_info": RuntimeError("broken")})


@pytest.mark.parametrize(
    ("scenario", "breach", "number"),
    [
        ("tools", lose_a_frame, "1:"),
        ("tools", change_a_frame, "1:"),
        ("tools", run_a_tool_again, "3:"),
        ("tools", forget_a_claim, "3:"),
        ("plain", forget_a_message, "5:"),
        ("plain", tell_a_message_twice, "5:"),
        ("notice", lose_a_notice, "6:"),
        ("plain", leave_a_turn_running, "8:"),
        ("plain", end_a_turn_twice, "8:"),
        ("tools", write_after_the_end, "4:"),
        ("plain", refuse_a_request, "12:"),
        ("plain", grant_a_ghost, "4:"),
        ("stop", begin_after_a_stop, "7:"),
        ("stop", stop_too_slowly, "9:"),
        ("plain", count_a_call_twice, "16: session"),
        ("tools", forget_a_sum, "16: model run"),
        ("plain", hide_a_price_that_is_not_known, "16: session"),
        ("plain", price_a_call_alone, "16: model run"),
        ("plain", keep_silent_about_a_cut, "16: 1 attempts"),
        ("plain", log_an_error, "an error was logged"),
    ],
)
def test_a_broken_promise_is_named_with_the_command_that_repeats_it(
    scenario: str, breach: Callable[[World], None], number: str
) -> None:
    world = SCENARIOS[scenario].run()
    breach(world)

    with pytest.raises(Broken) as broken:
        check(world)

    lines = str(broken.value).splitlines()
    assert any(line.startswith(number) for line in lines[1:-1]), str(broken.value)
    assert lines[-1] == f"PEEN_SIM='{scenario} seed=0' python -m pytest tests/sim/test_sim_repeat.py"


@pytest.mark.parametrize(
    ("scenario", "breach", "line"),
    [
        ("resume", forget_a_decision, "3: call 'change.1' ran again and nobody had decided that"),
        ("resume", decide_too_late, "3: call 'change.1' ran again and nobody had decided that"),
        ("resume", read_again, "2: call 'look.1' had a stored result and was made again"),
        ("resume", run_more_often_than_claimed, "3: call 'look.1' ran 2 times and its step was begun 1 times"),
        ("accept", run_what_was_accepted, "2: call 'change.1' had a stored result and was made again"),
        ("accept", run_what_was_accepted, "3: call 'change.1' ran again and nobody had decided that"),
        ("stop", allow_by_itself, "3: call 'change.1' was cut off and may run again, and nobody had decided that"),
        ("resume", lose_an_end, "8: turn 1 does not begin and end by turns"),
        ("resume", end_a_segment_twice, "8: turn 1 does not begin and end by turns"),
        ("resume", resume_unheard, "8: turn 1 was resumed 0 times and tells of 1"),
        ("abandon", run_two_turns, "8: turn.started in frame"),
        ("resume", count_blocks_anew, "8: the blocks of request"),
        ("resume", leave_a_block_open, "8: of the blocks"),
        ("stopped_resume", begin_while_paused, "7: 1 steps of execution 1 began after it was paused"),
        ("stopped_resume", tell_of_a_later_turn, "5: a request of turn 1 holds what was said in later turns"),
        ("stopped_resume", tell_a_message_late, "5: a request tells who said what in another order"),
        ("stopped_resume", keep_a_message_back, "5: turn 1 completed and its model had never heard of ['queued']"),
        ("stopped_resume", tell_a_result_late, "5: a request tells results apart from their calls"),
    ],
)
def test_a_promise_about_paused_work_that_was_broken_is_named(
    scenario: str, breach: Callable[[World], None], line: str
) -> None:
    world = SCENARIOS[scenario].run()
    breach(world)

    with pytest.raises(Broken) as broken:
        check(world)

    assert any(each.startswith(line) for each in str(broken.value).splitlines()), str(broken.value)


def test_two_generations_of_one_session_at_one_time_are_seen() -> None:
    world = SCENARIOS["plain"].run()
    tampered(
        world,
        "INSERT INTO generation (id, session_no, kind, agent_space, state, workspace, credential_sha256, socket_path, "
        "created_at_ms, ended_at_ms) SELECT randomblob(16), session_no, kind, agent_space, 'stopped', workspace, "
        "credential_sha256, socket_path, created_at_ms, ended_at_ms FROM generation",
    )

    with pytest.raises(Broken, match="began before generation 1 had ended"):
        check(world)
