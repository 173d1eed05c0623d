"""Commands of a simulated host: processes that print, wait, ignore signals and leave others behind, in virtual time.

A command is written as steps between semicolons:

    out TEXT, err TEXT      print a line; `part TEXT` prints without the line end, `fill N` prints N bytes of lines
    sleep S, forever        wait
    trap S                  from here on TERM is obeyed only after S seconds
    hang                    from here on SIGKILL is not obeyed either
    foreign                 from here on it is another account's, which may not be signalled
    leave STEP, STEP ...    start a process that outlives the shell and holds both of its streams
    exit N                  end; without it the end of the steps is `exit 0`

`refused` as the first step is a command that the host cannot start.
"""

from __future__ import annotations

import errno
import math
import signal
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple, NoReturn

import trio
from sim_model import Ledger, ToolRun

from peen.tool.ending import Unended
from peen.tool.jobs import CommandOrder
from peen.tool.tree import ProcessRow
from peen.wire.joboutput import STDERR, STDOUT

PIPE_BYTES: Final = 65_536
"""What a pipe holds; who prints more waits for a reader."""
REFUSED: Final = "refused"


class Written(NamedTuple):
    """Bytes that a process has put into a pipe."""

    at_s: float
    stream: int
    data: bytes


class SimPipe:
    """Implements `peen.job.program.Printed`. It ends when no process holds it any more."""

    def __init__(self) -> None:
        self.holders = 0
        self._data = bytearray()
        self._changed = trio.Event()
        self._is_closed = False

    @property
    def room(self) -> int:
        """Bytes that may be written now. Nobody waits for a reader that has gone."""
        return PIPE_BYTES if self._is_closed else PIPE_BYTES - len(self._data)

    async def receive_some(self, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._data and self.holders:
            await self._changed.wait()
        taken = bytes(self._data[:max_bytes])
        del self._data[:max_bytes]
        self.tell()
        return taken

    def unread(self) -> int:
        return len(self._data)

    def put(self, data: bytes) -> None:
        if not self._is_closed:
            self._data += data
            self.tell()

    async def changed(self) -> None:
        await self._changed.wait()

    def close(self) -> None:
        self._is_closed = True
        self.tell()

    def tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class Member:
    """One process. Its end takes effect at once; its task only learns of it."""

    def __init__(self, program: SimProgram, row: ProcessRow, steps: Sequence[str]) -> None:
        self.row, self._program, self._steps = row, program, steps
        self.ended = trio.Event()
        self.ended_s: float | None = None
        self.status: int | None = None
        self._scope = trio.CancelScope()
        self._trap_s = 0.0
        self.hangs = self.is_foreign = False
        for pipe in program.pipes:
            pipe.holders += 1

    async def run(self) -> None:
        with self._scope:
            for step in self._steps:
                word, _, rest = step.strip().partition(" ")
                if word == "exit":
                    self.end(int(rest))
                    return
                await self._take(word, rest)
            self.end(0)

    async def terminate(self) -> None:
        """Deliver TERM and return; it is obeyed when the trap allows it."""
        if self._trap_s:
            self._program.nursery.start_soon(self._end_later)
        else:
            self.end(-signal.SIGTERM)
        await trio.lowlevel.checkpoint()

    def end(self, status: int) -> None:
        if self.status is not None:
            return
        self.status, self.ended_s = status, trio.current_time()
        for pipe in self._program.pipes:
            pipe.holders -= 1
            pipe.tell()
        self._scope.cancel()
        self.ended.set()

    async def _end_later(self) -> None:
        with trio.move_on_after(self._trap_s):
            await self.ended.wait()
        self.end(-signal.SIGTERM)

    async def _take(self, word: str, rest: str) -> None:
        match word:
            case "out":
                await self._print(STDOUT, f"{rest}\n".encode())
            case "err":
                await self._print(STDERR, f"{rest}\n".encode())
            case "part":
                await self._print(STDOUT, rest.encode())
            case "fill":
                await self._print(STDOUT, b"".join(b"%08d\n" % at for at in range(9, int(rest) + 9, 9)))
            case "sleep":
                await trio.sleep(float(rest))
            case "forever":
                await trio.sleep_forever()
            case "trap":
                self._trap_s = float(rest)
            case "hang":
                self.hangs, self._trap_s = True, math.inf
            case "foreign":
                self.is_foreign = True
            case "leave":
                self._program.fork(rest.split(","))
            case _:
                raise ValueError(f"no such step: {word}")

    async def _print(self, stream: int, data: bytes) -> None:
        pipe = self._program.pipes[stream]
        while data:
            await trio.lowlevel.checkpoint()
            while not (room := pipe.room):
                await pipe.changed()
            part, data = data[:room], data[room:]
            self._program.written.append(Written(trio.current_time(), stream, part))
            pipe.put(part)


class SimProgram:
    """Implements `peen.job.program.Program`. `written` is everything that it printed, in order."""

    def __init__(self, command: str, nursery: trio.Nursery, pids: Iterator[int]) -> None:
        self.command, self.nursery, self._pids = command, nursery, pids
        self.began_s = trio.current_time()
        self.pipes = (SimPipe(), SimPipe())
        self.written: list[Written] = []
        self.members: list[Member] = []
        self.is_haunted = False
        """Whether its worker only seemed to end."""
        self._shell = self.fork(command.split(";"))

    @property
    def pid(self) -> int:
        return self._shell.row.pid

    @property
    def stdout(self) -> SimPipe:
        return self.pipes[STDOUT]

    @property
    def stderr(self) -> SimPipe:
        return self.pipes[STDERR]

    @property
    def keyless(self) -> Mapping[int, str]:
        return {}

    @property
    def ended_s(self) -> float | None:
        """When the last of it ended; None while something lives."""
        ends = [member.ended_s for member in self.members]
        return None if None in ends else max(end for end in ends if end is not None)

    @property
    def is_unendable(self) -> bool:
        """Whether a Stop or a signal cannot end all of it."""
        return any(member.hangs or member.is_foreign for member in self.members)

    def printed(self, stream: int) -> bytes:
        return b"".join(written.data for written in self.written if written.stream == stream)

    def fork(self, steps: Sequence[str]) -> Member:
        pid = next(self._pids)
        row = ProcessRow(pid=pid, name="sim", state="S", parent=1, group=pid, session=pid, start=pid)
        member = Member(self, row, steps)
        self.members.append(member)
        self.nursery.start_soon(member.run)
        return member

    def kill(self) -> None:
        """The host is rid of all of it, by force."""
        for member in self.members:
            member.end(-signal.SIGKILL)

    async def wait(self) -> int:
        await self._shell.ended.wait()
        assert self._shell.status is not None
        return self._shell.status

    def poll(self) -> int | None:
        return self._shell.status

    async def left_running(self, *, output_held: bool) -> Sequence[ProcessRow]:
        await trio.lowlevel.checkpoint()
        return [member.row for member in self.members if member.status is None and member is not self._shell]

    async def outlast(self, row: ProcessRow) -> None:
        (member,) = (member for member in self.members if member.row == row)
        await member.ended.wait()

    async def tend(self) -> NoReturn:
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    async def end(self, *, grace_s: float, kill_s: float, doubtful: bool) -> Sequence[Unended]:
        with trio.move_on_after(grace_s + kill_s, shield=True):
            if grace_s > 0:
                living = [member for member in self.members if member.status is None and not member.is_foreign]
                for member in living:
                    await member.terminate()
                with trio.move_on_after(grace_s):
                    for member in living:
                        await member.ended.wait()
            for member in self.members:
                if not (member.hangs or member.is_foreign):
                    member.end(-signal.SIGKILL)
            await trio.lowlevel.checkpoint()
            for member in self.members:
                await member.ended.wait()
        left = [member for member in self.members if member.status is None]
        return [Unended(member.row.pid, member.row.name, member.is_foreign) for member in left]

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()


class SimPrograms:
    """What one worker has started. It does not outlive the worker, however that ends."""

    def __init__(self, nursery: trio.Nursery, ledger: Ledger, pids: Iterator[int] | None = None) -> None:
        """`pids` are those of the host, which gives none twice."""
        self.started: list[SimProgram] = []
        self._nursery, self._ledger, self._pids = nursery, ledger, pids or count(2)

    def start(self, order: CommandOrder, _mark: str) -> SimProgram:
        """Implements `peen.job.program.Start`."""
        self._ledger.runs.append(ToolRun(order.command, True, trio.current_time(), is_done=True))
        if order.command.startswith(REFUSED):
            raise OSError(errno.EAGAIN, "no more processes")
        program = SimProgram(order.command, self._nursery, self._pids)
        self.started.append(program)
        return program

    def kill_all(self) -> None:
        for program in self.started:
            program.kill()
