"""The controller's end of the fork server: order workers, hear of their ends, notice its own."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import trio

from peen.errors import LinkLost, WorkerFailed
from peen.worker.framing import FrameStream

from .nannystart import NannyProcess, end_nanny
from .orders import MAX_ORDER_BYTES, Exited, Kill, NotSpawned, Spawn, Spawned, decode_report, pack

ANSWER_S: Final = 10.0  # a fork server that has not forked by then hangs, and is killed


@dataclass
class NannyChild:
    """A worker process. `exited` is set once it and all that it left behind are gone, or its fork server is."""

    pid: int
    start_time: int
    exited: trio.Event = field(default_factory=trio.Event)
    status: int | None = None

    def settle(self, status: int) -> None:
        """Exit code, or minus the signal; only the first call counts."""
        if self.status is None:
            self.status = status
            self.exited.set()


@dataclass
class _Birth:
    done: trio.Event = field(default_factory=trio.Event)
    outcome: NannyChild | str = "the fork server is gone"


class NannyLink:
    """Speaks with one fork server.

    Owns:  the channel and the process. Ends: `run` returns when the fork server is gone, and has reaped it; `lost` is
           set before. Children that it had not reported as ended are left in `children` for the caller to end.
    """

    def __init__(self, process: NannyProcess) -> None:
        self.pid = process.popen.pid
        self.lost = trio.Event()
        self.children: dict[int, NannyChild] = {}
        self._popen = process.popen
        self._socket = trio.socket.from_stdlib_socket(process.channel)
        self._frames = FrameStream(trio.SocketStream(self._socket), max_bytes=MAX_ORDER_BYTES)
        self._births: dict[int, _Birth] = {}
        self._refs = count(1)
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._more = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry the channel until the fork server is gone. Cancelled: close it, which ends all workers, and wait."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                task_status.started()
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self.lost.set()
            for birth in self._births.values():
                birth.done.set()
            for _, fds in self._unsent:
                _close(fds)
            self._unsent.clear()
            with trio.CancelScope(shield=True):  # bounded by the two timeouts of `_reap`
                await self._frames.close()
                await trio.to_thread.run_sync(self._reap)

    async def spawn(self, order: Spawn, fds: tuple[int, int, int]) -> NannyChild:
        """Start a worker whose stdin, stdout and stderr are `fds`; they stay the caller's to close.

        Not cancellable once the order is out (at most 10 s), so that a process is never started without an owner.
        Raises: WorkerFailed; after a time-out the fork server has been killed.
        """
        if self.lost.is_set():
            raise WorkerFailed("the fork server is gone")
        birth = self._births[order.ref] = _Birth()
        # Copies, since the caller may close its own before the writer has sent them.
        self._put(pack(order), tuple(os.dup(fd) for fd in fds))
        with trio.move_on_after(ANSWER_S, shield=True):
            await birth.done.wait()
        del self._births[order.ref]
        if not birth.done.is_set():
            self.destroy()
            raise WorkerFailed(f"the fork server did not answer within {ANSWER_S:.0f} s")
        if isinstance(birth.outcome, str):
            raise WorkerFailed(birth.outcome)
        return birth.outcome

    def next_ref(self) -> int:
        return next(self._refs)

    def kill(self, pid: int, number: signal.Signals, *, tree: bool) -> None:
        """Send a signal to a worker, with `tree` to its descendants too; nothing happens if it has ended."""
        if not self.lost.is_set():
            self._put(pack(Kill(pid=pid, signal=number, tree=tree)), ())

    def wake(self) -> None:
        """Let a fork server that was stopped (SIGSTOP) go on."""
        if not self.lost.is_set():
            self._popen.send_signal(signal.SIGCONT)

    def destroy(self) -> None:
        """SIGKILL the fork server itself: `run` will notice. For one that does not do what it is told."""
        self._popen.kill()

    def _put(self, data: bytes, fds: tuple[int, ...]) -> None:
        self._unsent.append((data, fds))
        self._more.set()

    async def _write(self) -> None:
        try:
            while True:
                while self._unsent:
                    data, fds = self._unsent[0]
                    await self._send(data, fds)
                    self._unsent.popleft()
                    _close(fds)
                self._more = trio.Event()
                await self._more.wait()
        except OSError:
            return  # the reader notices the end and says so

    async def _send(self, data: bytes, fds: tuple[int, ...]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds))]
        sent = await self._socket.sendmsg([data], rights if fds else [])
        while sent < len(data):
            sent += await self._socket.send(data[sent:])

    async def _read(self) -> None:
        try:
            while frames := await self._frames.receive():
                for frame in frames:
                    self._on_report(frame)
        except LinkLost:
            return  # killed while it was telling us something

    def _on_report(self, frame: bytes) -> None:
        match decode_report(frame):
            case Spawned(ref=ref, pid=pid, start_time=start_time):
                child = self.children[pid] = NannyChild(pid, start_time)
                self._settle_birth(ref, child)
            case NotSpawned(ref=ref, detail=detail):
                self._settle_birth(ref, detail)
            case Exited(pid=pid, status=status):
                self.children.pop(pid).settle(status)

    def _settle_birth(self, ref: int, outcome: NannyChild | str) -> None:
        birth = self._births.get(ref)
        if birth is None:  # given up after the time limit; the fork server is being killed for it
            return
        birth.outcome = outcome
        birth.done.set()

    def _reap(self) -> None:
        end_nanny(self._popen)


def _close(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)
