"""Starting a program so that it can be waited for without polling, and ended with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
import trio

from peen.tool.output import OutputCapture
from peen.tool.tree import MARK_VARIABLE, ProcessRow, carries_mark, children_of, find_members, read_row, read_table

TERM_GRACE_S: Final = 3.0  # what a process gets to end in its own way
KILL_GRACE_S: Final = 1.5  # what outlives SIGKILL for so long hangs in the kernel, and nobody can end it

CHUNK_BYTES: Final = 65536

log = structlog.get_logger(__name__)


@dataclass
class Process:
    """A program that runs in a session of its own, with no terminal and nothing to read.

    Owns: both pipes and the process descriptor; `close` closes them and leaves the program alone.
    `known` are the members of its tree that were seen so far: pid to start.
    """

    popen: subprocess.Popen[bytes]
    mark: str
    start: int
    stdout: trio.lowlevel.FdStream
    stderr: trio.lowlevel.FdStream
    descriptor: int
    known: dict[int, int] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.popen.pid

    async def wait(self) -> int:
        """Exit status once it has ended, negative for a signal. The caller owns the deadline."""
        await trio.lowlevel.wait_readable(self.descriptor)
        return self.popen.wait()  # it has ended: this only collects the status

    def close(self) -> None:
        self.popen.poll()
        os.close(self.descriptor)
        self.stdout.close()
        self.stderr.close()


class OutputReader:
    """Takes in one stream until it ends, or until somebody cancels it."""

    def __init__(self, stream: trio.lowlevel.FdStream, max_bytes: int) -> None:
        self.stream, self.capture, self.ended = stream, OutputCapture(max_bytes), trio.Event()

    async def run(self) -> None:
        while chunk := await self.stream.receive_some(CHUNK_BYTES):
            self.capture.feed(chunk)
        self.ended.set()


def spawn(arguments: Sequence[str], *, directory: Path, environment: Mapping[str, str], mark: str) -> Process:
    """Start a program; its whole tree carries `mark` in the environment. Raises: OSError, ValueError for a NUL."""
    popen = subprocess.Popen(
        arguments,
        cwd=directory,
        env={**environment, MARK_VARIABLE: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    assert popen.stdout is not None
    assert popen.stderr is not None
    opened: list[int] = []
    try:
        with popen.stdout, popen.stderr:
            opened += [os.dup(popen.stdout.fileno()), os.dup(popen.stderr.fileno()), os.pidfd_open(popen.pid)]
        row = read_row(popen.pid)
    except BaseException:  # no descriptor was left
        for descriptor in opened:
            os.close(descriptor)
        popen.kill()
        popen.wait()
        raise
    return Process(
        popen=popen,
        mark=mark,
        start=row.start if row is not None else 0,
        stdout=trio.lowlevel.FdStream(opened[0]),
        stderr=trio.lowlevel.FdStream(opened[1]),
        descriptor=opened[2],
    )


async def left_running(process: Process, *, output_held: bool) -> list[ProcessRow]:
    """The rest of the tree of a program that has ended, dead ones not reaped yet included. Quick where there is none.

    `output_held` says that a pipe of the program is still open somewhere.
    """
    suspected = output_held or _group_exists(process.pid)
    if not suspected and not any(carries_mark(pid, process.mark) for pid in children_of("self")):
        return []
    members = await trio.to_thread.run_sync(_scan, process)
    return [row for row in members.values() if row.pid != process.pid]


async def end_tree(process: Process) -> None:
    """End a program and everything it started, wherever that moved: TERM, and KILL after 3 s for what still lives.

    Shielded from cancellation and bounded: 5 s at most. The dead that have become children of this process are reaped.
    """
    with trio.move_on_after(TERM_GRACE_S + KILL_GRACE_S + 0.5, shield=True) as bound:
        await _signal_all(process, signal.SIGTERM, TERM_GRACE_S)
        killing_until = trio.current_time() + KILL_GRACE_S
        # Repeated, since a process may have forked between the look at the table and its own end.
        while await _signal_all(process, signal.SIGKILL, killing_until - trio.current_time()):
            if trio.current_time() >= killing_until:
                break
        else:
            return
    log.error("processes outlived SIGKILL", pid=process.pid, bounded=bound.cancelled_caught)


async def _signal_all(process: Process, number: signal.Signals, grace_s: float) -> bool:
    """Signal what lives of the tree and wait until it is gone, or the grace is over. False if nothing lived."""
    members = await trio.to_thread.run_sync(_scan, process)
    process.known |= {row.pid: row.start for row in members.values()}
    living = [row for row in members.values() if not row.dead]
    descriptors = _signalled(living, number)
    try:
        with trio.move_on_after(max(grace_s, 0.0)):
            for descriptor in descriptors:
                await trio.lowlevel.wait_readable(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    process.popen.poll()
    reap((pid, start) for pid, start in process.known.items() if pid != process.pid)
    return bool(living)


def _scan(process: Process) -> dict[int, ProcessRow]:
    return find_members(
        read_table(), root=process.pid, root_start=process.start, mark=process.mark, known=dict(process.known)
    )


def _signalled(rows: Iterable[ProcessRow], number: signal.Signals) -> list[int]:
    """Signal each process and return descriptors that become readable at its end."""
    descriptors = []
    for row in rows:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(row.pid)
            descriptors.append(descriptor)
            now = read_row(row.pid)
            if now is not None and now.start == row.start:  # else the pid belongs to somebody else by now
                signal.pidfd_send_signal(descriptor, number)
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)  # a stopped process sees TERM only then
    return descriptors


def reap(candidates: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Collect the dead among (pid, start), where they have become children of this process; return the others.

    Never by "any child": the exit status of a child that somebody waits for must not be taken away.
    """
    remaining = []
    for pid, start in candidates:
        row = read_row(pid)
        if row is None or row.start != start:
            continue
        if row.dead:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == pid:
                    continue
        remaining.append((pid, start))
    return remaining


def keep_reading(stream: trio.lowlevel.FdStream) -> tuple[int, int]:
    """Let a small process of its own read and forget the rest of a pipe. Returns its pid and start. Raises: OSError.

    Without a reader whoever still writes to the pipe would be killed by SIGPIPE, or hang once it is full.
    """
    os.set_blocking(stream.fileno(), True)
    actions = [
        (os.POSIX_SPAWN_DUP2, stream.fileno(), 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawnp("cat", ["cat"], {}, file_actions=actions, setsid=True)
    row = read_row(pid)
    return pid, row.start if row is not None else 0


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
