"""Whose process it is, when it has left everything behind that would tell; with real ones, as in a worker."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from tool_world import Mailbox, World, alive, cancelled, run, until, working

from peen.brand import Brand
from peen.patience import COMMAND_END_S, KILL_GRACE_S, STOP_QUIET_S, TERM_GRACE_S
from peen.tool import ending
from peen.tool.children import CHILDREN
from peen.tool.ending import end_family
from peen.tool.family import FAMILIES, Family
from peen.tool.process import Process, spawn
from peen.tool.tree import ProcessRow, children_of, read_row

SILENT = ">/dev/null 2>&1"
# The shell between is gone when the sleep is reported, and with it parent, group, session and environment.
ESCAPE = (
    'env -i setsid sh -c \'trap "" TERM; '
    f"(sleep 100 {SILENT} & echo $! > escaped); cat escaped > mailbox' {SILENT} </dev/null"
)
# Its limits are as they were before the command, so that it has no brand either.
UNBRANDED = (
    f'{sys.executable} -c "import os, resource, sys; resource.setrlimit({Brand.COMMAND.limit}, (-1, -1)); '
    'os.execvp(sys.argv[1], sys.argv[1:])"'
)
NAMELESS = ESCAPE.replace("env -i", f"env -i {UNBRANDED}")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    async with working(world):
        yield world


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Mailbox]:
    with Mailbox(tmp_path / "mailbox") as mailbox:
        yield mailbox


@pytest.fixture
async def worker(nursery: trio.Nursery) -> AsyncIterator[None]:
    """Orphans become children of this process and are reaped, as in a worker."""
    before = set(children_of("self"))
    set_child_subreaper = 36
    libc = ctypes.CDLL(None)
    libc.prctl(set_child_subreaper, 1, 0, 0, 0)
    await nursery.start(CHILDREN.reap)
    yield
    await until(lambda: set(children_of("self")) <= before)
    libc.prctl(set_child_subreaper, 0, 0, 0, 0)


def is_adopted(pid: int) -> bool:
    row = read_row(pid)
    return row is not None and row.parent == os.getpid()


def name_of(pid: int) -> str | None:
    row = read_row(pid)
    return None if row is None else row.name


def end(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def family_of(command: str, directory: Path) -> Family:
    def start() -> Process:
        environment = {"PATH": os.environ["PATH"]}
        return spawn(["/bin/sh", "-c", command], directory=directory, environment=environment, mark=os.urandom(8).hex())

    return FAMILIES.start(start)


async def closed(family: Family) -> None:
    await end_family(family)
    family.process.close()
    family.close()


async def test_a_descendant_that_hides_is_still_named(world: World, worker: None, mailbox: Mailbox) -> None:
    os.mkfifo(world.directory / "hidden")
    hider = f"setsid sh -c 'echo $$ > mailbox; echo > hidden; exec sleep 100' {SILENT}"

    result = await run(world, f"{hider} & read x < hidden")

    pid = await mailbox.pid()
    assert f"{pid} (" in result["note"]
    end(pid)


async def test_orphans_of_a_stopped_command_are_ended_and_reaped(world: World, worker: None, mailbox: Mailbox) -> None:
    pids, _ = await cancelled(world, mailbox, "(setsid sh -c 'echo $$ > mailbox; exec sleep 100' &); sleep 100", pids=1)

    await until(lambda: all(read_row(pid) is None for pid in pids))


async def test_what_left_parent_session_and_environment_is_ended_with_its_command(
    world: World, worker: None, mailbox: Mailbox
) -> None:
    pids, took_s = await cancelled(world, mailbox, f"{ESCAPE}; sleep 100", pids=1)

    assert not any(map(alive, pids))
    assert 2.9 < took_s < 4.5, "it ignores the request to end"


async def test_it_is_ended_with_its_job_too(world: World, worker: None, mailbox: Mailbox) -> None:
    result = await run(world, f"{ESCAPE}; sleep 100", timeout="700ms")
    pid = await mailbox.pid()
    assert (result["state"], alive(pid)) == ("running", True)

    await world.jobs.end_all()

    assert not alive(pid)


async def test_it_is_named_and_goes_on_when_the_command_ends_by_itself(
    world: World, worker: None, mailbox: Mailbox
) -> None:
    first = await run(world, ESCAPE)
    pid = await mailbox.pid()

    second = await run(world, "true")
    await cancelled(world, mailbox, "echo $$ > mailbox; sleep 100", pids=1)

    assert f"left running: {pid} (" in first["note"]  # it may not have become a sleep yet
    assert "note" not in second
    assert alive(pid)
    end(pid)


async def test_what_an_earlier_command_left_behind_is_not_a_later_ones_whatever_it_starts(
    world: World, worker: None, mailbox: Mailbox
) -> None:
    os.mkfifo(world.directory / "go")
    left = f"env -i setsid sh -c 'read x < go; sleep 100 {SILENT} & echo $! > mailbox' {SILENT} & sleep 0.01"
    first = await run(world, left)

    async def let_it_go_on() -> None:
        async with await trio.open_file(world.directory / "go", "w") as go:
            await go.write("on\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(let_it_go_on)
        (pid, *_), _ = await cancelled(world, mailbox, "sleep 100", pids=1)

    assert "left running" in first["note"]
    assert alive(pid)
    end(pid)


@pytest.mark.parametrize(
    "orphan",
    [
        f"setsid sh -c 'sleep 100 & echo $! > mailbox' {SILENT}",
        "env -i setsid sh -c 'sleep 100 & echo $! > mailbox'",
        f"env -i sh -c 'sleep 100 & echo $! > mailbox' {SILENT}",
    ],
    ids=["by its mark", "by its output", "by its session"],
)
async def test_the_end_of_one_command_does_not_touch_what_another_started(
    world: World, worker: None, mailbox: Mailbox, orphan: str
) -> None:
    os.mkfifo(world.directory / "go")
    other: list[dict[str, Any]] = []

    async def call() -> None:
        other.append(await run(world, f"{orphan}; read x < go"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        pid = await mailbox.pid()
        await until(lambda: is_adopted(pid))
        limited = await run(world, "sleep 100", timeout="100ms")
        short = await run(world, "true")
        async with await trio.open_file(world.directory / "go", "w") as go:
            await go.write("on\n")

    assert (limited["state"], alive(pid)) == ("running", True)
    assert "note" not in short
    assert f"{pid} (" in other[0]["note"]
    end(pid)


async def test_what_was_seen_below_a_command_stays_its_own(world: World, worker: None, mailbox: Mailbox) -> None:
    os.mkfifo(world.directory / "go")
    hidden = f"env -i setsid sh -c 'echo $$ > mailbox; read x < go; sleep 100 & echo $! > mailbox' {SILENT}"
    one, other = family_of(f"{hidden}; sleep 100", world.directory), family_of("sleep 100", world.directory)
    seen = await mailbox.pid()
    assert seen in one.look()
    async with await trio.open_file(world.directory / "go", "w") as go:
        await go.write("on\n")
    pid = await mailbox.pid()
    await until(lambda: is_adopted(pid))

    await closed(other)
    assert alive(pid)
    await closed(one)
    assert not alive(pid)


WAITING = "exec sleep 100"


async def two_families(world: World, mailbox: Mailbox, escape: str) -> tuple[Family, Family, int]:
    """Two running commands, and the pid of what the first has started and nobody has seen below it."""
    one, other = family_of(f"{escape}; {WAITING}", world.directory), family_of(WAITING, world.directory)
    pid = await mailbox.pid()
    await until(lambda: is_adopted(pid) and all(name_of(each.process.pid) == "sleep" for each in (one, other)))
    return one, other, pid


async def shell_killed(family: Family) -> list[ProcessRow]:
    """What a command leaves running whose shell is killed."""
    end(family.process.pid)
    await family.process.wait()
    left = await family.left_running(output_held=False)
    family.process.close()
    family.close()
    return left


async def test_a_brand_tells_whose_it_is_beside_other_commands(world: World, mailbox: Mailbox, worker: None) -> None:
    one, other, pid = await two_families(world, mailbox, ESCAPE)

    await closed(other)
    assert alive(pid)
    left = await shell_killed(one)

    assert [(row.pid, row.is_doubtful) for row in left] == [(pid, False)]
    end(pid)


async def test_what_may_be_anybodys_is_ended_with_either_command(world: World, mailbox: Mailbox, worker: None) -> None:
    one, other, pid = await two_families(world, mailbox, NAMELESS)

    await closed(other)

    assert not alive(pid)
    assert alive(one.process.pid)
    await closed(one)


async def test_what_may_be_anybodys_is_not_ended_by_a_signal_to_a_job(
    world: World, mailbox: Mailbox, worker: None
) -> None:
    one = await run(world, f"{NAMELESS}; {WAITING}", background=True)
    other = await run(world, WAITING, background=True)
    pid = await mailbox.pid()
    await until(lambda: is_adopted(pid))

    ended = [await world.ok("signalJob", jobId=job["jobId"], signal="kill") for job in (other, one)]

    assert [each["state"] for each in ended] == ["signalled", "signalled"]
    assert alive(pid)
    end(pid)


async def test_what_may_be_anybodys_stays_doubtful_when_only_one_command_is_left(
    world: World, mailbox: Mailbox, worker: None
) -> None:
    one, other, pid = await two_families(world, mailbox, NAMELESS)

    left = [await shell_killed(one)]
    later = family_of(WAITING, world.directory)
    left += [await shell_killed(other), await shell_killed(later)]

    assert [[(row.pid, row.is_doubtful) for row in rows] for rows in left] == [[(pid, True)], [(pid, True)], []]
    end(pid)


async def test_what_may_be_anybodys_is_told_and_holds_no_job_up(world: World, mailbox: Mailbox, worker: None) -> None:
    os.mkfifo(world.directory / "go")
    job = await run(world, "read x < go; exit 3", background=True)

    left = await run(world, NAMELESS)
    await run(world, "true")
    async with await trio.open_file(world.directory / "go", "w") as go:
        await go.write("on\n")
    ended = await world.ok("waitJob", jobId=job["jobId"])

    pid = await mailbox.pid()
    assert (left["state"], left.get("running", False)) == ("exited", False)
    assert f"may have left running: {pid} (" in left["note"]
    assert (ended["state"], ended["exitCode"]) == ("exited", 3)
    assert alive(pid)
    end(pid)


async def test_what_is_only_one_commands_is_left_by_it_without_a_brand(
    world: World, mailbox: Mailbox, worker: None
) -> None:
    first = await run(world, NAMELESS)

    pid = await mailbox.pid()
    assert first["note"].startswith(f"The shell has exited, but it left running: {pid} (")
    assert first["running"]
    end(pid)


async def test_no_dead_process_stays_whenever_it_dies(world: World, worker: None) -> None:
    before = set(children_of("self"))

    for number in range(10):
        detached = f"(setsid sh -c 'sleep 0.{number}; sleep 0.0{number} & exit' {SILENT} &)"
        await run(world, f"{detached}; (sleep 0.01 &); exit 0")

    await until(lambda: set(children_of("self")) <= before)


async def test_the_reaper_takes_no_exit_status_that_somebody_waits_for(
    world: World, worker: None, mailbox: Mailbox
) -> None:
    ours = family_of("exit 7", world.directory)
    anybodys = subprocess.Popen(["/bin/sh", "-c", "exit 5"])  # noqa: ASYNC220 - what a library might do
    for pid in (ours.process.pid, anybodys.pid):
        await until(lambda pid=pid: not alive(pid))  # type: ignore[misc]
    await run(world, f"(setsid sh -c 'echo $$ > mailbox' {SILENT} &)")
    orphan = await mailbox.pid()
    await until(lambda: read_row(orphan) is None)

    assert await ours.process.wait() == 7
    assert anybodys.wait() == 5
    ours.process.close()
    ours.close()


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of programs that may not be signalled, as if they were of another account."""
    send = ending.send

    def refuse(row: ProcessRow, descriptor: int, number: signal.Signals) -> None:
        if row.name == "tail":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        send(row, descriptor, number)

    monkeypatch.setattr(ending, "send", refuse)
    return "tail"


