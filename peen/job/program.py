"""A command's processes as its job sees them: the shell, all that it started, and what they print."""

from __future__ import annotations

import array
import fcntl
import os
import termios
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol

import trio

from peen.tool.ending import Unended, end_family
from peen.tool.family import FAMILIES, Family
from peen.tool.jobs import CommandOrder
from peen.tool.keyless import KeylessPrograms
from peen.tool.process import Process, spawn
from peen.tool.tree import ProcessRow


class Printed(Protocol):
    """One output stream of a program."""

    async def receive_some(self, max_bytes: int) -> bytes:
        """What is there, once there is something; empty at the end, when nobody holds the stream open any more."""

    def unread(self) -> int:
        """Bytes that wait to be received."""


class Program(Protocol):
    """A command that runs: one shell and whatever it started. All times are Trio's."""

    @property
    def pid(self) -> int:
        """Of the shell."""

    @property
    def stdout(self) -> Printed: ...
    @property
    def stderr(self) -> Printed: ...
    @property
    def keyless(self) -> Mapping[int, str]:
        """Programs that were ended because they waited for keys: pid and name."""

    async def wait(self) -> int:
        """Exit status of the shell once it has ended, negative for a signal. The caller owns the deadline."""

    def poll(self) -> int | None:
        """Exit status of the shell if it has ended."""

    async def left_running(self, *, output_held: bool) -> Sequence[ProcessRow]:
        """What lives of it although its shell has ended. `output_held`: a stream is still open somewhere."""

    async def outlast(self, row: ProcessRow) -> None:
        """Return when that process has ended. No deadline: a job runs as long as it likes."""

    async def tend(self) -> NoReturn:
        """End what waits for keys that nobody will press; it is cancelled when the command has ended."""

    async def end(self, *, grace_s: float, kill_s: float, doubtful: bool) -> Sequence[Unended]:
        """End all of it: TERM, then KILL after `grace_s` (0: KILL at once); what still lives `kill_s` after that.

        With `doubtful` also what may be of another command. Shielded, for the sum of both times at most.
        """

    def close(self) -> None:
        """The command is over. Streams and status are given up; what still lives is left alone."""


Start = Callable[[CommandOrder, str], Program]
"""Starts a command whose processes carry a mark. Raises: OSError, ValueError for a NUL."""


def start_shell(order: CommandOrder, mark: str) -> ShellProgram:
    """Run the command with /bin/sh. Raises: OSError, ValueError for a NUL."""

    def start() -> Process:
        return spawn(
            ["/bin/sh", "-c", order.command], directory=order.directory, environment=order.environment, mark=mark
        )

    return ShellProgram(FAMILIES.start(start))


class Pipe:
    """Implements `Printed` on the reading end of a pipe, which it borrows."""

    def __init__(self, stream: trio.lowlevel.FdStream) -> None:
        self._stream = stream

    async def receive_some(self, max_bytes: int) -> bytes:
        return bytes(await self._stream.receive_some(max_bytes))

    def unread(self) -> int:
        count = array.array("i", [0])
        fcntl.ioctl(self._stream.fileno(), termios.FIONREAD, count)
        return count[0]


class ShellProgram:
    """Implements `Program` with real processes. Owns: the family, with its pipes and the descriptor of its shell."""

    def __init__(self, family: Family) -> None:
        self._family, self._process = family, family.process
        self._keyless = KeylessPrograms(family)
        self.stdout, self.stderr = Pipe(self._process.stdout), Pipe(self._process.stderr)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def keyless(self) -> Mapping[int, str]:
        return self._keyless.ended

    async def wait(self) -> int:
        return await self._process.wait()

    def poll(self) -> int | None:
        return self._process.poll()

    async def left_running(self, *, output_held: bool) -> Sequence[ProcessRow]:
        return await self._family.left_running(output_held=output_held)

    async def outlast(self, row: ProcessRow) -> None:
        try:
            descriptor = os.pidfd_open(row.pid)
        except ProcessLookupError:
            return
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)

    async def tend(self) -> NoReturn:
        await self._keyless.run()

    async def end(self, *, grace_s: float, kill_s: float, doubtful: bool) -> Sequence[Unended]:
        return await end_family(self._family, grace_s=grace_s, kill_s=kill_s, doubtful=doubtful)

    def close(self) -> None:
        self._process.close()
        self._family.close()
