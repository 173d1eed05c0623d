"""Against real sockets: what httpx makes of a provider that misbehaves is what is tested here."""

from __future__ import annotations

import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from peen.errors import ModelError
from peen.model.transport import HttpxTransport, origin

Handler = Callable[[trio.SocketStream], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


class Provider:
    """Serves raw bytes, and counts its connections."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.connections = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        async with stream:
            await self._handler(stream)


@asynccontextmanager
async def provider(handler: Handler) -> AsyncIterator[tuple[str, Provider]]:
    serving = Provider(handler)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(partial(trio.serve_listeners, serving.serve, listeners))
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1", serving
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def transport(url: str) -> AsyncIterator[HttpxTransport]:
    made = HttpxTransport(url)
    try:
        yield made
    finally:
        await made.aclose()


async def read_request(stream: trio.SocketStream) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data and (piece := await stream.receive_some()):
        data += piece
    return data


def answering(*pieces: bytes) -> Handler:
    async def handle(stream: trio.SocketStream) -> None:
        while await read_request(stream):
            for piece in pieces:
                await stream.send_all(piece)
            if not pieces[-1].endswith(b"0\r\n\r\n"):
                return

    return handle


async def fetch(url: str) -> bytes:
    async with transport(url) as made, made.send("GET", url, {}) as reply:
        body = b""
        while piece := await reply.receive():
            body += piece
        return body


async def failure(url: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await fetch(url)
    return caught.value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_rounds_share_one_connection_and_each_has_its_own_answer() -> None:
    handler = answering(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"2\r\nhi\r\n", b"0\r\n\r\n")
    async with provider(handler) as (url, serving), transport(url) as made:
        for _ in range(3):
            async with made.send("POST", url, {"x-a": "b"}, b"{}") as reply:
                assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
                assert await reply.receive() == b"hi"
                assert await reply.receive() == b""

    assert serving.connections == 1


async def test_what_is_sent_is_what_was_given_and_no_more() -> None:
    seen: list[bytes] = []

    async def handle(stream: trio.SocketStream) -> None:
        seen.append(await read_request(stream))
        await stream.send_all(HEAD + b"Content-Length: 0\r\n\r\n")

    async with (
        provider(handle) as (url, _),
        transport(url) as made,
        made.send("POST", url + "?v=1", {"authorization": "Bearer k"}, b"{}") as reply,
    ):
        assert await reply.receive() == b""

    lines = seen[0].decode().lower().split("\r\n")
    assert lines[0] == "post /v1?v=1 http/1.1"
    assert sorted(line.partition(":")[0] for line in lines[1:] if line and line != "{}") == [
        "authorization", "content-length", "host",
    ]  # fmt: skip


async def test_a_provider_that_is_down_is_named_with_the_systems_words() -> None:
    port = free_port()

    found = await failure(f"http://127.0.0.1:{port}/v1")

    assert str(found) == f"cannot connect to http://127.0.0.1:{port}: Connection refused"
    assert (found.kind, found.retryable) == ("transport", True)


async def test_a_name_that_does_not_resolve_may_be_tried_again() -> None:
    found = await failure("http://no-such-host.invalid/v1")

    assert str(found).startswith("cannot connect to http://no-such-host.invalid: ")
    assert found.retryable


@pytest.mark.parametrize(
    "pieces",
    [
        (b"",),
        (b"HTTP/1.1 200 OK\r\nConte",),
        (b"this is no HTTP\r\n\r\n",),
        (HEAD + b"Content-Length: 9\r\n\r\nhalf",),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n",),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nplain",),
    ],
    ids=["nothing", "half a head", "no http", "short", "half chunked", "bad chunk", "not gzip"],
)
async def test_an_answer_that_breaks_off_is_a_transport_fault(pieces: tuple[bytes, ...]) -> None:
    async with provider(answering(*pieces)) as (url, _):
        found = await failure(url)

    assert str(found).startswith(f"the connection to {origin(url)} broke: ")
    assert (found.kind, found.retryable) == ("transport", True)


async def test_a_connection_that_is_reset_is_a_transport_fault() -> None:
    async def handle(stream: trio.SocketStream) -> None:
        await read_request(stream)
        await stream.send_all(HEAD + b"Content-Length: 9\r\n\r\nhalf")
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing sends RST

    async with provider(handle) as (url, _):
        found = await failure(url)

    assert (found.kind, found.retryable) == ("transport", True)


async def test_leaving_in_the_middle_closes_the_connection_at_once() -> None:
    gone = trio.Event()

    async def handle(stream: trio.SocketStream) -> None:
        await read_request(stream)
        await stream.send_all(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
        assert await stream.receive_some() == b""
        gone.set()

    async with provider(handle) as (url, _), transport(url) as made:
        with trio.CancelScope() as scope:
            async with made.send("GET", url, {}) as reply:
                assert await reply.receive() == b"hi"
                scope.cancel()
                await reply.receive()
        with trio.fail_after(5):
            await gone.wait()

    assert scope.cancelled_caught


@pytest.mark.parametrize(("rest", "connections"), [(b"", 2), (b"2\r\nha\r\n0\r\n\r\n", 1)])
async def test_an_answer_may_be_left_between_two_pieces(rest: bytes, connections: int) -> None:
    """And what had arrived whole leaves its connection for the next request."""
    handler = answering(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n2\r\nho\r\n" + rest)
    async with provider(handler) as (url, serving), transport(url) as made:
        for _ in range(2):
            async with made.send("GET", url, {}) as reply:
                assert await reply.receive() == b"hi"

    assert serving.connections == connections


async def test_compression_that_nobody_asked_for_is_undone() -> None:
    body = gzip.compress(b"data: hi")
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with provider(answering(head + body[:7], body[7:])) as (url, _):
        assert await fetch(url) == b"data: hi"


async def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    async with (
        provider(answering(b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n")) as (
            url,
            _,
        ),
        transport(url) as made,
        made.send("GET", url, {"authorization": "Bearer k"}) as reply,
    ):
        assert reply.status == 302


async def test_a_header_that_is_refused_is_not_quoted() -> None:
    async with provider(answering(b"0\r\n\r\n")) as (url, _), transport(url) as made:
        with pytest.raises(ModelError, match="is not valid HTTP") as caught:
            async with made.send("GET", url, {"authorization": "Bearer sk-secret\n"}):
                pass

    assert "sk-secret" not in str(caught.value)
    assert not caught.value.retryable


async def test_a_transport_may_be_used_again_after_it_was_closed() -> None:
    handler = answering(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")
    async with provider(handler) as (url, serving), transport(url) as made:
        for _ in range(2):
            async with made.send("GET", url, {}) as reply:
                assert await reply.receive() == b"hi"
                assert await reply.receive() == b""
            await made.aclose()

    assert serving.connections == 2


def test_a_place_is_shown_without_what_may_be_secret() -> None:
    assert origin("https://user:password@host:8443/v1?key=k") == "https://host:8443"
