"""Ending a command together with all that it started: ask, wait, insist."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from typing import Final

import structlog
import trio

from peen.tool.family import Family
from peen.tool.tree import ProcessRow, read_row

TERM_GRACE_S: Final = 3.0  # what a process gets to end in its own way
KILL_GRACE_S: Final = 1.5  # what outlives SIGKILL for so long hangs in the kernel, and nobody can end it

log = structlog.get_logger(__name__)


async def end_family(family: Family, *, grace_s: float = TERM_GRACE_S) -> None:
    """End a program and everything it started, wherever that moved: TERM, then KILL after `grace_s`.

    Without a grace it is KILL at once. Shielded from cancellation and bounded: 2 s more than the grace at most.
    """
    with trio.move_on_after(grace_s + KILL_GRACE_S + 0.5, shield=True) as bound:
        if grace_s > 0:
            await _signal_all(family, signal.SIGTERM, grace_s)
        killing_until = trio.current_time() + KILL_GRACE_S
        # Repeated, since a process may have forked between the look at the table and its own end.
        while await _signal_all(family, signal.SIGKILL, killing_until - trio.current_time()):
            if trio.current_time() >= killing_until:
                break
        else:
            return
    log.error("processes outlived SIGKILL", pid=family.process.pid, bounded=bound.cancelled_caught)


async def _signal_all(family: Family, number: signal.Signals, grace_s: float) -> bool:
    """Signal what lives of the tree and wait until it is gone, or the grace is over. False if nothing lived."""
    living = await family.members(ending=True)
    descriptors = _signalled(living, number)
    try:
        with trio.move_on_after(max(grace_s, 0.0)):
            for descriptor in descriptors:
                await trio.lowlevel.wait_readable(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    family.process.poll()
    return bool(living)


def _signalled(rows: Iterable[ProcessRow], number: signal.Signals) -> list[int]:
    """Signal each process and return descriptors that become readable at its end."""
    descriptors = []
    for row in rows:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # gone, or it changed its user
            descriptor = os.pidfd_open(row.pid)
            descriptors.append(descriptor)
            now = read_row(row.pid)
            if now is not None and now.start == row.start:  # else the pid belongs to somebody else by now
                signal.pidfd_send_signal(descriptor, number)
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)  # a stopped process sees TERM only then
    return descriptors
