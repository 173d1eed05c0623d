"""Simulated processes are what a job takes them for: the same is asked of them and of real ones."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from sim_model import Ledger
from sim_programs import PIPE_BYTES, SimPrograms
from trio.testing import MockClock

from peen.job.program import Printed, Program, start_shell
from peen.tool.jobs import CommandOrder

BOUND_S = 10.0


@dataclass(frozen=True)
class Host:
    """Starts a command that is written in both ways."""

    nursery: trio.Nursery
    is_real: bool

    def start(self, shell: str, steps: str) -> Program:
        order = CommandOrder(
            command=shell if self.is_real else steps, purpose="", directory=Path("/"),
            environment={"PATH": os.environ["PATH"]}, capture_bytes=1000,
        )  # fmt: skip
        return start_shell(order, "0" * 32) if self.is_real else SimPrograms(self.nursery, Ledger()).start(order, "")


@pytest.fixture(params=[True, False], ids=["real", "simulated"])
def host(request: pytest.FixtureRequest, nursery: trio.Nursery) -> Host:
    return Host(nursery, request.param)


async def whole(stream: Printed) -> bytes:
    """Everything until the stream ends."""
    data = b""
    with trio.fail_after(BOUND_S):
        while part := await stream.receive_some(1000):
            data += part
    return data


async def test_both_streams_are_read_to_their_end_and_the_status_is_kept(host: Host) -> None:
    program = host.start("echo one; echo two >&2; printf three; exit 3", "out one; err two; part three; exit 3")

    assert (await whole(program.stdout), await whole(program.stderr)) == (b"one\nthree", b"two\n")
    assert await program.wait() == 3
    assert program.poll() == 3
    assert list(await program.left_running(output_held=False)) == []
    program.close()


async def test_a_command_that_runs_has_no_status(host: Host) -> None:
    program = host.start("echo one; sleep 100", "out one; forever")

    assert await program.stdout.receive_some(10) == b"one\n"
    assert program.poll() is None
    await program.end(grace_s=0, kill_s=BOUND_S, doubtful=True)
    program.close()


async def test_what_a_shell_leaves_holds_both_streams_until_it_ends(host: Host) -> None:
    program = host.start("(sleep 0.2; echo late >&2) & exit 4", "leave sleep 0.2, err late; exit 4")

    assert await program.wait() == 4
    left = await program.left_running(output_held=True)
    assert program.pid not in [row.pid for row in left]
    for row in left:
        await program.outlast(row)

    assert left
    assert (await whole(program.stdout), await whole(program.stderr)) == (b"", b"late\n")
    assert list(await program.left_running(output_held=False)) == []
    program.close()


async def test_a_command_that_obeys_ends_by_term(host: Host) -> None:
    program = host.start("echo one; exec sleep 100", "out one; forever")
    await program.stdout.receive_some(10)

    await program.end(grace_s=BOUND_S, kill_s=BOUND_S, doubtful=True)

    assert await program.wait() == -signal.SIGTERM
    assert await whole(program.stdout) == b""
    program.close()


async def test_a_command_that_does_not_obey_is_killed_with_what_it_left(host: Host) -> None:
    shell = "trap '' TERM; sleep 100 & echo one; while :; do sleep 0.1; done"
    program = host.start(shell, "trap 60; leave trap 60, forever; out one; forever")
    await program.stdout.receive_some(10)

    await program.end(grace_s=0.3, kill_s=BOUND_S, doubtful=True)

    assert await program.wait() == -signal.SIGKILL
    assert list(await program.left_running(output_held=False)) == []
    program.close()


async def test_the_end_is_not_to_be_cancelled(host: Host) -> None:
    program = host.start("echo one; sleep 100", "out one; forever")
    await program.stdout.receive_some(10)

    with trio.CancelScope() as scope:
        scope.cancel()
        await program.end(grace_s=BOUND_S, kill_s=BOUND_S, doubtful=True)

    assert await program.wait() == -signal.SIGTERM
    program.close()


async def test_who_prints_more_than_a_pipe_holds_waits_for_a_reader(host: Host) -> None:
    lines = 2 * PIPE_BYTES // 9
    program = host.start(f"yes 00000000 | head -n {lines}; exit 5", f"fill {9 * lines}; exit 5")
    await program.stdout.receive_some(1)

    assert program.poll() is None
    assert len(await whole(program.stdout)) == 9 * lines - 1
    assert program.stdout.unread() == 0
    assert await program.wait() == 5
    program.close()


async def test_a_trap_delays_the_end_in_virtual_time(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    program = Host(nursery, False).start("", "trap 2; out one; forever")
    await program.stdout.receive_some(10)
    began_s = trio.current_time()

    await program.end(grace_s=5, kill_s=BOUND_S, doubtful=True)

    assert trio.current_time() - began_s == 2
    assert program.poll() == -signal.SIGTERM


async def test_commands_die_in_the_moment_their_worker_dies(nursery: trio.Nursery) -> None:
    programs = SimPrograms(nursery, Ledger())
    order = CommandOrder("leave forever; out one; forever", "", Path("/"), {}, 1000)
    program = programs.start(order, "")
    await program.stdout.receive_some(10)

    programs.kill_all()

    assert program.ended_s is not None
    assert program.poll() == -signal.SIGKILL
