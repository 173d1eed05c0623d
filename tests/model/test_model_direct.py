"""What only the direct transport does: which connections it keeps, and when it asks again."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys

import h11
import pytest
import trio
from transport_kit import CERTIFICATE, CHUNKED, EMPTY, END, HEAD, Handler, Stream, answering, provider, read_request
from trio.testing import MockClock

from peen.errors import ModelError
from peen.model import connection
from peen.model.connection import MAX_HEAD_BYTES, Connection, Target
from peen.model.direct import MAX_IDLE, DirectTransport
from peen.model.transport import KEEP_OPEN_S

HI = CHUNKED + b"2\r\nhi\r\n" + END


async def ask(transport: DirectTransport, url: str, method: str = "GET", body: bytes = b"") -> bytes:
    async with transport.send(method, url, {}, body) as reply:
        found = b""
        while piece := await reply.receive():
            found += piece
        return found


# --- connections that wait --------------------------------------------------------------------------------------------


async def test_a_connection_that_the_server_closed_while_it_waited_is_not_used() -> None:
    transport = DirectTransport()
    async with provider(answering(HI, ends=True)) as (url, serving):
        for count in (1, 2):
            assert await ask(transport, url, "POST", b"{}") == b"hi"
            await serving.until_ended(count)
        await transport.aclose()

    assert serving.connections == 2


async def test_a_connection_on_which_something_came_unasked_is_not_used() -> None:
    said = trio.Event()

    async def handle(stream: Stream) -> None:
        await read_request(stream)
        await stream.send_all(HI)
        await stream.send_all(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        said.set()
        assert await read_request(stream) == b""

    transport = DirectTransport()
    async with provider(handle) as (url, serving):
        for _ in range(2):
            assert await ask(transport, url) == b"hi"
            await said.wait()
        await transport.aclose()

    assert serving.connections == 2


@pytest.mark.parametrize(("waited_s", "connections"), [(KEEP_OPEN_S - 1, 1), (KEEP_OPEN_S, 2)])
async def test_a_connection_waits_for_a_minute(mock_clock: MockClock, waited_s: float, connections: int) -> None:
    transport = DirectTransport()
    async with provider(answering(HI)) as (url, serving):
        assert await ask(transport, url) == b"hi"
        mock_clock.jump(waited_s)
        assert await ask(transport, url) == b"hi"
        await transport.aclose()

    assert serving.connections == connections


async def crowd(transport: DirectTransport, url: str, count: int) -> None:
    """`count` requests that are all under way at once."""
    arrived = 0
    all_there = trio.Event()

    async def one() -> None:
        nonlocal arrived
        async with transport.send("GET", url, {}) as reply:
            assert await reply.receive() == b"hi"
            arrived += 1
            if arrived == count:
                all_there.set()
            await all_there.wait()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)


async def test_only_a_handful_of_connections_waits() -> None:
    transport = DirectTransport()
    async with provider(answering(HI)) as (url, serving):
        await crowd(transport, url, MAX_IDLE + 2)
        await serving.until_ended(2)
        await crowd(transport, url, MAX_IDLE)

        assert (serving.connections, serving.ended) == (MAX_IDLE + 2, 2)
        await transport.aclose()
        await serving.until_ended(MAX_IDLE + 2)


async def test_connections_that_waited_too_long_are_closed_when_another_returns(mock_clock: MockClock) -> None:
    transport = DirectTransport()
    async with provider(answering(HI)) as (url, serving):
        await crowd(transport, url, 3)
        mock_clock.jump(KEEP_OPEN_S - 1)
        assert await ask(transport, url) == b"hi"
        mock_clock.jump(2)
        assert await ask(transport, url) == b"hi"

        await serving.until_ended(2)
        assert (serving.connections, serving.ended) == (3, 2)
        await transport.aclose()


async def test_closing_leaves_nothing_open_when_it_is_cancelled() -> None:
    transport = DirectTransport()
    async with provider(answering(HI)) as (url, serving):
        assert await ask(transport, url) == b"hi"
        with trio.CancelScope() as scope:
            scope.cancel()
            await transport.aclose()
        await serving.until_ended(1)

    assert scope.cancelled_caught


async def test_every_origin_has_connections_of_its_own() -> None:
    transport = DirectTransport()
    async with provider(answering(HI)) as (one, first), provider(answering(HI)) as (two, second):
        for url in (one, two, one, two):
            assert await ask(transport, url) == b"hi"
        await transport.aclose()

    assert (first.connections, second.connections) == (1, 1)


@pytest.mark.parametrize(
    "answer",
    [
        HI + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
        HEAD + b"Content-Length: 2\r\n\r\nhi, and more",
        HEAD + b"Content-Length: 0\r\n\r\nmore",
    ],
    ids=["another answer", "more than announced", "more than nothing"],
)
async def test_what_comes_behind_an_answer_never_passes_for_the_next(answer: bytes) -> None:
    transport = DirectTransport()
    async with provider(answering(answer, ends=False)) as (url, serving):
        for _ in range(2):
            assert await ask(transport, url) in (b"hi", b"")
        await transport.aclose()

    assert serving.connections == 2


# --- asking again -----------------------------------------------------------------------------------------------------


class Unaware(Connection):
    """Does not notice that the server has closed it: as if that happened as the request is sent."""

    def has_ended(self) -> bool:
        return False


async def connect_unaware(target: Target) -> Connection:
    tcp = await trio.open_tcp_stream(target.host, target.port)
    return Unaware(tcp, tcp.socket, target.place)


METHODS = pytest.mark.parametrize(("method", "body"), [("GET", b""), ("POST", b"{}"), ("POST", b"x" * 3_000_000)])


@METHODS
async def test_a_request_that_the_server_cannot_have_read_is_sent_once_more(method: str, body: bytes) -> None:
    requests: list[bytes] = []

    async def handle(stream: Stream) -> None:
        requests.append(await read_request(stream))
        await stream.send_all(HI)

    transport = DirectTransport(connect=connect_unaware)
    async with provider(handle) as (url, serving):
        for count in (1, 2, 3):
            assert await ask(transport, url, method, body) == b"hi"
            await serving.until_ended(count)
        await transport.aclose()

    assert len(requests) == 3
    assert requests[0] == requests[1] == requests[2]


async def test_an_end_that_comes_while_the_request_is_written_is_told_from_a_break() -> None:
    for is_break in (False, True):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            tcp = await trio.open_tcp_stream("127.0.0.1", listener.getsockname()[1])
            peer, _ = listener.accept()
            if is_break:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

            class Late(Connection):
                """The server closes just after it was looked at."""

                def _says_something(self, peer: socket.socket = peer) -> bool:
                    peer.close()
                    return False

            asking = Late(tcp, tcp.socket, "http://p")
            with pytest.raises(ModelError):
                await asking.ask(h11.Request(method="GET", target="/", headers=[("host", "p")]), b"")

            assert asking.was_closed_before() is not is_break
            asking.close()


def failing_at(second: Handler) -> Handler:
    """Answers the first request of a connection and leaves the next one to `second`."""

    async def handle(stream: Stream) -> None:
        await read_request(stream)
        await stream.send_all(HI)
        await second(stream)

    return handle


async def read_and_close(stream: Stream) -> None:
    await read_request(stream)


async def answer_half(stream: Stream) -> None:
    await read_request(stream)
    await stream.send_all(b"HTTP/1.1 200 O")


async def read_and_break(stream: Stream) -> None:
    await read_request(stream)
    assert isinstance(stream, trio.SocketStream)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@METHODS
@pytest.mark.parametrize("second", [read_and_close, read_and_break, answer_half])
async def test_a_request_that_the_server_has_read_is_not_sent_again(method: str, body: bytes, second: Handler) -> None:
    transport = DirectTransport(connect=connect_unaware)
    async with provider(failing_at(second)) as (url, serving):
        assert await ask(transport, url, method, body) == b"hi"
        with pytest.raises(ModelError, match="broke"):
            await ask(transport, url, method, body)
        await transport.aclose()

    assert serving.connections == 1


async def test_a_request_over_a_new_connection_is_sent_once() -> None:
    transport = DirectTransport()

    async def handle(stream: Stream) -> None:
        pass  # closes at once, before it has read anything

    async with provider(handle) as (url, serving):
        with pytest.raises(ModelError, match="broke"):
            await ask(transport, url, "POST", b"{}")

    assert serving.connections == 1


# --- answers ----------------------------------------------------------------------------------------------------------


async def test_a_refusal_that_comes_before_the_body_was_read_is_an_answer() -> None:
    async def handle(stream: Stream) -> None:
        await stream.receive_some(1)
        await stream.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")

    transport = DirectTransport()
    async with provider(handle) as (url, serving):
        for _ in range(2):
            async with transport.send("POST", url, {}, b"x" * 16_000_000) as reply:
                assert (reply.status, await reply.receive()) == (413, b"big")

    assert serving.connections == 2


@pytest.mark.parametrize(("size", "is_taken"), [(MAX_HEAD_BYTES - 200, True), (2 * MAX_HEAD_BYTES, False)])
async def test_a_head_has_a_limit(size: int, is_taken: bool) -> None:
    transport = DirectTransport()

    async def handle(stream: Stream) -> None:
        await read_request(stream)
        await stream.send_all(HEAD + b"X: " + b"x" * size)
        await stream.send_all(b"\r\nContent-Length: 2\r\n\r\nhi")

    async with provider(handle) as (url, _):
        if is_taken:
            assert await ask(transport, url) == b"hi"
        else:
            with pytest.raises(ModelError, match="broke: Receive buffer too long"):
                await ask(transport, url)
        await transport.aclose()


async def test_pieces_that_arrive_together_are_given_out_together() -> None:
    transport = DirectTransport()
    async with provider(answering(CHUNKED, b"2\r\nhi\r\n3\r\n ho\r\n" + END)) as (url, _):
        async with transport.send("GET", url, {}) as reply:
            pieces = [await reply.receive(), await reply.receive()]
        await transport.aclose()

    assert pieces == [b"hi ho", b""]


# --- addresses and certificates ---------------------------------------------------------------------------------------


def test_a_url_is_taken_apart() -> None:
    target = Target.of("https://Us%40er:pass@Bücher.Example:8443/v1?a=b#c")

    assert target == Target(
        encrypted=True,
        host="xn--bcher-kva.example",
        port=8443,
        netloc="xn--bcher-kva.example:8443",
        path="/v1?a=b",
        place="https://Bücher.Example:8443",
        basic="Basic VXNAZXI6cGFzcw==",
    )


@pytest.mark.parametrize(
    ("url", "port", "netloc"),
    [
        ("http://host", 80, "host"),
        ("http://host:80/", 80, "host"),
        ("https://host:443/", 443, "host"),
        ("http://host:443/", 443, "host:443"),
        ("http://[::1]:8080/", 8080, "[::1]:8080"),
    ],
)
def test_the_host_is_named_without_the_usual_port(url: str, port: int, netloc: str) -> None:
    target = Target.of(url)

    assert (target.port, target.netloc, target.path) == (port, netloc, "/")


@pytest.mark.parametrize(
    "url", ["http:///v1", "http://host:port/", f"http://{'x' * 64}.example/", "file:///etc/passwd"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ModelError, match="is not an http or https URL") as caught:
        Target.of(url)

    assert not caught.value.retryable


async def test_one_context_serves_a_process_until_its_certificates_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_contexts", {})
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    connection.preload_tls()
    (preloaded,) = connection._contexts.values()
    transport = DirectTransport()

    async with provider(answering(EMPTY, ends=True), tls=True) as (url, serving):
        for _ in range(2):
            assert await ask(transport, url) == b""
        assert connection.tls_context() is preloaded
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(ModelError, match="its certificate is refused"):
            await ask(transport, url)

    assert connection.tls_context() is not preloaded
    assert serving.connections == 3


async def test_a_certificate_of_another_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    transport = DirectTransport()
    async with provider(answering(EMPTY), tls=True, host="127.0.0.2") as (url, _):
        with pytest.raises(ModelError, match=r"certificate is not valid for '127\.0\.0\.2'") as caught:
            await ask(transport, url)

    assert not caught.value.retryable


def test_a_worker_imports_nothing_that_a_plain_provider_does_not_need() -> None:
    program = (
        "import sys, peen.worker.main\n"
        "from peen.model.registry import Models\n"
        "from peen.wire.launch import UpstreamConfig\n"
        "Models.build([UpstreamConfig(name='u', type='openai', base_url='https://host/v1')], {})\n"
        "print(sorted({'httpx', 'httpcore', 'anyio', 'certifi', 'h11'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "['h11']"
