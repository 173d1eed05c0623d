"""A worker's socket in memory: counts frames, and can be cut, held up, or slowed by chance."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Final

import trio
from trio.testing import memory_stream_pair

from peen.space.door import _PEERCRED
from peen.worker.framing import HEADER, FrameBuffer

MAX_LATENCY_S: Final = 0.002


class _Peer:
    """What the door asks a socket: who is at the other end."""

    def getsockopt(self, _level: int, _option: int, _size: int) -> bytes:
        return _PEERCRED.pack(os.getpid(), os.geteuid(), os.getegid())


class Wire:
    """Both ends of one link. Cutting it ends both directions at once; what is under way is lost."""

    def __init__(self, chance: random.Random) -> None:
        near, far = memory_stream_pair()
        self.controller = WireEnd(near, self)
        self.worker = WireEnd(far, self)
        self.chance = chance
        self.is_cut = False
        self.is_haunted = False
        """Whether the controller has lost this worker, while somebody else listens at its end."""
        self.unheard = b""
        self._flowing = trio.Event()
        self._flowing.set()

    def cut(self) -> None:
        """Break the link now, for both."""
        self.is_cut = True
        self._flowing.set()
        for end in (self.controller, self.worker):
            end.inner.send_stream.close()
            end.inner.receive_stream.close()

    def hold(self) -> None:
        """Let nothing through from now on, as if the worker stood still."""
        self._flowing = trio.Event()

    def go_on(self) -> None:
        """Let through what was held up, and all that comes."""
        self._flowing.set()

    async def pass_through(self) -> None:
        """Wait as long as the way takes. Raises: trio.BrokenResourceError if the link is cut."""
        if not self.is_cut and self.chance.random() < 0.5:
            await trio.sleep(self.chance.random() * MAX_LATENCY_S)
        await self._flowing.wait()
        if self.is_cut:
            raise trio.BrokenResourceError("the link was cut")


class WireEnd(trio.abc.Stream):
    """One end. `sending` is asked for each frame before it goes: True cuts the link, with `half` inside the frame."""

    socket: Final = _Peer()

    def __init__(self, inner: trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream],
                 wire: Wire) -> None:  # fmt: skip
        self.inner, self.wire = inner, wire
        self.half = False
        self.sending: Callable[[], bool] = lambda: False
        self._outgoing = FrameBuffer()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.wire.pass_through()
        for frame in self._outgoing.feed(bytes(data)):
            whole = HEADER.pack(len(frame)) + frame
            if self.sending():
                if self.half:
                    await self.inner.send_all(whole[: len(whole) // 2])
                    await self.inner.send_stream.aclose()  # the other end reads the piece, then the end
                    await trio.sleep(MAX_LATENCY_S)
                self.wire.cut()
                raise trio.BrokenResourceError("the link was cut")
            await self.inner.send_all(whole)

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self.wire.is_cut:
            raise trio.BrokenResourceError("the link was cut")
        data = bytes(await self.inner.receive_some(max_bytes))
        if self.wire.is_haunted and self is self.wire.controller:
            self.wire.unheard = data
            raise trio.BrokenResourceError("the worker was given up")
        return data

    async def aclose(self) -> None:
        if not (self.wire.is_haunted and self is self.wire.controller):
            self._close()
        await trio.lowlevel.checkpoint()

    def _close(self) -> None:
        # Closing one end of a socket lets the other read what was sent before.
        self.inner.send_stream.close()
        self.inner.receive_stream.close()


class HauntedEnd(WireEnd):
    """The controller's end of a worker that it has given up: what came too late for it, and all the rest."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self.wire.unheard:
            data, self.wire.unheard = self.wire.unheard, b""
            await trio.lowlevel.checkpoint()
            return data
        return await super().receive_some(max_bytes)
