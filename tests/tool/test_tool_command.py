"""runCommand: real processes, with nobody at the terminal and nothing left behind by surprise."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from tool_world import Mailbox, World, alive, cancelled, gone, run, until, working

from peen.store import jobs
from peen.wire.joboutput import STDOUT


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    async with working(world):
        yield world


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Mailbox]:
    with Mailbox(tmp_path / "mailbox") as mailbox:
        yield mailbox


async def test_a_command_returns_both_streams_and_its_exit_code(world: World) -> None:
    result = await run(world, "echo out; echo err >&2; exit 3")

    duration_ms, job_id = result.pop("durationMs"), result.pop("jobId")
    assert 0 <= duration_ms < 10_000
    await until(lambda: world.desk.job(job_id).state == "exited")
    assert result == {
        "state": "exited",
        "exitCode": 3,
        "stdout": "out\n",
        "stderr": "err\n",
        "stdoutOmittedBytes": 0,
        "stderrOmittedBytes": 0,
        "directory": str(world.directory),
    }


async def test_a_command_without_output_still_has_an_exit_code(world: World) -> None:
    result = await run(world, "true")

    assert (result["state"], result["exitCode"], result["stdout"], result["stderr"]) == ("exited", 0, "", "")


async def test_a_shell_killed_by_a_signal_names_it(world: World) -> None:
    result = await run(world, "kill -9 $$")

    assert (result["state"], result["exitCode"], result["signal"]) == ("signalled", -1, "SIGKILL")


@pytest.mark.parametrize(
    "command",
    [
        "cat",
        "read x",
        "ed",
        "python3 -c 'input()'",
        ": </dev/tty",
        "git init -q r && cd r && git -c core.editor=vi -c user.name=a -c user.email=a@b commit --allow-empty",
    ],
)
async def test_what_reads_input_or_the_terminal_ends_at_once(world: World, command: str) -> None:
    with trio.fail_after(5):
        result = await run(world, command)

    assert result["state"] == "exited"


async def test_a_command_has_a_session_of_its_own_and_no_terminal(world: World) -> None:
    result = await run(world, "cut -d' ' -f1,5,6,7 /proc/$$/stat; readlink /proc/$$/fd/0; ls /proc/$$/fd | wc -l")

    stat, standard_input, descriptors = result["stdout"].split("\n")[:3]
    pid, group, session, terminal = stat.split()
    assert pid == group == session
    assert (terminal, standard_input) == ("0", "/dev/null")
    assert int(descriptors) == 3


async def test_the_environment_is_the_given_one_and_nothing_waits_for_a_person(world: World) -> None:
    result = await run(world, "env", directory="/tmp")

    names = dict(line.split("=", 1) for line in result["stdout"].splitlines())
    assert re.fullmatch("[0-9a-f]{32}", names.pop("_PEEN_CALL"))
    assert names == {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "EDITOR": "false",
        "VISUAL": "false",
        "GIT_EDITOR": "false",
        "PWD": "/tmp",
    }


async def test_the_directory_is_checked(world: World) -> None:
    world.file("sub/f", b"")

    assert (await run(world, "ls", directory="sub"))["stdout"] == "f\n"
    for path, text in (("sub/f", "not a directory: "), ("none", "not found: ")):
        assert (await world.refused("runCommand", command="ls", purpose="", directory=path)).startswith(text)


@pytest.mark.parametrize("timeout", ["5", "soon", "0s", "-1s", "1d"])
async def test_a_timeout_is_a_positive_duration(world: World, timeout: str) -> None:
    text = await world.refused("runCommand", command="touch ran", purpose="", timeout=timeout)

    assert text.startswith("validation failed: timeout: ")
    assert world.names() == []


async def test_no_timeout_is_too_long(world: World) -> None:
    result = await run(world, "echo done", timeout="2562047h")

    assert (result["state"], result["stdout"]) == ("exited", "done\n")


async def test_what_cannot_be_started_says_why(world: World) -> None:
    long = await world.refused("runCommand", command="#" * 200_000, purpose="")
    nul = await world.refused("runCommand", command="echo \0", purpose="")

    assert long.startswith("command start failed: the command is too long")
    assert nul == "validation failed: command: it cannot hold a NUL character"


async def test_many_lines_keep_the_first_the_last_and_the_count_of_the_rest(world: World) -> None:
    result = await run(world, "seq 200000; echo the last >&2; exit 7")

    text = result["stdout"]
    assert text.startswith("1\n2\n3\n")
    assert text.endswith("\n199999\n200000\n")
    shown = len(re.sub(r"\n\[\.\.\. \d+ bytes left out \.\.\.\]\n", "", text))
    assert shown + result["stdoutOmittedBytes"] == len("".join(f"{number}\n" for number in range(1, 200_001)))
    assert (result["exitCode"], result["stderr"]) == (7, "the last\n")


async def test_one_long_line_keeps_both_ends(world: World) -> None:
    result = await run(world, "printf start; head -c 2000000 /dev/zero | tr '\\0' x; printf end")

    assert result["stdout"].startswith("startxxx")
    assert result["stdout"].endswith("xxxend")
    assert 1_950_000 < result["stdoutOmittedBytes"] < 2_000_000


async def test_both_streams_are_cut_fairly(world: World) -> None:
    result = await run(world, "seq 100000; seq 100000 >&2; echo e >&2")

    sizes = len(result["stdout"]), len(result["stderr"])
    assert min(sizes) > 8000
    assert result["stdout"].endswith("100000\n")
    assert result["stderr"].endswith("100000\ne\n")


async def test_fifty_megabytes_of_nothing_readable_are_counted(world: World) -> None:
    result = await run(world, "head -c 50000000 /dev/zero; printf '\\377\\376' >&2")

    assert result["stdoutOmittedBytes"] > 49_900_000
    assert "\0" not in result["stdout"]
    assert result["stderr"] == "\ufffd\ufffd"


async def test_colours_and_redrawn_progress_are_removed(world: World) -> None:
    result = await run(world, r"printf '\033[32m10%%\r100%%\033[0m\n'")

    assert (
        result["stdout"]
        == "100%\n[... 3 bytes of redrawn lines left out; peen job output and the REST API have them ...]\n"
    )
    await until(lambda: world.desk.job(result["jobId"]).state == "exited")
    assert world.desk.printed(result["jobId"], STDOUT) == b"\x1b[32m10%\r100%\x1b[0m\n"


async def test_a_call_returns_although_a_descendant_holds_its_output(world: World, mailbox: Mailbox) -> None:
    with trio.fail_after(2):
        result = await run(world, "sleep 100 & echo $! > mailbox; echo started")
    pid = await mailbox.pid()
    try:
        assert (result["state"], result["exitCode"], result["stdout"]) == ("exited", 0, "started\n")
        assert f"left running: {pid} (sleep)" in result["note"]
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        await gone(pid)


async def test_a_descendant_may_go_on_writing_after_the_call_has_returned(world: World, mailbox: Mailbox) -> None:
    os.mkfifo(world.directory / "go")
    result = await run(world, "(read x < go; head -c 1000000 /dev/zero && echo written > mailbox) & echo started")

    assert "left running" in result["note"]
    async with await trio.open_file(world.directory / "go", "w") as go:
        await go.write("go\n")

    assert await mailbox.line() == "written"


async def test_at_the_time_limit_the_command_goes_on_as_a_job(world: World, mailbox: Mailbox) -> None:
    result = await run(world, "echo before; echo $$ > mailbox; sleep 100", timeout="300ms")
    pid = await mailbox.pid()

    assert (result["state"], result["running"], result["exitCode"]) == ("running", True, -1)
    assert (result["stdout"], result["pid"]) == ("before\n", pid)
    assert "Still running after 300ms. It was not ended" in result["note"]
    assert alive(pid)
    job = world.desk.job(result["jobId"])
    assert (job.state, job.is_detached, job.pid) == ("running", True, pid)


async def test_the_default_time_limit_is_the_configured_one(tmp_path: Path) -> None:
    world = World(tmp_path, default_command_timeout_ms=200, tool_timeout_ms=1)
    async with working(world):
        result = await run(world, "sleep 100")

    assert (result["state"], "200ms" in result["note"]) == ("running", True)


async def test_a_background_command_returns_at_once(world: World, mailbox: Mailbox) -> None:
    os.mkfifo(world.directory / "go")
    result = await run(world, "read x < go; echo got $x; echo done > mailbox", background=True)

    assert (result["running"], result["background"], result["stdout"]) == (True, True, "")
    assert "you are told when it ends" in result["note"]
    async with await trio.open_file(world.directory / "go", "w") as go:
        await go.write("on\n")
    assert await mailbox.line() == "done"
    await until(lambda: world.desk.job(result["jobId"]).state == "exited")
    assert world.desk.printed(result["jobId"], STDOUT) == b"got on\n"
    assert [notice["data"]["exitCode"] for notice in world.desk.notices()] == [0]


async def test_a_cancelled_command_is_recorded_with_its_signal_and_is_no_news(world: World, mailbox: Mailbox) -> None:
    await cancelled(world, mailbox, "echo $$ > mailbox; sleep 100", pids=1)

    (job,) = world.desk.jobs()
    assert (job.state, job.exit_code) == ("signalled", -1)
    kept = jobs.signals(world.desk.db.reader, job.no, limit=10, offset=0)
    assert [(row.signal, row.accepted) for row in kept] == [("stop", True)]
    assert world.desk.notices() == []


async def test_a_row_is_there_before_the_process_is(world: World) -> None:
    world.desk.link.hold()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(world.call, "runCommand", command="touch ran", purpose=""))
        await until(lambda: len(world.desk.link.asked) == 1)
        assert not (world.directory / "ran").exists()
        world.desk.link.go_on()

    assert (world.directory / "ran").exists()


async def test_a_command_that_is_stopped_before_its_row_is_stored_never_starts(world: World) -> None:
    world.desk.link.hold()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(world.call, "runCommand", command="touch ran", purpose=""))
        await until(lambda: len(world.desk.link.asked) == 1)
        nursery.cancel_scope.cancel()
        world.desk.link.go_on()

    assert not (world.directory / "ran").exists()
    assert [job.state for job in world.desk.jobs()] == ["signalled"]


async def test_a_command_of_a_turn_that_was_taken_away_never_starts_and_its_result_says_so(world: World) -> None:
    world.desk.link.hold()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def call() -> None:
            text = await world.refused("runCommand", command="touch ran", purpose="")
            assert text == "failed: nothing was started: the turn was stopped or taken away before"

        await until(lambda: len(world.desk.link.asked) == 1)
        await world.desk.db.write(lambda tx: tx.execute("UPDATE execution SET state = 'paused'"))
        world.desk.link.go_on()

    assert not (world.directory / "ran").exists()
    assert world.desk.jobs() == []


async def test_a_cancelled_command_is_ended_with_its_children(world: World, mailbox: Mailbox) -> None:
    pids, took_s = await cancelled(world, mailbox, "echo $$ > mailbox; sleep 100 & echo $! > mailbox; wait", pids=2)

    assert not any(map(alive, pids))
    assert took_s < 2


async def test_a_command_that_ignores_the_request_is_killed(world: World, mailbox: Mailbox) -> None:
    pids, took_s = await cancelled(world, mailbox, "trap '' TERM; echo $$ > mailbox; sleep 100; sleep 100", pids=1)

    assert not any(map(alive, pids))
    assert 2.9 < took_s < 4


async def test_descendants_that_left_group_and_session_are_ended_too(world: World, mailbox: Mailbox) -> None:
    world.file("stay", b"echo $$ > mailbox; exec sleep 100")
    world.file("stubborn", b"trap '' TERM; echo $$ > mailbox; exec sleep 100")
    command = """
        setsid sh stay &
        (setsid sh stay &)
        env -i setsid sh stay &
        setsid sh stubborn &
        kill -STOP $$
    """

    pids, took_s = await cancelled(world, mailbox, command, pids=4)

    assert len(set(pids)) == 4
    assert not any(map(alive, pids))
    assert took_s < 4.5


async def test_cancelling_one_command_leaves_the_others_alone(world: World, mailbox: Mailbox) -> None:
    other: list[dict[str, Any]] = []
    os.mkfifo(world.directory / "go")

    async def call() -> None:
        other.append(await run(world, "echo $$ > mailbox; read x < go; echo got $x"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        pid = await mailbox.pid()
        await cancelled(world, mailbox, "echo $$ > mailbox; sleep 100", pids=1)
        assert alive(pid)
        async with await trio.open_file(world.directory / "go", "w") as go:
            await go.write("on\n")

    assert other[0]["stdout"] == "got on\n"


async def test_no_descriptor_and_no_process_is_left_after_many_commands(world: World) -> None:
    await run(world, "true")
    before = sorted(os.listdir("/proc/self/fd"))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(run, world, f"echo {number}; exit {number}")
    with contextlib.suppress(trio.TooSlowError), trio.fail_after(0.1):
        await world.call("runCommand", command="sleep 100", purpose="")

    assert sorted(os.listdir("/proc/self/fd")) == before


async def test_the_mark_of_each_call_is_its_own(world: World) -> None:
    marks = {(await run(world, "echo $_PEEN_CALL"))["stdout"] for _ in range(3)}

    assert len(marks) == 3


async def test_the_outcome_is_json_within_the_limit_whatever_is_printed(tmp_path: Path) -> None:
    world = World(tmp_path, max_tool_result_tokens=500)
    world.file("noise", random.Random(1).randbytes(30_000))
    async with working(world):
        result = await run(world, "cat noise; cat noise >&2")

    assert result["stdoutOmittedBytes"] > 20_000
    assert msgspec.json.encode(result)
