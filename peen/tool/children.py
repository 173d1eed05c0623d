"""The children of this process: who of them is waited for, and a proper end for all the others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import trio

from peen.tool.tree import ProcessRow, children_of, read_row


class Children:
    """What this process knows of its children. There is one list of them in the kernel, and so one object: `CHILDREN`.

    A worker is a child subreaper: whatever a command leaves behind without a parent becomes a child of the worker.
    Such a stray is in another session than this process, and nobody here waits for it; no other child is touched, so
    that nobody's exit status is taken away. `reaping` is true while `reap` runs.
    """

    def __init__(self) -> None:
        self._expected: dict[int, subprocess.Popen[Any]] = {}
        self.reaping = False

    def expect(self, popen: subprocess.Popen[Any]) -> None:
        """Somebody waits for this one. To be called before the first checkpoint after its start."""
        self._expected[popen.pid] = popen

    def release(self, popen: subprocess.Popen[Any]) -> None:
        """Its exit status has been collected, or nobody wants it any more."""
        if self._expected.get(popen.pid) is popen:  # else the pid is already that of a later one
            del self._expected[popen.pid]

    def strays(self) -> list[ProcessRow]:
        """The living ones."""
        rows = map(read_row, self._stray_pids())
        return [row for row in rows if row is not None and not row.dead]

    async def reap(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Collect every stray that ends. Ends only by cancellation.

        For the main thread of a process whose strays all come from commands.
        """
        with trio.open_signal_receiver(signal.SIGCHLD) as deaths:
            self.reaping = True
            try:
                self._collect()
                task_status.started()
                async for _ in deaths:
                    self._collect()
            finally:
                self.reaping = False

    def _collect(self) -> None:
        # Not "any child that has ended": the first of those may be one that somebody waits for.
        for pid in self._stray_pids():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def _stray_pids(self) -> Iterator[int]:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # there is no child at all, as a rule: that is told without a look into /proc
            return
        own = os.getsid(0)
        for pid in children_of("self"):
            if pid not in self._expected:
                with contextlib.suppress(ProcessLookupError):
                    if os.getsid(pid) != own:  # a command has a session of its own, and none can be entered again
                        yield pid


CHILDREN: Final = Children()
