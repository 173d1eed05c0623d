"""Frames on a stream: 4 bytes of length (big-endian), then that many bytes of JSON."""

from __future__ import annotations

import struct
from typing import ClassVar, Final

import trio

from peen.errors import LinkLost, PeenError
from peen.wire.worker import MAX_FRAME_BYTES

HEADER: Final = struct.Struct(">I")
RECEIVE_BYTES: Final = 64 * 1024
MAX_RECEIVE_BYTES: Final = 1024 * 1024  # one receive while a long frame is coming in
HIGH_WATER_BYTES: Final = 1024 * 1024  # `drain` waits while more than this is unsent
MAX_UNSENT_BYTES: Final = 2 * MAX_FRAME_BYTES  # past this the peer is taken for dead: it does not read


class FrameTooLong(PeenError):
    """A frame that we wanted to send is over the limit. Nothing was sent; the link goes on."""

    code: ClassVar[str] = "FRAME_TOO_LONG"

    def __init__(self, size: int, *, limit: int) -> None:
        super().__init__(f"a frame of {size} bytes is over the limit of {limit} bytes")
        self.size, self.limit = size, limit


class FrameBuffer:
    """Cuts received bytes into frames; does no I/O."""

    def __init__(self, *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes = max_bytes
        self._rest = bytearray()
        self._too_long = 0

    @property
    def half(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._rest)

    @property
    def missing(self) -> int:
        """Bytes that the frame which has begun still needs; 0 if its length is not known yet."""
        if len(self._rest) < HEADER.size:
            return 0
        size: int = HEADER.unpack_from(self._rest)[0]
        return size + HEADER.size - len(self._rest)

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """The frames that `data` completes, in order.

        Raises: LinkLost if a frame announces more than `max_bytes`, before its bytes are kept. Frames in front of
        such a one are returned first; the next call raises.
        """
        self.check()
        whole = data
        if self._rest:
            self._rest += data
            whole = self._rest
        frames: list[bytes] = []
        at, end = 0, len(whole)
        with memoryview(whole) as view:
            while end - at >= HEADER.size:
                (size,) = HEADER.unpack_from(view, at)
                if size > self.max_bytes:
                    self._too_long = size
                    break
                body = at + HEADER.size
                if end - body < size:
                    break
                frames.append(bytes(view[body : body + size]))
                at = body + size
        if self._too_long:
            self._rest = bytearray()
            if not frames:
                self.check()
        elif whole is self._rest:
            del self._rest[:at]
        elif at < end:
            self._rest += data[at:]
        return frames

    def check(self) -> None:
        """Raise LinkLost if a frame over the limit was announced."""
        if self._too_long:
            raise LinkLost(f"the peer announced a frame of {self._too_long} bytes; the limit is {self.max_bytes} bytes")


class FrameStream:
    """Frames over a trio stream, with one reader and one writer task.

    Owns the stream. `write` must run in a task for `send_soon` to have an effect; before it does, `send` may be used.
    """

    def __init__(self, stream: trio.abc.Stream, *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._stream = stream
        self._incoming = FrameBuffer(max_bytes=max_bytes)
        self._ready: list[bytes] = []
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0  # those in `send_all` included
        self._more, self._less = trio.Event(), trio.Event()
        self._lost = ""

    def allow(self, max_bytes: int) -> None:
        """Accept incoming frames of up to `max_bytes` from now on."""
        self._incoming.max_bytes = max_bytes

    async def receive(self) -> list[bytes]:
        """One or more frames, as many as have arrived; an empty list when the peer closed between two frames.

        Raises: LinkLost if the connection broke, ended inside a frame, or announced a frame over the limit.
        """
        if self._ready:
            ready, self._ready = self._ready, []
            return ready
        while True:
            self._incoming.check()
            size = min(max(RECEIVE_BYTES, self._incoming.missing), MAX_RECEIVE_BYTES)
            try:
                data = await self._stream.receive_some(size)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
                raise LinkLost("the connection broke") from exc
            if not data:
                if self._incoming.half:
                    raise LinkLost("the connection ended in the middle of a frame")
                return []
            if frames := self._incoming.feed(data):
                return frames

    def unread(self, frames: list[bytes]) -> None:
        """Let the next `receive` return `frames` first."""
        self._ready = frames + self._ready

    def send_soon(self, payload: bytes) -> None:
        """Put one frame into the outgoing buffer; frames leave in the order of these calls.

        Raises: FrameTooLong (the link goes on); LinkLost if the writer has ended or the peer reads so slowly that
        64 MiB are waiting.
        """
        if len(payload) > MAX_FRAME_BYTES:
            raise FrameTooLong(len(payload), limit=MAX_FRAME_BYTES)
        if not self._lost and self._unsent_bytes + len(payload) > MAX_UNSENT_BYTES:
            self._lost = f"the peer does not read: {self._unsent_bytes} bytes are waiting"
            self._more.set()
        if self._lost:
            raise LinkLost(self._lost)
        self._unsent.append(HEADER.pack(len(payload)))
        self._unsent.append(payload)
        self._unsent_bytes += HEADER.size + len(payload)
        self._more.set()

    async def send(self, payload: bytes) -> None:
        """Send one frame at once. Only while no `write` task runs. Raises: LinkLost, FrameTooLong."""
        self.send_soon(payload)
        await self._flush_once()

    async def drain(self, *, below: int = HIGH_WATER_BYTES) -> None:
        """Wait until at most `below` bytes are unsent (0: everything was given to the kernel). Raises: LinkLost.

        No deadline: it ends when the peer reads or the link is lost, and the owner of the link bounds that.
        """
        while self._unsent_bytes > below and not self._lost:
            self._less = trio.Event()
            await self._less.wait()
        if self._lost:
            raise LinkLost(self._lost)

    async def write(self) -> None:
        """Send what is put into the buffer, joined, until cancelled. Raises: LinkLost."""
        try:
            while not self._lost:
                if self._unsent:
                    await self._flush_once()
                else:
                    self._more = trio.Event()
                    await self._more.wait()
            raise LinkLost(self._lost)
        finally:
            self._lost = self._lost or "the link is closed"
            self._less.set()

    async def _flush_once(self) -> None:
        batch = b"".join(self._unsent)
        self._unsent.clear()
        try:
            await self._stream.send_all(batch)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            self._lost = "the connection broke"
            raise LinkLost(self._lost) from exc
        self._unsent_bytes -= len(batch)
        self._less.set()

    async def close(self) -> None:
        """Close the stream without waiting for anything."""
        await trio.aclose_forcefully(self._stream)
