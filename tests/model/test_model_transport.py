"""What every transport does, against real sockets and providers that misbehave."""

from __future__ import annotations

import base64
import gzip
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from transport_kit import CERTIFICATE, CHUNKED, EMPTY, END, HEAD, Stream, answering, provider, read_request
from trio.testing import MockClock

from peen.errors import ModelError
from peen.model.direct import DirectTransport
from peen.model.proxied import HttpxTransport
from peen.model.transport import CONNECT_S, Transport, origin

Make = Callable[[str], Transport]
HI = CHUNKED + b"2\r\nhi\r\n" + END


def direct(_url: str) -> Transport:
    return DirectTransport()


@pytest.fixture(params=[direct, HttpxTransport], ids=["direct", "httpx"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    made: Make = request.param
    return made


@asynccontextmanager
async def transport(make: Make, url: str) -> AsyncIterator[Transport]:
    made = make(url)
    try:
        yield made
    finally:
        await made.aclose()


async def fetch(make: Make, url: str, method: str = "GET", body: bytes = b"") -> bytes:
    async with transport(make, url) as made, made.send(method, url, {}, body) as reply:
        found = b""
        while piece := await reply.receive():
            found += piece
        return found


async def failure(make: Make, url: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await fetch(make, url)
    return caught.value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- what is sent, and over what --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [False, True])
async def test_rounds_share_one_connection_and_each_has_its_own_answer(make: Make, tls: bool) -> None:
    handler = answering(CHUNKED, b"2\r\nhi\r\n", END)
    async with provider(handler, tls=tls) as (url, serving), transport(make, url) as made:
        for _ in range(3):
            async with made.send("POST", url, {"x-a": "b"}, b"{}") as reply:
                assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
                assert await reply.receive() == b"hi"
                assert await reply.receive() == b""
                assert await reply.receive() == b""

    assert serving.connections == 1


async def request_sent(make: Make, method: str, address: Callable[[str], str], body: bytes) -> list[str]:
    """The lines of a request as the provider sees it, in lower case, without its body."""
    seen: list[bytes] = []

    async def handle(stream: Stream) -> None:
        seen.append(await read_request(stream))
        await stream.send_all(EMPTY)

    async with provider(handle) as (url, _), transport(make, url) as made:
        headers = {"authorization": "Bearer k"}
        async with made.send(method, address(url), headers, body) as reply:
            assert await reply.receive() == b""
    return seen[0].partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")


@pytest.mark.parametrize("body", [b"{}", b""])
async def test_what_is_sent_is_what_was_given_and_no_more(make: Make, body: bytes) -> None:
    lines = await request_sent(make, "POST", lambda url: url + "?v=1", body)

    assert lines[0] == "post /v1?v=1 http/1.1"
    assert sorted(line.partition(":")[0] for line in lines[1:]) == ["authorization", "content-length", "host"]
    assert f"content-length: {len(body)}" in lines


async def test_a_question_without_a_body_says_nothing_of_one(make: Make) -> None:
    lines = await request_sent(make, "GET", str, b"")

    assert not [line for line in lines if line.startswith(("content-length", "transfer-encoding"))]


async def test_a_path_is_quoted_where_it_must_be(make: Make) -> None:
    lines = await request_sent(make, "GET", lambda url: url + "/a b/ü%20?q=x y", b"")

    assert lines[0] == "get /v1/a%20b/%c3%bc%20?q=x%20y http/1.1"


async def test_a_name_and_a_password_in_the_url_are_sent_as_such(make: Make) -> None:
    lines = await request_sent(make, "GET", lambda url: url.replace("://", "://me:p%40ss@"), b"")

    credentials = base64.b64encode(b"me:p@ss").decode().lower()
    assert [line for line in lines if line.startswith("authorization")] == [f"authorization: basic {credentials}"]


async def test_a_header_that_is_refused_is_not_quoted(make: Make) -> None:
    async with provider(answering(END)) as (url, _), transport(make, url) as made:
        with pytest.raises(ModelError, match="is not valid HTTP") as caught:
            async with made.send("GET", url, {"authorization": "Bearer sk-secret\n"}):
                pass

    assert "sk-secret" not in str(caught.value)
    assert not caught.value.retryable


# --- no connection ----------------------------------------------------------------------------------------------------


async def test_a_provider_that_is_down_is_named_with_the_systems_words(make: Make) -> None:
    port = free_port()

    found = await failure(make, f"http://127.0.0.1:{port}/v1")

    assert str(found) == f"cannot connect to http://127.0.0.1:{port}: Connection refused"
    assert (found.kind, found.retryable) == ("transport", True)


async def test_a_name_that_does_not_resolve_may_be_tried_again(make: Make) -> None:
    found = await failure(make, "http://no-such-host.invalid/v1")

    assert str(found).startswith("cannot connect to http://no-such-host.invalid: ")
    assert found.retryable


@pytest.mark.parametrize("url", ["ftp://host/v1", "host/v1"])
async def test_an_address_that_is_none_is_not_tried_again(make: Make, url: str) -> None:
    found = await failure(make, url)

    assert str(found).startswith("cannot reach ")
    assert not found.retryable


async def test_a_certificate_that_nobody_vouches_for_is_refused_for_good(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    async with provider(answering(HI), tls=True) as (url, _):
        found = await failure(make, url)

    assert str(found) == f"cannot connect to {origin(url)}: its certificate is refused: self-signed certificate"
    assert (found.kind, found.retryable) == ("transport", False)


async def test_a_server_without_tls_behind_an_https_address_is_told_apart(make: Make) -> None:
    async def handle(stream: Stream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with provider(handle) as (url, _):
        encrypted = url.replace("http:", "https:")
        found = await failure(make, encrypted)

    assert str(found).startswith(f"cannot connect to {origin(encrypted)}: TLS failed: ")
    assert found.retryable


async def test_a_server_that_takes_too_long_to_accept_is_given_up(make: Make, mock_clock: MockClock) -> None:
    reached = trio.Event()
    found: list[ModelError] = []

    async def handle(stream: Stream) -> None:
        await stream.receive_some()  # the beginning of TLS, which nobody answers
        reached.set()
        await trio.sleep_forever()

    async def ask(url: str) -> None:
        found.append(await failure(make, url))

    async with provider(handle) as (url, _), trio.open_nursery() as nursery:
        encrypted = url.replace("http:", "https:")
        nursery.start_soon(ask, encrypted)
        await reached.wait()
        mock_clock.jump(CONNECT_S)

    assert [(str(error), error.kind, error.retryable) for error in found] == [
        (f"no connection to {origin(encrypted)} within 10 s", "timeout", True)
    ]


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        ((CHUNKED, b"2\r\nhi\r\n1", b"\r\n!\r\n", b"0\r\nX-Trailer: a\r\n\r\n"), b"hi!"),
        ((CHUNKED + b"2;a=b\r\nhi\r\n" + END,), b"hi"),
        ((HEAD + b"Content-Length: 4\r\n\r\nhi", b"hi"), b"hihi"),
        ((HEAD + b"\r\nhi", b"hi"), b"hihi"),
        ((b"HTTP/1.0 200 OK\r\n\r\nhi",), b"hi"),
        ((b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + HI,), b"hi"),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), b""),
        ((b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",), b""),
    ],
    ids=["chunked", "extension", "length", "to the end", "1.0", "early hints", "no content", "not modified"],
)
@pytest.mark.parametrize("tls", [False, True])
async def test_a_body_may_be_framed_in_every_way(make: Make, pieces: tuple[bytes, ...], body: bytes, tls: bool) -> None:
    async with provider(answering(*pieces, ends=True), tls=tls) as (url, _):
        assert await fetch(make, url) == body


async def test_repeated_headers_are_joined(make: Make) -> None:
    handler = answering(HEAD + b"X-A: 1\r\nX-A: 2\r\nContent-Length: 0\r\n\r\n")
    async with provider(handler) as (url, _), transport(make, url) as made, made.send("GET", url, {}) as reply:
        assert reply.headers["x-a"] == "1, 2"
        assert reply.headers.get("x-b", "none") == "none"


@pytest.mark.parametrize(
    "pieces",
    [
        (b"",),
        (b"HTTP/1.1 200 OK\r\nConte",),
        (b"this is no HTTP\r\n\r\n",),
        (HEAD + b"X: " + b"x" * 300_000 + b"\r\n\r\n",),
        (HEAD + b"Content-Length: 9\r\n\r\nhalf",),
        (CHUNKED + b"2\r\nhi\r\n",),
        (CHUNKED + b"nonsense\r\n",),
        (CHUNKED + b"2\r\nhi, and more\r\n" + END,),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nplain",),
    ],
    ids=[
        "nothing", "half a head", "no http", "head without end", "short", "half chunked", "bad chunk", "long chunk",
        "not gzip",
    ],
)  # fmt: skip
async def test_an_answer_that_breaks_off_is_a_transport_fault(make: Make, pieces: tuple[bytes, ...]) -> None:
    async with provider(answering(*pieces, ends=True)) as (url, _):
        found = await failure(make, url)

    assert str(found).startswith(f"the connection to {origin(url)} broke: ")
    assert (found.kind, found.retryable) == ("transport", True)


async def test_what_came_in_front_of_a_fault_is_given_out(make: Make) -> None:
    handler = answering(CHUNKED + b"2\r\nhi\r\nnonsense\r\n", ends=True)
    async with provider(handler) as (url, _), transport(make, url) as made, made.send("GET", url, {}) as reply:
        assert await reply.receive() == b"hi"
        with pytest.raises(ModelError, match="broke"):
            await reply.receive()


async def test_an_answer_that_makes_no_sense_is_not_quoted(make: Make) -> None:
    async with provider(answering(b"Bearer sk-secret is wrong\r\n\r\n")) as (url, _):
        assert "sk-secret" not in str(await failure(make, url))


async def test_a_connection_that_is_reset_is_a_transport_fault(make: Make) -> None:
    async def handle(stream: Stream) -> None:
        assert isinstance(stream, trio.SocketStream)
        await read_request(stream)
        await stream.send_all(HEAD + b"Content-Length: 9\r\n\r\nhalf")
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing sends RST

    async with provider(handle) as (url, _):
        found = await failure(make, url)

    assert (found.kind, found.retryable) == ("transport", True)


async def test_compression_that_nobody_asked_for_is_undone(make: Make) -> None:
    body = gzip.compress(b"data: hi")
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with provider(answering(head + body[:7], body[7:])) as (url, _):
        assert await fetch(make, url) == b"data: hi"


async def test_a_redirect_is_an_answer_and_is_not_followed(make: Make) -> None:
    handler = answering(b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n")
    async with provider(handler) as (url, _), transport(make, url) as made, made.send("GET", url, {}) as reply:
        assert reply.status == 302


# --- leaving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [False, True])
async def test_leaving_in_the_middle_closes_the_connection_at_once(make: Make, tls: bool) -> None:
    async def handle(stream: Stream) -> None:
        await read_request(stream)
        await stream.send_all(CHUNKED + b"2\r\nhi\r\n")
        assert await stream.receive_some() == b""

    async with provider(handle, tls=tls) as (url, serving), transport(make, url) as made:
        with trio.CancelScope() as scope:
            async with made.send("GET", url, {}) as reply:
                assert await reply.receive() == b"hi"
                scope.cancel()
                await reply.receive()
        await serving.until_ended(1)

    assert scope.cancelled_caught


async def test_a_request_that_waits_for_its_answer_can_be_cancelled(make: Make) -> None:
    asked = trio.Event()

    async def handle(stream: Stream) -> None:
        await read_request(stream)
        asked.set()
        assert await stream.receive_some() == b""

    async with provider(handle) as (url, serving), transport(make, url) as made:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                async with made.send("POST", url, {}, b"{}"):
                    raise AssertionError("no answer was sent")

            nursery.start_soon(ask)
            await asked.wait()
            nursery.cancel_scope.cancel()
        await serving.until_ended(1)


@pytest.mark.parametrize(("rest", "connections"), [(b"", 2), (b"2\r\nha\r\n" + END, 1)])
async def test_an_answer_may_be_left_between_two_pieces(make: Make, rest: bytes, connections: int) -> None:
    """And what had arrived whole leaves its connection for the next request."""
    handler = answering(CHUNKED, b"2\r\nhi\r\n2\r\nho\r\n" + rest)
    async with provider(handler) as (url, serving), transport(make, url) as made:
        for _ in range(2):
            async with made.send("GET", url, {}) as reply:
                assert (await reply.receive()).startswith(b"hi")

    assert serving.connections == connections


async def test_an_error_of_the_caller_leaves_a_connection_whose_answer_was_read(make: Make) -> None:
    async def ask(made: Transport, url: str) -> None:
        async with made.send("GET", url, {}) as reply:
            while await reply.receive():
                pass
            raise ModelError("status 500", kind="server_error", retryable=True)

    async with provider(answering(HI)) as (url, serving), transport(make, url) as made:
        for _ in range(2):
            with pytest.raises(ModelError, match="status"):
                await ask(made, url)

    assert serving.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    ],
    ids=["close", "1.0"],
)
async def test_a_connection_that_cannot_serve_another_request_does_not(make: Make, answer: bytes) -> None:
    async with provider(answering(answer, ends=False)) as (url, serving), transport(make, url) as made:
        for _ in range(2):
            async with made.send("GET", url, {}) as reply:
                while piece := await reply.receive():
                    assert piece == b"hi"

    assert serving.connections == 2


async def test_a_transport_may_be_used_again_after_it_was_closed(make: Make) -> None:
    async with provider(answering(HI)) as (url, serving), transport(make, url) as made:
        for _ in range(2):
            async with made.send("GET", url, {}) as reply:
                assert await reply.receive() == b"hi"
                assert await reply.receive() == b""
            await made.aclose()

    assert serving.connections == 2


def test_a_place_is_shown_without_what_may_be_secret() -> None:
    assert origin("https://user:password@host:8443/v1?key=k") == "https://host:8443"
