"""What a call says of a command that ends in the moment in which the call returns; time and command are simulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import trio
from tool_world import World
from trio.testing import MockClock

from peen.tool.command import RunCommand, RunCommandArguments, RunCommandResult
from peen.tool.jobs import Command, CommandOrder
from peen.tool.output import OutputCapture
from peen.tool.tree import ProcessRow

LEFT = ProcessRow(4712, "server", "S", 1, 4711, 4711, 1)
NOBODY: Mapping[int, str] = {}


class Ending:
    """A shell that exits with 3 after `exits_s`; after `settles_s` it is known what it `left`. Implements `Command`."""

    job_id, pid, trouble = "a-job", 4711, ""
    keyless: Mapping[int, str] = NOBODY

    def __init__(self, *, exits_s: float, settles_s: float, left: Sequence[ProcessRow] = ()) -> None:
        self.stdout, self.stderr = OutputCapture(100), OutputCapture(100)
        self.settled = trio.Event()
        self.status: int | None = None
        self.left: Sequence[ProcessRow] = ()
        self.doubtful: Sequence[ProcessRow] = ()
        self.detached_s: float | None = None
        self._exits_s, self._settles_s, self._leaves = exits_s, settles_s, left

    async def run(self) -> None:
        await trio.sleep(self._exits_s)
        self.status = 3
        await trio.sleep(self._settles_s - self._exits_s)
        self.left = self._leaves
        self.settled.set()

    def cut(self) -> int:
        return 7

    async def detach(self) -> bool:
        self.detached_s = trio.current_time()
        await trio.sleep(1.0)
        return True

    @property
    def unended(self) -> str:
        return ""

    async def stop(self) -> None:
        raise AssertionError("nobody stops it")


class OneJob:
    """Implements what of `SessionJobs` a runCommand needs."""

    def __init__(self, command: Ending) -> None:
        self._command = command

    async def start(self, order: CommandOrder) -> Command:
        return self._command

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"runCommand has no business with {name}")


async def result_of(
    directory: Path, nursery: trio.Nursery, command: Ending, *, background: bool = False
) -> RunCommandResult:
    """Of a call with a timeout of ten seconds."""
    nursery.start_soon(command.run)
    context = dataclasses.replace(World(directory).context, jobs=OneJob(command))
    arguments = RunCommandArguments(command="c", purpose="p", timeout="10s", background=background)
    result = await RunCommand().run(arguments, context)
    shown = msgspec.json.decode(msgspec.json.encode(result))
    assert ("nextStdoutCursor" in shown) == ("pid" in shown) == result.running
    return result


async def test_a_shell_that_has_exited_at_the_timeout_is_waited_for(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    command = Ending(exits_s=9.9, settles_s=10.5)

    result = await result_of(tmp_path, nursery, command)

    assert (result.state, result.exit_code, result.running, result.note) == ("exited", 3, False, "")
    assert command.detached_s is None


async def test_one_that_is_found_to_have_left_something_goes_on_as_a_job(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    command = Ending(exits_s=9.9, settles_s=10.5, left=[LEFT])

    result = await result_of(tmp_path, nursery, command)

    assert (result.state, result.exit_code, result.running) == ("exited", 3, True)
    assert "The shell has exited, but it left running: 4712 (server)." in result.note
    assert command.detached_s == 10.5


@pytest.mark.parametrize("how", ["timeout", "background"])
async def test_one_that_ends_while_its_handle_is_stored_has_ended(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock, how: Literal["timeout", "background"]
) -> None:
    begins_s = 10.0 if how == "timeout" else 0.0
    command = Ending(exits_s=begins_s + 0.9, settles_s=begins_s + 1.5)

    result = await result_of(tmp_path, nursery, command, background=how == "background")

    assert (result.state, result.exit_code, result.running) == ("exited", 3, False)
    assert "It has ended, and nothing of it runs any more. The notice that it has ended follows" in result.note
    assert command.detached_s == begins_s


async def test_one_whose_output_does_not_end_is_told_to_be_ending(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    command = Ending(exits_s=9.9, settles_s=100)

    result = await result_of(tmp_path, nursery, command)

    assert (result.state, result.exit_code, result.running) == ("exited", 3, True)
    assert "The shell has exited, and the last of its output is still being read; you are told" in result.note


async def test_one_that_runs_on_is_running(tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    command = Ending(exits_s=100, settles_s=100)

    result = await result_of(tmp_path, nursery, command)

    assert (result.state, result.exit_code, result.running) == ("running", -1, True)
    assert result.note.startswith("Still running after 10s. It was not ended")
