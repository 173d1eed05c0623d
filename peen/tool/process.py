"""Starting a program so that it can be waited for without polling."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from peen.brand import Brand, brand_number, worn
from peen.tool.children import CHILDREN
from peen.tool.output import OutputCapture
from peen.tool.tree import MARK_VARIABLE, read_row

CHUNK_BYTES: Final = 65536


@dataclass
class Process:
    """A program that runs in a session of its own, with no terminal and nothing to read.

    Owns: both pipes, the process descriptor and the exit status; `close` gives them up and leaves the program alone.
    """

    popen: subprocess.Popen[bytes]
    mark: str
    start: int
    stdout: trio.lowlevel.FdStream
    stderr: trio.lowlevel.FdStream
    descriptor: int

    @property
    def pid(self) -> int:
        return self.popen.pid

    async def wait(self) -> int:
        """Exit status once it has ended, negative for a signal. The caller owns the deadline."""
        await trio.lowlevel.wait_readable(self.descriptor)
        status = self.popen.wait()  # it has ended: this only collects the status
        CHILDREN.release(self.popen)
        return status

    def poll(self) -> int | None:
        """Exit status if it has ended."""
        if (status := self.popen.poll()) is not None:
            CHILDREN.release(self.popen)
        return status

    def close(self) -> None:
        self.popen.poll()
        CHILDREN.release(self.popen)
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
    """Start a program; its whole tree carries `mark` in the environment, and as its brand.

    For one thread of a process only. Raises: OSError, ValueError for a NUL.
    """
    # Around the start and not in the child: that way it stays a vfork, and nothing can be forked before it.
    with worn(Brand.COMMAND, brand_number(mark)):
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
    CHILDREN.expect(popen)
    return Process(
        popen=popen,
        mark=mark,
        start=row.start if row is not None else 0,
        stdout=trio.lowlevel.FdStream(opened[0]),
        stderr=trio.lowlevel.FdStream(opened[1]),
        descriptor=opened[2],
    )
