"""`peen stop`: end the controller of this state directory, and wait until it is gone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

import click

from peen.cli.ends import FAILED, CommandEnds
from peen.cli.startup import load
from peen.cli.streams import echo
from peen.control.lock import LockInfo, process_start_time, read_lock
from peen.entropy import Entropy, SystemEntropy

POLL_S: Final = 0.05
GRACE_S: Final = 5.0
"""Seconds beyond PEEN_SHUTDOWN_TIMEOUT, in which a controller ends what did not stop in time."""
_NAMELESS_S: Final = 1.0  # a new holder writes its pid within an instant


@click.command()
def stop() -> None:
    """Stop the running controller. Turns that run are interrupted; everything stays stored."""
    settings = load()
    limit_s = settings.shutdown_timeout_ms / 1000 + GRACE_S
    stopped = stop_controller(settings.state_dir, limit_s=limit_s, entropy=SystemEntropy())
    echo("stopped" if stopped else "controller: not running")


def stop_controller(state_dir: Path, *, limit_s: float, entropy: Entropy) -> bool:
    """End the controller of a state directory and wait until it is gone; False if there was none.

    Raises: CommandEnds (exit 1) if it cannot be signalled, or is still there after `limit_s` seconds.
    """
    holder = _named_holder(state_dir, entropy)
    if holder is None:
        return False
    _terminate(holder)
    if not _gone_within(state_dir, holder, limit_s, entropy):
        raise CommandEnds(f"the controller (process {holder.pid}) did not stop within {limit_s:g} s", FAILED)
    return True


def _named_holder(state_dir: Path, entropy: Entropy) -> LockInfo | None:
    """Who holds the lock; None if nobody does. Raises: CommandEnds if the holder does not say who it is."""
    until_s = entropy.monotonic_s() + _NAMELESS_S
    while True:
        holder = read_lock(state_dir)
        if holder is None or holder.pid is not None:
            return holder
        if entropy.monotonic_s() >= until_s:
            raise CommandEnds(f"the lock in {state_dir} is held by a process that does not name itself", FAILED)
        time.sleep(POLL_S)


def _terminate(holder: LockInfo) -> None:
    """SIGTERM to exactly that process: a descriptor cannot come to mean another one, as a number can."""
    assert holder.pid is not None
    try:
        process = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return
    try:
        if process_start_time(holder.pid) == holder.start_time:
            signal.pidfd_send_signal(process, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise CommandEnds(f"the controller (process {holder.pid}) belongs to another user", FAILED) from None
    finally:
        os.close(process)


def _gone_within(state_dir: Path, holder: LockInfo, limit_s: float, entropy: Entropy) -> bool:
    until_s = entropy.monotonic_s() + limit_s
    while True:
        now = read_lock(state_dir)
        # Another holder: ours has gone, and somebody has started the next one already.
        if now is None or (now.pid is not None and (now.pid, now.start_time) != (holder.pid, holder.start_time)):
            return True
        if entropy.monotonic_s() >= until_s:
            return False
        time.sleep(POLL_S)
