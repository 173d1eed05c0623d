"""Ending a command together with all that it started: ask, wait, insist, and give up what cannot be ended."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from peen.patience import KILL_GRACE_S, TERM_GRACE_S
from peen.tool.family import Family
from peen.tool.tree import ProcessRow, read_row

FOREIGN_S: Final = 0.5
"""A process of another account cannot be told to end. Most end by themselves when the rest has; those get so long."""
_NAMED: Final = 10

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Unended:
    """A process that lives on although it was to be ended. `may_not`: it is another account's, so it was not told."""

    pid: int
    name: str
    may_not: bool


async def end_family(
    family: Family, *, grace_s: float = TERM_GRACE_S, kill_s: float = KILL_GRACE_S, doubtful: bool = True
) -> list[Unended]:
    """End a program and everything it started, wherever that moved: TERM, then KILL after `grace_s`; what still lives.

    Without a grace it is KILL at once. With `doubtful` also what may be another command's. Shielded from cancellation
    and bounded by the sum of both times.
    """
    round_ = _Round()
    with trio.move_on_after(grace_s + kill_s, shield=True):
        killing_at = trio.current_time() + grace_s
        if grace_s > 0:
            round_ = await _signal_all(family, signal.SIGTERM, killing_at, doubtful=doubtful)
            killing_at = trio.current_time()
        # Repeated, since a process may have forked between the look at the table and its own end.
        while trio.current_time() < killing_at + kill_s:
            round_ = await _signal_all(family, signal.SIGKILL, killing_at + kill_s, doubtful=doubtful)
            if not round_.told:
                break
    left = [
        Unended(row.pid, row.name, may_not=row in round_.refused)
        for row in (*round_.told, *round_.refused)
        if (now := read_row(row.pid)) is not None and now.start == row.start and not now.dead
    ]
    if left:
        log.error("not all of a command could be ended", pid=family.process.pid, left=unended_text(left))
    return left


def unended_text(left: Sequence[Unended]) -> str:
    """Which processes could not be ended, and why."""
    reasons = (
        (True, "of another account, which this one may not signal"),
        (False, "not ended by SIGKILL yet"),
    )
    parts = []
    for may_not, reason in reasons:
        rows = [each for each in left if each.may_not is may_not]
        if rows:
            more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
            parts.append(f"{', '.join(f'{each.pid} ({each.name})' for each in rows[:_NAMED])}{more}: {reason}")
    return "; ".join(parts)


@dataclass
class _Round:
    """What lived when everything was signalled: what that was sent to, and what may not be signalled."""

    told: list[ProcessRow] = field(default_factory=list)
    refused: list[ProcessRow] = field(default_factory=list)


async def _signal_all(family: Family, number: signal.Signals, until: float, *, doubtful: bool) -> _Round:
    """Signal what lives of the tree and wait until it is gone, or the time is over."""
    found = _Round()
    living = await family.members(doubtful=doubtful)
    told, refused = _signalled(living, number, found)
    try:
        with trio.move_on_at(until):
            for descriptor in told:
                await trio.lowlevel.wait_readable(descriptor)
        if number == signal.SIGKILL and not told:  # else there will be another look
            with trio.move_on_at(min(until, trio.current_time() + FOREIGN_S)):
                for descriptor in refused:
                    await trio.lowlevel.wait_readable(descriptor)
    finally:
        for descriptor in (*told, *refused):
            os.close(descriptor)
    family.process.poll()
    return found


def _signalled(rows: Iterable[ProcessRow], number: signal.Signals, found: _Round) -> tuple[list[int], list[int]]:
    """Signal each process; descriptors that become readable at its end, of those told and of those that may not be."""
    told, refused = [], []
    for row in rows:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(row.pid)
            try:
                now = read_row(row.pid)
                if now is None or now.start != row.start:  # the pid belongs to somebody else by now
                    os.close(descriptor)
                    continue
                send(row, descriptor, number)
            except PermissionError:  # it changed its user
                found.refused.append(row)
                refused.append(descriptor)
            except ProcessLookupError:
                os.close(descriptor)
            else:
                found.told.append(row)
                told.append(descriptor)
    return told, refused


def send(_row: ProcessRow, descriptor: int, number: signal.Signals) -> None:
    """Signal a process, and let it go on: a stopped one sees TERM only then.

    Raises: PermissionError, ProcessLookupError.
    """
    signal.pidfd_send_signal(descriptor, number)
    if number != signal.SIGKILL:
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)
