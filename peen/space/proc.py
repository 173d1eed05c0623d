"""Processes as Linux shows them in /proc: who descends from whom, and how to end all of them for sure."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from peen.brand import Brand, brand_number, brand_of
from peen.entropy import SystemEntropy

MARKER: Final = "_PEEN_SPACE"
"""Name of the variable that every worker and command carries; its value is `<state id>:<generation id>`."""

KILL_S: Final = 5.0  # seconds to wait for killed processes to go
_PASS_MS: Final = 20  # between two looks at processes that are going
_GONE: Final = "ZX"  # states of a process that runs no more: a zombie only waits for its parent

_monotonic_s: Final = SystemEntropy().monotonic_s


class ProcStat(NamedTuple):
    """One process. `start_time` is in clock ticks since boot: with the pid it names a process for good."""

    pid: int
    ppid: int
    state: str
    start_time: int


def read_stat(pid: int) -> ProcStat | None:
    """What /proc says of `pid`, or None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in parentheses and may hold any byte; the last one closes it.
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcStat(pid, int(fields[1]), fields[0].decode("ascii"), int(fields[19]))


def all_stats() -> dict[int, ProcStat]:
    """Every process of the machine, by pid."""
    found = (read_stat(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return {stat.pid: stat for stat in found if stat is not None}


def descendants(roots: Iterable[int], stats: dict[int, ProcStat]) -> list[int]:
    """Pids of all processes below `roots` (not the roots), parents before their children."""
    children: dict[int, list[int]] = {}
    for stat in stats.values():
        children.setdefault(stat.ppid, []).append(stat.pid)
    found: list[int] = []
    todo = list(roots)
    for parent in todo:
        below = children.get(parent, [])
        found += below
        todo += below
    return found


def is_running(pid: int, start_time: int) -> bool:
    """Whether the process that had this pid and start time still runs (a zombie does not)."""
    stat = read_stat(pid)
    return stat is not None and stat.start_time == start_time and stat.state not in _GONE


def kill_recorded(pid: int, start_time: int, *, wait_s: float = KILL_S) -> bool:
    """SIGKILL the tree of a process known by pid and start time; True once all of it is gone.

    The root is stopped first and dies last: as a child subreaper it keeps the orphans of what dies below it, so
    nothing can slip away meanwhile. A pid that belongs to another process or user by now is left alone. Blocks for
    at most `wait_s` seconds.
    """
    try:
        handle = os.pidfd_open(pid)
    except (ProcessLookupError, PermissionError):
        return True
    try:
        stat = read_stat(pid)  # after the handle was taken: what it says is true of the handle's process
        if stat is None or stat.start_time != start_time or not _is_ours(pid):
            return True
        deadline = _monotonic_s() + wait_s
        signal.pidfd_send_signal(handle, signal.SIGSTOP)
        below_gone = _kill_until_none(lambda stats: descendants([pid], stats), deadline)
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        root_gone = _wait_gone([handle], deadline)
        return below_gone and root_gone
    except ProcessLookupError:  # it went by itself; what it left is found by its marker
        return True
    finally:
        os.close(handle)


def sweep(state_id: str, *, keep: Iterable[int] = (), wait_s: float = KILL_S) -> list[int]:
    """SIGKILL every process of this user with the marker or the brand of `state_id`, and all below them; their pids.

    For a start after controller and fork server both died, and for a fork server that died alone. This process, and
    the processes `keep` with all that descends from them, are spared. Blocks until they are gone, at most `wait_s`.
    """
    mark, number = f"{MARKER}={state_id}:".encode(), brand_number(state_id)
    spared_roots = tuple(keep)
    killed: dict[int, None] = {}

    def marked(stats: dict[int, ProcStat]) -> list[int]:
        spared = {os.getpid(), *spared_roots, *descendants(spared_roots, stats)}
        roots = [pid for pid in stats if pid not in spared and _is_of(pid, mark, number)]
        found = dict.fromkeys(roots) | dict.fromkeys(descendants(roots, stats))
        return [pid for pid in found if pid not in spared]

    _kill_until_none(marked, _monotonic_s() + wait_s, on_kill=killed.setdefault)
    return list(killed)


def end_descendants(*, wait_s: float = KILL_S) -> bool:
    """SIGKILL and reap all that descends from this process, a child subreaper; True once there is nothing left.

    Blocks for at most `wait_s` seconds.
    """
    me = os.getpid()
    ended = _kill_until_none(lambda stats: descendants([me], stats), _monotonic_s() + wait_s)
    reap()
    return ended


def reap() -> list[tuple[int, int]]:
    """Pid and status (exit code, or minus the signal) of every child of this process that has ended."""
    ended: list[tuple[int, int]] = []
    try:
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append((child[0], os.waitstatus_to_exitcode(child[1])))
    except ChildProcessError:
        pass  # no children at all
    return ended


def signal_all(pids: Collection[int], number: int) -> list[int]:
    """Send `number` to each of `pids` that still exists and is ours; these."""
    told = []
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue  # gone, or changed its user: then it is not ours to end
        told.append(pid)
    return told


def _kill_until_none(
    find: Callable[[dict[int, ProcStat]], list[int]],
    deadline: float,
    *,
    on_kill: Callable[[int], object] = lambda _: None,
) -> bool:
    """SIGKILL what `find` names, again and again, until it names nothing that runs; False if something is left.

    That is so if time ran out, or if all that is left is of other accounts.
    """
    while True:
        stats = all_stats()
        alive = [pid for pid in find(stats) if stats[pid].state not in _GONE]
        if not alive:
            return True
        handles, refused = [], 0
        for pid in alive:
            try:
                handle = _kill(stats[pid])
            except PermissionError:
                refused += 1
                continue
            if handle is not None:
                handles.append(handle)
                on_kill(pid)
        if refused == len(alive):
            return False  # nobody here can end them, and their own end may be far away
        try:
            _wait_gone(handles, min(deadline, _monotonic_s() + 5 * _PASS_MS / 1000))
        finally:
            for handle in handles:
                os.close(handle)
        if _monotonic_s() >= deadline:
            return False


def _kill(stat: ProcStat) -> int | None:
    """A handle of the process after SIGKILL was sent to it, or None if it is gone. Raises: PermissionError."""
    try:
        handle = os.pidfd_open(stat.pid)
    except ProcessLookupError:
        return None
    now = read_stat(stat.pid)
    try:
        if now is not None and now.start_time == stat.start_time:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            return handle
    except ProcessLookupError:
        pass  # closed below, like the handle of a pid that was given to another process
    except PermissionError:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _wait_gone(handles: Iterable[int], deadline: float) -> bool:
    """Wait until each handle's process has ended (it may be a zombie); False if `deadline` came first."""
    for handle in handles:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        if not poller.poll(max(0.0, deadline - _monotonic_s()) * 1000):
            return False
    return True


def _is_ours(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def _is_of(pid: int, mark: bytes, number: int) -> bool:
    try:
        if not _is_ours(pid):
            return False
        if brand_of(pid, Brand.STATE) == number:
            return True
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return any(entry.startswith(mark) for entry in environment.split(b"\0"))