async def test_a_stop_gives_up_what_it_may_not_signal_and_names_it(
    world: World, mailbox: Mailbox, worker: None, foreign: str
) -> None:
    other = await run(world, "sleep 100", background=True)
    command = (
        f"{foreign} -f /dev/null & until grep -q tail /proc/$!/comm; do :; done; echo $! > mailbox; exec sleep 100"
    )

    (pid,), took_s = await cancelled(world, mailbox, command, pids=1)

    assert took_s < COMMAND_END_S
    assert alive(pid)
    stopped, going_on = world.desk.jobs()
    assert (stopped.state, going_on.state) == ("failed", "running")
    assert f"{pid} ({foreign}): of another account" in stopped.failure_detail
    (notice,) = world.desk.notices()
    assert f"{pid} ({foreign}): of another account" in notice["summary"]
    assert str(stopped.id.hex()) == notice["data"]["jobId"].replace("-", "")
    assert str(going_on.id.hex()) == other["jobId"].replace("-", "")
    end(pid)


async def test_a_signal_to_a_job_tells_what_it_could_not_end(
    world: World, mailbox: Mailbox, worker: None, foreign: str
) -> None:
    job = await run(world, f"{foreign} -f /dev/null & echo $! > mailbox; exec sleep 100", background=True)
    pid = await mailbox.pid()
    await until(lambda: name_of(pid) == foreign)

    result = await world.ok("signalJob", jobId=job["jobId"], signal="kill")

    assert result["state"] == "failed"
    assert f"{pid} ({foreign}): of another account" in result["note"]
    end(pid)


async def test_what_outlives_sigkill_is_given_up_within_the_time_that_others_wait(
    world: World, mailbox: Mailbox, worker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = ending.send

    def ignore(row: ProcessRow, descriptor: int, number: signal.Signals) -> None:
        if row.name != "tail":  # that one hangs in the kernel
            send(row, descriptor, number)

    monkeypatch.setattr(ending, "send", ignore)
    command = "tail -f /dev/null & until grep -q tail /proc/$!/comm; do :; done; echo $! > mailbox; exec sleep 100"

    (pid,), took_s = await cancelled(world, mailbox, command, pids=1)

    assert TERM_GRACE_S + KILL_GRACE_S <= took_s < STOP_QUIET_S
    (stopped,) = world.desk.jobs()
    assert stopped.state == "failed"
    assert f"{pid} (tail): not ended by SIGKILL yet" in stopped.failure_detail
    end(pid)
