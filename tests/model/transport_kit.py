"""A provider of raw bytes on real sockets, with and without TLS, for tests of transports."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

CERTIFICATE: Final = Path(__file__).parent / "certificates" / "localhost.pem"
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED: Final = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EMPTY: Final = HEAD + b"Content-Length: 0\r\n\r\n"
END: Final = b"0\r\n\r\n"

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
Handler = Callable[[Stream], Awaitable[None]]


class Provider:
    """Serves with `handler`; counts its connections and how many of them are over."""

    def __init__(self, handler: Handler, *, tls: bool) -> None:
        self._handler = handler
        self._tls = tls
        self.connections = 0
        self.ended = 0
        self._end = trio.Event()

    async def serve(self, tcp: trio.SocketStream) -> None:
        self.connections += 1
        stream: Stream = tcp
        if self._tls:
            stream = trio.SSLStream(tcp, _server_context(), server_side=True, https_compatible=True)
        try:
            await self._handler(stream)
        except trio.BrokenResourceError:
            pass  # the client has gone: what it makes of that is for the test to see
        finally:
            self.ended += 1
            self._end.set()
            await trio.aclose_forcefully(stream)

    async def until_ended(self, count: int) -> None:
        """Wait until `count` connections are over."""
        with trio.fail_after(5):
            while self.ended < count:
                self._end = trio.Event()
                await self._end.wait()


@asynccontextmanager
async def provider(
    handler: Handler, *, tls: bool = False, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[str, Provider]]:
    """A running provider and the URL of its API."""
    serving = Provider(handler, tls=tls)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host=host)
        nursery.start_soon(partial(trio.serve_listeners, serving.serve, listeners))
        port = listeners[0].socket.getsockname()[1]
        yield f"http{'s' if tls else ''}://{host}:{port}/v1", serving
        nursery.cancel_scope.cancel()


async def read_request(stream: Stream) -> bytes:
    """One request with its whole body, b"" at the end of the connection."""
    data = b""
    while not is_whole(data) and (piece := await stream.receive_some()):
        data += piece
    return data


def is_whole(data: bytes) -> bool:
    head, found, body = data.partition(b"\r\n\r\n")
    size = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    return bool(found) and len(body) >= size


def answering(*pieces: bytes, ends: bool | None = None) -> Handler:
    """Answers requests with `pieces`, and closes after the first if `ends`: by default where no chunk of 0 is last."""
    only_once = not pieces[-1].endswith(END) if ends is None else ends

    async def handle(stream: Stream) -> None:
        while await read_request(stream):
            for piece in pieces:
                await stream.send_all(piece)
            if only_once:
                return

    return handle


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context
