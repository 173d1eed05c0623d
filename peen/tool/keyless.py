"""Ending programs that wait for keys, where there is nobody to press one.

The input of a command is at its end from the beginning, and a program that reads it finds that out. Some editors then
take their error output for input, since on a terminal that is the same thing. Here it is the writing end of a pipe,
and waiting for something to read from that never ends: not an error, not an end, nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from typing import Final, NoReturn

import trio

from peen.tool.family import Family
from peen.tool.paths import Identity, identity_of
from peen.tool.tree import read_row

_WAITING_IN: Final = (b"poll_schedule_timeout", b"do_select", b"do_poll", b"do_sys_poll")  # what select and poll do
_UNTOLD: Final = (b"", b"0")
LOOK_S: Final = 0.5  # between two looks; who was found twice is ended, so an editor lives for a second


class KeylessPrograms:
    """Looks after one command. `ended` names the programs that were told to end: pid and name, in that order."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self.ended: dict[int, str] = {}

    async def run(self) -> NoReturn:
        """Never returns: it is cancelled when the command has ended."""
        suspects: set[int] = set()
        while True:
            await trio.sleep(LOOK_S)
            found = {pid for pid in self._family.look() if _waits_for_keys(pid, self._family.pipes)}
            for pid in found & suspects:
                self._end(pid)
            suspects = found

    def _end(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                row = read_row(pid)
                # Looked at once more, since only now nobody else can have this pid.
                if row is not None and _waits_for_keys(pid, self._family.pipes):
                    self.ended[pid] = row.name
                    signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            finally:
                os.close(descriptor)


def _waits_for_keys(pid: int, pipes: Collection[Identity]) -> bool:
    """Whether a process sleeps until it can read its standard input, and that is the writing end of its own output."""
    try:
        if identity_of(os.stat(f"/proc/{pid}/fd/0")) not in pipes:
            return False
        fields = dict(line.split(b":\t", 1) for line in _read(pid, "fdinfo/0").splitlines() if b":\t" in line)
        place = _read(pid, "wchan")
    except OSError:  # gone, or of another account
        return False
    if int(fields.get(b"flags", b"0"), 8) & os.O_ACCMODE != os.O_WRONLY:
        return False
    row = read_row(pid)
    # Where the kernel keeps to itself what a process sleeps in, sleeping is enough.
    return row is not None and row.state == "S" and (place in _UNTOLD or place.startswith(_WAITING_IN))


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return file.read(4096)
