"""HTTP/1.1 on one connection, with h11: requests come out, answers go in, and the connection stays open between."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Final

import h11
import trio
from msgspec import Struct

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
_PIECE_BYTES: Final = 65_536
_JOINED_BYTES: Final = 16_384
"""What is written without a pause goes out in sends of about this size."""


class HttpRequest(Struct, frozen=True):
    """One whole request. Names of headers are in lower case; `path` comes without its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class HttpConnection:
    """Owns: the stream, which the caller closes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.SERVER)
        self._out = bytearray()  # what h11 has made of heads and ends
        self._body = bytearray()  # pieces of the body that are not even chunks yet

    async def request(self) -> HttpRequest | None:
        """The next request, None when the client is done. Raises: h11.RemoteProtocolError, trio.BrokenResourceError."""
        if self._h11.our_state is h11.DONE:
            self._h11.start_next_cycle()
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                # No deadline: an idle client keeps its connection for as long as it likes.
                self._h11.receive_data(await self._stream.receive_some(_PIECE_BYTES))
            elif isinstance(event, h11.Request):
                head = event
                if self._h11.they_are_waiting_for_100_continue:
                    self._add(h11.InformationalResponse(status_code=100, headers=[]))
                    await self.flush()
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MAX_BODY_BYTES:
                    raise h11.RemoteProtocolError(f"a body of more than {MAX_BODY_BYTES} bytes", 413)
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
                path = head.target.decode("latin-1").partition("?")[0]
                return HttpRequest(head.method.decode("latin-1"), path, headers, bytes(body))
            else:
                return None  # ConnectionClosed, or PAUSED behind an upgrade that nobody offers here

    async def gone(self) -> None:
        """Return when the client closes; a request that it sends meanwhile is kept for later."""
        try:
            while piece := await self._stream.receive_some(_PIECE_BYTES):
                self._h11.receive_data(piece)
        except trio.BrokenResourceError:
            return

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of an answer; it goes out with what follows."""
        self._add(h11.Response(status_code=status, headers=list(headers.items())))

    async def write(self, data: bytes, *, at_once: bool) -> None:
        """A piece of the body; unless `at_once`, it may wait for more."""
        self._body += data
        if at_once or len(self._body) >= _JOINED_BYTES:
            await self.flush()

    def reset(self) -> None:
        """Make the close that follows break the connection: the client gets RST in the place of an end."""
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def finish(self) -> bool:
        """The end of the answer; whether the connection may serve another request."""
        self._add(h11.EndOfMessage())
        await self._send()
        return self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    async def flush(self) -> None:
        """Send what waits."""
        self._close_chunk()
        await self._send()

    def _close_chunk(self) -> None:
        if self._body:
            data = bytes(self._body)
            self._body.clear()
            self._out += self._h11.send(h11.Data(data=data)) or b""

    async def _send(self) -> None:
        if self._out:
            data = bytes(self._out)
            self._out.clear()
            await self._stream.send_all(data)

    def _add(self, event: h11.Event) -> None:
        self._close_chunk()
        self._out += self._h11.send(event) or b""
