"""The fork server: `python -P -m peen.space.nanny <fd> <entry> <spares> [<preload> ...]`.

It has imported what a worker needs, forks workers on request, and sees to it that nothing outlives anything: what a
dead worker leaves behind falls to this process and is killed, and when the controller is gone, so is everything. One
thread, no event loop, no state worth keeping.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections import deque
from importlib import import_module
from typing import Final, NamedTuple

from peen.brand import Brand, brand_number, wear
from peen.entropy import SystemEntropy
from peen.worker.framing import HEADER

from .child import TERMINAL_SIGNALS, become_subreaper, live
from .orders import Exited, Kill, NotSpawned, Order, Spawn, Spawned, decode_order, pack, receive, send
from .proc import MARKER, all_stats, descendants, end_descendants, read_stat, reap, signal_all
from .unseen import CONSOLES, unseen

ORPHAN_PASS_MS: Final = 10  # between two looks at orphans that were killed
ORPHANS_S: Final = 10.0  # seconds after which those that do not die are only reported
IDLE_MS: Final = 200  # quiet time before a spare is forked, so that it does not slow a worker that starts
HAND_OVER_S: Final = 2.0  # seconds that a spare may take to accept its order

_monotonic_s: Final = SystemEntropy().monotonic_s


class Spare(NamedTuple):
    """A forked process that waits for its order at the other end of `channel`."""

    pid: int
    channel: socket.socket


class Nanny:
    """Serves one controller over `channel` until that ends, then ends all of its own."""

    def __init__(self, channel: socket.socket, *, spares: int) -> None:
        self._channel = channel
        self._wanted = spares
        self._spares: deque[Spare] = deque()
        self._workers: set[int] = set()
        self._dead: dict[int, int] = {}  # status by pid of workers whose orphans are still being ended
        self._dead_until = 0.0
        self._wake, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only so that it writes to the pipe
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)

    def run(self) -> None:
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        try:
            self._fill_spares()
            while True:
                ready = poller.poll(self._timeout_ms())
                if any(fd == self._wake for fd, _ in ready):
                    os.read(self._wake, 4096)
                if any(fd == self._channel.fileno() for fd, _ in ready) and not self._obey():
                    return
                self._reap()
                if not ready:
                    self._fill_spares()
        except ConnectionError:
            return  # the controller went while we were telling it something
        finally:
            end_descendants(wait_s=ORPHANS_S)

    def _timeout_ms(self) -> int | None:
        if self._dead:
            return ORPHAN_PASS_MS
        return IDLE_MS if len(self._spares) < self._wanted else None

    def _obey(self) -> bool:
        """Carry out one order; False if the controller is gone."""
        received = receive(self._channel)
        if received is None:
            return False
        body, fds = received
        try:
            match decode_order(body):
                case Spawn(ref=ref):
                    self._say(self._spawn(ref, body, fds))
                case Kill(pid=pid, signal=number, tree=tree) if pid in self._workers:
                    below = descendants([pid], all_stats()) if tree else []
                    signal_all([pid, *below], number)
                case Kill():
                    pass  # it has ended meanwhile, and its report is on the way
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _spawn(self, ref: int, body: bytes, fds: tuple[int, ...]) -> Order:
        """Give the order to a spare, or to a new process when there is none that takes it."""
        while True:
            fresh = not self._spares
            pid, channel = self._fork(warm=False) if fresh else self._spares.popleft()
            with channel:
                channel.settimeout(HAND_OVER_S)
                try:
                    send(channel, HEADER.pack(len(body)) + body, fds)
                except OSError as exc:
                    signal_all([pid], signal.SIGKILL)  # an orphan from now on, so it will be reaped
                    if fresh:
                        return NotSpawned(ref=ref, detail=f"a forked process did not take its order: {exc}")
                    continue
            stat = read_stat(pid)
            assert stat is not None  # not reaped yet, whatever has become of it
            self._workers.add(pid)
            return Spawned(ref=ref, pid=pid, start_time=stat.start_time)

    def _fork(self, *, warm: bool) -> Spare:
        ours, theirs = socket.socketpair()
        # Blocked, not lost: a signal that comes before the child has its handlers waits for them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL_SIGNALS)
        pid = os.fork()
        if pid == 0:
            live(theirs, {signal.Signals(number) for number in mask}, warm=warm)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        return Spare(pid, ours)

    def _fill_spares(self) -> None:
        while len(self._spares) < self._wanted:
            self._spares.append(self._fork(warm=True))

    def _reap(self) -> None:
        for pid, status in reap():
            if pid in self._workers:
                self._workers.remove(pid)
                self._dead[pid] = status
                self._dead_until = _monotonic_s() + ORPHANS_S
            for spare in [spare for spare in self._spares if spare.pid == pid]:
                spare.channel.close()
                self._spares.remove(spare)
        if not self._dead:
            return
        orphans = self._orphans()
        dying = signal_all(orphans, signal.SIGKILL)
        if dying and _monotonic_s() < self._dead_until:
            return
        for pid, status in self._dead.items():
            self._say(Exited(pid=pid, status=status, leftover=orphans))
        self._dead.clear()

    def _orphans(self) -> list[int]:
        """Our children that we did not make, and all below them. Workers keep their own orphans while they live."""
        stats = all_stats()
        known = self._workers | {spare.pid for spare in self._spares}
        me = os.getpid()
        fallen = [stat.pid for stat in stats.values() if stat.ppid == me and stat.pid not in known]
        return fallen + descendants(fallen, stats)

    def _say(self, report: Order) -> None:
        send(self._channel, pack(report))


def _load(name: str) -> None:
    """Import `module`; of `module:function`, call the function too."""
    module, _, function = name.partition(":")
    loaded = import_module(module)
    if function:
        getattr(loaded, function)()


def main(arguments: list[str]) -> int:
    """Serve the controller at the other end of descriptor `arguments[0]` until it is gone."""
    fd, entry, spares, *preload = arguments
    for number in TERMINAL_SIGNALS:  # only the controller's end of the channel ends this process
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    become_subreaper("peen-nanny")
    # Whatever descends from here is found by it, should this process, the worker and the controller all be killed.
    wear(Brand.STATE, brand_number(os.environ[MARKER].rpartition(":")[0]))
    # Nothing is ever collected here, and what exists is never looked at: its pages stay shared with the workers.
    # Imports leave little that a collection would find, and the first worker would wait 40 ms for it.
    gc.disable()
    with unseen(*CONSOLES):
        for module in ("trio", "msgspec", "structlog", "yaml", entry.partition(":")[0]):
            import_module(module)
    for name in preload:
        _load(name)
    gc.freeze()
    with socket.socket(fileno=int(fd)) as channel:
        Nanny(channel, spares=int(spares)).run()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Not sys.exit: taking the interpreter apart needs 40 ms, for which the controller's own end would wait.
    os._exit(code)
