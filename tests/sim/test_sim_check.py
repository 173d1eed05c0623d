"""The check itself: a world in which a promise was broken does not pass."""

from __future__ import annotations

from collections.abc import Callable

import apsw
import pytest
from sim_check import Broken, check
from sim_ghost import Ghost
from sim_scenarios import SCENARIOS
from sim_world import World

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
