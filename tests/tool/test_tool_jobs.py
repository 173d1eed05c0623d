"""Jobs as the model handles them: listed, read by cursor, waited for, signalled."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio
from tool_world import Mailbox, World, alive, gone, run, until, working

from peen.session.outputroom import OutputRoom
from peen.wire.jobcalls import DetachJob, EndJob
from peen.wire.joboutput import STDERR, STDOUT


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    async with working(world):
        yield world


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Mailbox]:
    with Mailbox(tmp_path / "mailbox") as mailbox:
        yield mailbox


async def started(world: World, command: str) -> str:
    """The id of a background job."""
    job_id: str = (await run(world, command, background=True))["jobId"]
    return job_id


async def waited(world: World, job_id: str, **arguments: Any) -> dict[str, Any]:
    with trio.fail_after(20):
        return await world.ok("waitJob", jobId=job_id, **arguments)


async def let_go(world: World) -> None:
    async with await trio.open_file(world.directory / "go", "w") as go:
        await go.write("on\n")


async def test_a_job_is_waited_for_and_tells_how_it_ended(world: World) -> None:
    job_id = await started(world, "sleep 0.2; echo out; echo err >&2; exit 3")

    result = await waited(world, job_id)

    assert (result["state"], result["exitCode"], result["running"]) == ("exited", 3, False)
    assert (result["stdout"], result["stderr"]) == ("out\n", "err\n")
    assert 150 <= result["durationMs"] < 20_000
    (notice,) = world.desk.notices()
    assert (notice["type"], notice["data"]["exitCode"]) == ("job.exited", 3)


async def test_a_job_that_ends_while_its_handle_is_stored_is_told_without_contradiction(world: World) -> None:
    os.mkfifo(world.directory / "go")
    world.desk.link.hold_from(DetachJob)
    told: list[dict[str, Any]] = []

    async def call() -> None:
        told.append(await run(world, "read x < go; echo out; exit 3", background=True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await until(lambda: world.desk.link.of(DetachJob) != [])
        await let_go(world)
        await until(lambda: world.desk.link.of(EndJob) != [])
        world.desk.link.go_on()

    (result,) = told
    assert (result["state"], result["exitCode"], result["stdout"]) == ("exited", 3, "out\n")
    assert "running" not in result
    assert "nextStdoutCursor" not in result
    assert result["note"].startswith("It has ended, and nothing of it runs any more. The notice")
    assert (await waited(world, result["jobId"]))["exitCode"] == 3
    assert [notice["data"]["exitCode"] for notice in world.desk.notices()] == [3]


async def test_a_wait_that_is_over_leaves_the_job_alone(world: World, mailbox: Mailbox) -> None:
    job_id = await started(world, "echo $$ > mailbox; sleep 100")
    pid = await mailbox.pid()

    result = await waited(world, job_id, timeout="100ms")

    assert (result["state"], result["running"], result["exitCode"]) == ("running", True, -1)
    assert result["note"] == "It still runs after a wait of 100ms."
    assert alive(pid)


async def test_a_wait_that_is_cancelled_leaves_the_job_alone(world: World, mailbox: Mailbox) -> None:
    job_id = await started(world, "echo $$ > mailbox; sleep 100")
    pid = await mailbox.pid()

    with trio.move_on_after(0.1):
        await waited(world, job_id)

    assert alive(pid)
    assert world.desk.job(job_id).state == "running"


async def test_output_is_read_as_it_comes_behind_a_cursor(world: World, mailbox: Mailbox) -> None:
    os.mkfifo(world.directory / "go")
    job_id = await started(world, "echo one; printf tw; echo up > mailbox; read x < go; echo o; echo e >&2")
    assert await mailbox.line() == "up"

    first = await world.ok("readJobOutput", jobId=job_id)
    await let_go(world)
    await waited(world, job_id)
    rest = await world.ok(
        "readJobOutput",
        jobId=job_id,
        stdoutCursor=first["nextStdoutCursor"],
        stderrCursor=first["nextStderrCursor"],
    )

    assert (first["stdout"], first["stderr"], first["state"]) == ("one\ntw", "", "running")
    assert (rest["stdout"], rest["stderr"], rest["state"]) == ("o\n", "e\n", "exited")
    assert world.desk.printed(job_id, STDOUT) == b"one\ntwo\n"


async def test_a_command_that_outlived_its_time_is_read_on_behind_what_it_returned(world: World) -> None:
    os.mkfifo(world.directory / "go")
    result = await run(world, "echo before; read x < go; echo after", timeout="300ms")

    await let_go(world)
    rest = await waited(
        world,
        result["jobId"],
        stdoutCursor=result["nextStdoutCursor"],
        stderrCursor=result["nextStderrCursor"],
    )

    assert (result["stdout"], rest["stdout"]) == ("before\n", "after\n")


async def test_one_stream_and_so_many_lines_are_read_if_that_is_wanted(world: World) -> None:
    job_id = (await run(world, "seq 10; seq 20 >&2"))["jobId"]

    page = await world.ok("readJobOutput", jobId=job_id, stream="stderr", maxLines=5)

    assert (page["stderr"], page["more"]) == ("1\n2\n3\n4\n5\n", True)
    assert "stdout" not in page


async def test_everything_that_a_command_printed_can_be_paged_through(world: World) -> None:
    job_id = (await run(world, "seq 20000"))["jobId"]

    lines, cursor, more = "", 0, True
    while more:
        page = await world.ok("readJobOutput", jobId=job_id, stdoutCursor=cursor)
        lines, cursor, more = lines + page["stdout"], page["nextStdoutCursor"], page.get("more", False)

    assert lines == "".join(f"{number}\n" for number in range(1, 20_001))


async def test_whoever_reads_a_job_is_told_what_is_not_stored_and_how_it_ended_stays(world: World) -> None:
    world.desk.limit(OutputRoom(Path("/none"), min_free_bytes=0, max_job_bytes=100, now_s=trio.current_time))
    os.mkfifo(world.directory / "go")
    job_id = await started(world, "seq 1000; read x < go; seq 1000 >&2; exit 7")
    await until(lambda: world.desk.job(job_id).unstored_bytes > 0)

    running = await world.ok("readJobOutput", jobId=job_id)
    (listed,) = (await world.ok("listJobs"))["jobs"]
    await let_go(world)
    ended = await waited(world, job_id)

    words = "Not all of its output can be read: what it printed behind number 36 is not stored: "
    size = len("".join(f"{number}\n" for number in range(1, 1001)))
    kept = len("".join(f"{number}\n" for number in range(1, 37)))
    assert (running["state"], running["note"].startswith(words)) == ("running", True)
    assert f"({size - kept} bytes so far)" in running["note"]
    assert (listed["state"], listed["unstoredBytes"]) == ("running", size - kept)
    assert listed["outputMissing"] in running["note"]
    assert (ended["state"], ended["exitCode"]) == ("exited", 7)
    assert f"({2 * size - kept} bytes so far)" in ended["note"]
    assert ended["stdout"] == "".join(f"{number}\n" for number in range(1, 37))
    assert ended["stderr"] == ""


@pytest.mark.parametrize(("tokens", "max_job_bytes"), [(16, 0), (256, 0), (1000, 0), (256, 30_000), (1000, 30_000)])
async def test_a_page_keeps_to_the_limit_whatever_was_printed(tmp_path: Path, tokens: int, max_job_bytes: int) -> None:
    world = World(tmp_path, max_tool_result_tokens=tokens)
    async with working(world):
        room = OutputRoom(Path("/none"), min_free_bytes=0, max_job_bytes=max_job_bytes, now_s=trio.current_time)
        world.desk.limit(room)
        await run(world, "head -c 40000 /dev/urandom; printf '\"%.0s' $(seq 3000)")
        job_id = str(UUID(bytes=world.desk.jobs()[0].id))

        outcome = await world.call("readJobOutput", jobId=job_id)

    assert not outcome.is_error
    assert len(outcome.content.encode()) <= tokens * 4


@pytest.mark.parametrize(("signal", "within_s"), [("stop", 3.0), ("kill", 3.0)])
async def test_a_signalled_job_ends_with_its_tree(world: World, mailbox: Mailbox, signal: str, within_s: float) -> None:
    job_id = await started(world, "setsid sh -c 'echo $$ > mailbox; exec sleep 100' & echo $$ > mailbox; wait")
    pids = [await mailbox.pid(), await mailbox.pid()]

    with trio.fail_after(within_s):
        result = await world.ok("signalJob", jobId=job_id, signal=signal)

    assert result == {"jobId": job_id, "found": True, "signal": signal, "state": "signalled"}
    assert not any(map(alive, pids))
    (notice,) = world.desk.notices()
    assert (notice["type"], notice["data"]["exitCode"]) == ("job.signalled", -1)
    again = await world.ok("signalJob", jobId=job_id, signal=signal)
    assert again["state"] == "signalled"
    assert len(world.desk.notices()) == 1


async def test_kill_does_not_wait_for_a_job_that_ignores_stop(world: World, mailbox: Mailbox) -> None:
    job_id = await started(world, "trap '' TERM; echo $$ > mailbox; sleep 100; sleep 100")
    pid = await mailbox.pid()

    assert (await world.ok("signalJob", jobId=job_id, signal="stop"))["state"] == "running"
    assert (await world.ok("signalJob", jobId=job_id, signal="kill"))["state"] == "signalled"

    assert not alive(pid)


async def test_a_job_that_catches_stop_may_exit_in_its_own_way(world: World, mailbox: Mailbox) -> None:
    job_id = await started(world, "trap 'echo bye; exit 5' TERM; echo $$ > mailbox; sleep 100 & wait")
    await mailbox.pid()

    await world.ok("signalJob", jobId=job_id, signal="stop")
    result = await waited(world, job_id)

    assert (result["state"], result["exitCode"], result["stdout"]) == ("exited", 5, "bye\n")


async def test_unknown_jobs_are_no_errors(world: World) -> None:
    for job_id in ("nonsense", "4c2b5d1e-8f3a-4b6c-9d7e-1a2b3c4d5e6f"):
        for tool, arguments in (("readJobOutput", {}), ("waitJob", {}), ("signalJob", {"signal": "stop"})):
            result = await world.ok(tool, jobId=job_id, **arguments)
            assert result["found"] is False
            assert "listJobs" in result["note"]


async def test_jobs_are_listed_oldest_first_without_commands_that_ended_in_their_call(world: World) -> None:
    os.mkfifo(world.directory / "go")
    first = await started(world, "true")
    await waited(world, first)
    await run(world, "true")
    second = await started(world, "read x < go")

    every, running = await world.ok("listJobs"), await world.ok("listJobs", state="running")

    assert [(job["jobId"], job["state"]) for job in every["jobs"]] == [(first, "exited"), (second, "running")]
    assert [job["jobId"] for job in running["jobs"]] == [second]
    assert every["truncated"] is False
    shown = running["jobs"][0]
    assert (shown["command"], shown["purpose"], shown["directory"]) == ("read x < go", "a test", str(world.directory))
    await let_go(world)


async def test_a_long_list_keeps_the_newest_jobs(tmp_path: Path) -> None:
    world = World(tmp_path, max_tool_result_tokens=500)
    async with working(world):
        ids = [await started(world, f"true {'x' * 300}") for _ in range(6)]
        listed = await world.ok("listJobs")

    assert listed["truncated"] is True
    assert [job["jobId"] for job in listed["jobs"]] == ids[-len(listed["jobs"]) :]


async def test_what_a_shell_left_running_is_a_job_that_ends_with_the_last_of_it(world: World, mailbox: Mailbox) -> None:
    os.mkfifo(world.directory / "go")
    result = await run(world, "(read x < go; echo later; sleep 0.3) & echo $! > mailbox; echo started; exit 4")
    pid = await mailbox.pid()
    assert (result["state"], result["exitCode"], result["running"]) == ("exited", 4, True)
    assert f"left running: {pid} (sh)" in result["note"]
    assert world.desk.job(result["jobId"]).state == "running"

    await let_go(world)
    rest = await waited(world, result["jobId"], stdoutCursor=result["nextStdoutCursor"])

    assert (rest["state"], rest["exitCode"], rest["stdout"]) == ("exited", 4, "later\n")
    assert not alive(pid)
    assert [notice["type"] for notice in world.desk.notices()] == ["job.exited"]


async def test_what_ends_right_behind_its_shell_makes_no_job(world: World) -> None:
    result = await run(world, "(sleep 0.03 &) >/dev/null 2>&1; sleep 0.03 & echo started")

    assert (result["state"], result["stdout"], "running" in result) == ("exited", "started\n", False)
    await until(lambda: world.desk.job(result["jobId"]).state == "exited")
    assert world.desk.notices() == []


async def test_a_descendant_that_prints_on_and_on_does_not_hold_the_call(world: World) -> None:
    with trio.fail_after(3):
        result = await world.ok("runCommand", command="yes & echo started >&2", purpose="")

    assert (result["stderr"], result["running"]) == ("started\n", True)
    ended = await world.ok("signalJob", jobId=result["jobId"], signal="kill")
    assert ended["state"] == "signalled"


async def test_the_end_of_a_command_that_outlived_its_call_waits_for_no_reader(world: World, mailbox: Mailbox) -> None:
    job_id = await started(world, "echo $$ > mailbox; seq 100000; echo last >&2")
    await mailbox.pid()

    await until(lambda: world.desk.job(job_id).state == "exited")

    assert world.desk.printed(job_id, STDOUT).endswith(b"\n100000\n")
    assert world.desk.printed(job_id, STDERR) == b"last\n"


async def test_ending_all_jobs_records_each_of_them(world: World, mailbox: Mailbox) -> None:
    ids = [await started(world, "echo $$ > mailbox; sleep 100") for _ in range(3)]
    pids = [await mailbox.pid() for _ in ids]

    with trio.fail_after(5):
        await world.jobs.end_all()

    assert not any(map(alive, pids))
    assert {world.desk.job(job_id).state for job_id in ids} == {"signalled"}
    assert [notice["type"] for notice in world.desk.notices()] == ["job.signalled"] * 3


async def test_a_worker_that_lost_its_link_ends_its_jobs_and_is_not_kept_by_them(
    world: World, mailbox: Mailbox
) -> None:
    job_id = await started(world, "echo $$ > mailbox; yes")
    pid = await mailbox.pid()

    world.desk.link.lost = True

    await gone(pid)
    with trio.fail_after(5):
        await until(lambda: world.jobs.live(job_id) is None)
    assert world.desk.job(job_id).state == "running"  # the controller ends it with its generation


async def test_a_reader_that_the_store_keeps_waiting_makes_the_command_wait(world: World, mailbox: Mailbox) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(world.call, "runCommand", command="echo $$ > mailbox; yes | head -c 3000000", purpose="")
        )
        await mailbox.pid()
        world.desk.link.hold()
        await trio.sleep(0.3)
        asked = len(world.desk.link.asked)
        await trio.sleep(0.3)
        assert len(world.desk.link.asked) == asked
        world.desk.link.go_on()

    (job,) = world.desk.jobs()
    await until(lambda: world.desk.jobs()[0].state == "exited")
    assert world.desk.jobs()[0].byte_count == 3_000_000
    assert job.line_count <= 1_500_000
