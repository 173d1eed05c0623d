"""A connection whose first bytes have been read, and one lock for everything that is sent on it."""

from __future__ import annotations

import os
import socket as stdlib_socket
import struct
from dataclasses import dataclass
from typing import Final

import h11
import trio
import trio.abc

from peen.errors import BadRequest
from peen.hub.admit import Head
from peen.hub.request import HeadTooLarge

_READ_BYTES: Final = 16_384
_MAX_DISCARDED_BYTES: Final = 16 * 1024 * 1024
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # struct linger: on, 0 s


@dataclass(frozen=True, slots=True)
class Opening:
    """What came first on a connection: the parsed head, its bytes, and what the client sent behind it."""

    head: Head
    head_bytes: bytes
    behind: bytes


async def read_opening(stream: trio.SocketStream, *, max_bytes: int) -> Opening | None:
    """Read one request head. None: the client closed before its head was complete.

    The caller sets the time limit. The parser is the one that hypercorn and wsproto use, so that no second program
    can read the same bytes as another request. Raises: HeadTooLarge, BadRequest.
    """
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=max_bytes)
    received = bytearray()
    while True:
        data = await stream.receive_some(_READ_BYTES)
        if not data:
            return None
        received += data
        parser.receive_data(data)
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:
                raise HeadTooLarge(f"request line and headers are larger than {max_bytes} bytes") from error
            raise BadRequest("this is not an HTTP/1.1 request") from error
        if isinstance(event, h11.Request):
            size = len(received) - len(parser.trailing_data[0])
            if size > max_bytes:  # it came whole, in one piece: the parser's own limit is for incomplete ones
                raise HeadTooLarge(f"request line and headers are larger than {max_bytes} bytes")
            return Opening(_head(event), bytes(received[:size]), bytes(received[size:]))


def _head(request: h11.Request) -> Head:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers]
    return Head(
        request.method.decode("latin-1"), request.target.decode("latin-1"), headers, request.http_version.decode()
    )


class HubStream(trio.abc.HalfCloseableStream):
    """Replays `opening`, then goes on with the socket.

    Owns: the socket stream and the send lock. Libraries and Peen's own writer send through the same lock, so that a
    pong never lands inside a frame. A send that takes longer than `send_s` seconds aborts the connection, because
    what the peer has of it is unknown.
    """

    def __init__(self, stream: trio.SocketStream, opening: Opening, *, send_s: float, hold: bool = False) -> None:
        """`hold`: hand out the head only, and what follows after `release`, once the upgrade was answered."""
        self._stream, self._send_s = stream, send_s
        self._replay = opening.head_bytes if hold else opening.head_bytes + opening.behind
        self._behind = opening.behind if hold else b""
        self._released = trio.Event()
        if not hold:
            self._released.set()
        self._lock = trio.StrictFIFOLock()
        self.heard_at = trio.current_time()
        """When the peer last sent anything, in trio's time; `touch` sets it to now."""

    @property
    def socket(self) -> trio.socket.SocketType:
        return self._stream.socket

    def touch(self) -> None:
        self.heard_at = trio.current_time()

    def release(self) -> None:
        """Let the bytes behind the head through."""
        self._replay += self._behind
        self._behind = b""
        self._released.set()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if not self._replay and not self._released.is_set():
            await self._released.wait()  # no deadline: `release` or the end of the connection follows at once
        if self._replay:
            await trio.lowlevel.checkpoint()
            data, self._replay = self._replay[:max_bytes], self._replay[max_bytes:] if max_bytes else b""
            return data
        received = await self._stream.receive_some(max_bytes)
        self.touch()
        return bytes(received)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with trio.move_on_after(self._send_s) as limit:
            async with self._lock:
                await self._stream.send_all(data)
        if limit.cancelled_caught:
            self.abort()
            raise trio.BrokenResourceError("the peer does not read")

    async def send_ready(self, data: bytes) -> None:
        """Like `send_all`, but without a trip through the scheduler when the kernel takes everything at once.

        It is therefore no checkpoint; the caller's loop has its own.
        """
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self.send_all(data)
            return
        try:
            sent = self._write_now(data)
            if sent < len(data):
                with trio.move_on_after(self._send_s) as limit:
                    await self._stream.send_all(memoryview(data)[sent:])
                if limit.cancelled_caught:
                    self.abort()
                    raise trio.BrokenResourceError("the peer does not read")
        finally:
            self._lock.release()

    def _write_now(self, data: bytes) -> int:
        try:
            # -1 once the socket is closed, so this never reaches a descriptor that was given to somebody else.
            return os.write(self.socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError("the connection is gone") from error

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Say that nothing more comes. No checkpoint: hypercorn calls `aclose` next, and must get there."""
        try:
            self.socket.shutdown(stdlib_socket.SHUT_WR)
        except OSError as error:
            raise trio.BrokenResourceError("the connection is gone") from error

    async def aclose(self) -> None:
        await self._stream.aclose()

    def abort(self) -> None:
        """End the connection at once: what is in flight is thrown away, every waiting task gets an exception."""
        abort(self._stream)

    async def linger(self, for_s: float) -> None:
        """Close so that a peer that is still sending can read our last words: a close with unread bytes resets.

        Takes at most `for_s` seconds, also when the surrounding work is cancelled.
        """
        await linger(self._stream, for_s)


def abort(stream: trio.SocketStream) -> None:
    """Close the socket of `stream` now, with a reset where the protocol has one."""
    if stream.socket.fileno() != -1:
        stream.socket.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_LINGER, _RESET_ON_CLOSE)
        stream.socket.close()


async def linger(stream: trio.SocketStream, for_s: float) -> None:
    """See `HubStream.linger`."""
    discarded = 0
    with trio.move_on_after(for_s, shield=True):
        try:
            await stream.send_eof()
            while discarded < _MAX_DISCARDED_BYTES and (data := await stream.receive_some(_READ_BYTES)):
                discarded += len(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            pass  # the peer, or the library that served it, has closed already
    with trio.move_on_after(for_s, shield=True):
        await stream.aclose()
