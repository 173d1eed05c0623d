"""One HTTP/1.1 connection to a provider, and how it is made."""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple, Self
from urllib.parse import quote, unquote, urlsplit

import h11
import trio

from peen.model.httpbody import Body, OpenBody, body_of, keeps_open
from peen.model.transport import CONNECT_S, broken, no_connection, no_connection_in_time, origin, reason, unreachable

MAX_HEAD_BYTES: Final = 64 * 1024
RECEIVE_BYTES: Final = 64 * 1024
_PORTS: Final = {"http": 80, "https": 443}
_LEFT_AS_IT_IS: Final = "/?%:@!$&'()*+,;=~"
_BYTES_ACKED: Final = 120
"""Where `struct tcp_info` has `tcpi_bytes_acked` and behind it `tcpi_bytes_received`, each 8 bytes long; part of the
kernel's ABI since Linux 4.1."""
_TCP_INFO_BYTES: Final = 256


class Target(NamedTuple):
    """What one URL says. `place` is its origin, for messages; `basic` the Authorization from a name in the URL."""

    encrypted: bool
    host: str
    port: int
    netloc: str
    path: str
    place: str
    basic: str | None

    @classmethod
    def of(cls, url: str) -> Self:
        """Raises: ModelError if it is no http or https URL."""
        place = origin(url)
        try:
            parts = urlsplit(url)
            default = _PORTS[parts.scheme]
            host, port = (parts.hostname or "").encode("idna").decode(), parts.port or default
            if not host:
                raise ValueError("no host")
        except (KeyError, ValueError) as exc:
            raise unreachable(place, "it is not an http or https URL") from exc
        shown = f"[{host}]" if ":" in host else host
        path = quote(parts.path or "/", safe=_LEFT_AS_IT_IS)
        query = "?" + quote(parts.query, safe=_LEFT_AS_IT_IS) if parts.query else ""
        basic = None
        if parts.username or parts.password:
            user, password = unquote(parts.username or ""), unquote(parts.password or "")
            basic = "Basic " + b64encode(f"{user}:{password}".encode()).decode()
        netloc = shown if port == default else f"{shown}:{port}"
        return cls(parts.scheme == "https", host, port, netloc, path + query, place, basic)


class Connection:
    """Sends one request at a time and reads its answer.

    Owns: the socket; whoever has the connection calls `close`, which never waits. After an error only that is left.
    """

    def __init__(self, stream: trio.abc.Stream, tcp: trio.socket.SocketType, place: str) -> None:
        """`stream` is what speaks over the socket `tcp`: the socket itself, or TLS."""
        self._stream, self._tcp, self._place = stream, tcp, place
        self._counts = (0, 0)  # bytes acknowledged and received when the request began
        self._had_ended = False  # whether the server had closed by then
        self._can_stay = False  # as far as the request and the head of the answer say
        self._body: Body = OpenBody()
        self._early = b""  # of the body, what came together with the head

    async def ask(self, request: h11.Request, body: bytes) -> h11.Response:
        """The head of the answer. Raises: ModelError `transport`."""
        self._counts = self._bytes_counted()
        self._had_ended = self._says_something()
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        # h11 sees heads alone: the body is in no need of it, and `peen.model.httpbody` reads the answer's.
        written = http.send(request) or b""
        try:
            await self._stream.send_all(written + body)
            is_sent = True
        except trio.BrokenResourceError:
            is_sent = False  # a server may refuse before it has read everything: its answer may have come
        head = await self._head(http)
        self._can_stay = is_sent and keeps_open(head)
        self._body = body_of(request.method.decode(), head)
        self._early = http.trailing_data[0]
        return head

    async def _head(self, http: h11.Connection) -> h11.Response:
        while True:
            try:
                event = http.next_event()
            except h11.RemoteProtocolError as exc:
                raise broken(self._place, reason(exc)) from exc
            if event is h11.NEED_DATA:
                data = await self._read()
                if not data:
                    raise broken(self._place, "it was closed without an answer")
                http.receive_data(data)
            elif isinstance(event, h11.Response):
                return event
            elif not isinstance(event, h11.InformationalResponse):
                raise broken(self._place, "what came is no answer")

    async def receive(self) -> bytes:
        """All of the body that has arrived, b"" at its end. Raises: ModelError `transport` when it breaks off."""
        body = self._body
        while not (body.over or body.fault):
            data, self._early = self._early or await self._read(), b""
            if not data:
                body.end()
            elif piece := body.feed(data):
                return piece
        if body.fault:
            raise broken(self._place, body.fault)
        return b""

    def is_reusable(self) -> bool:
        """Whether the answer was read to its end, so that another request may follow; or its end has come at least."""
        body = self._body
        if self._early:
            if body.over or body.fault:
                return False  # more came than belongs to the answer
            body.feed(self._early)
        return body.over and self._can_stay and not (body.surplus or isinstance(body, OpenBody))

    def has_ended(self) -> bool:
        """For a connection that waits: whether the server has closed it, or says what nobody asked."""
        return self._says_something()

    def was_closed_before(self) -> bool:
        """Whether the request that failed cannot have been read.

        The server had closed the connection while that was idle: the end has come, which counts as one byte received,
        and no byte of the request was acknowledged. A server that breaks the connection has not ended it: it may have
        read the request, since its system acknowledges that a little later.
        """
        acked, received = self._counts
        now_acked, now_received = self._bytes_counted()
        return 0 < acked == now_acked and (self._had_ended or now_received == received + 1)

    def close(self) -> None:
        """Close the socket at once, also under a task that waits for it."""
        self._tcp.close()

    async def _read(self) -> bytes:
        """Wait for more bytes, b"" when the server has closed; how long is the caller's business."""
        try:
            return bytes(await self._stream.receive_some(RECEIVE_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise broken(self._place, reason(exc)) from exc

    def _says_something(self) -> bool:
        poll = select.poll()
        poll.register(self._tcp.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _bytes_counted(self) -> tuple[int, int]:
        """Bytes that the peer's system has acknowledged and sent so far, opening and end included; 0 if unknown."""
        info = self._tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        if len(info) < _BYTES_ACKED + 16:
            return 0, 0
        acked, received = struct.unpack_from("=QQ", info, _BYTES_ACKED)
        return acked, received


async def connect(target: Target) -> Connection:
    """A new connection, over every address of the host until one answers.

    Raises: ModelError `transport`, or `timeout` after CONNECT_S.
    """
    with trio.move_on_after(CONNECT_S):
        try:
            return await _connect(target)
        except (OSError, UnicodeError, trio.BrokenResourceError) as exc:
            raise no_connection(target.place, exc) from exc
    raise no_connection_in_time(target.place)


async def _connect(target: Target) -> Connection:
    tcp = await trio.open_tcp_stream(target.host, target.port)
    if not target.encrypted:
        return Connection(tcp, tcp.socket, target.place)
    # Some servers close without saying so in TLS; the length of an answer stands in its HTTP.
    stream = trio.SSLStream(tcp, tls_context(), server_hostname=target.host, https_compatible=True)
    try:
        await stream.do_handshake()
    except BaseException:
        tcp.socket.close()
        raise
    return Connection(stream, tcp.socket, target.place)


_contexts: dict[tuple[str | None, ...], ssl.SSLContext] = {}


def tls_context() -> ssl.SSLContext:
    """The one TLS context of this process: the system's certificates, or those of SSL_CERT_FILE and SSL_CERT_DIR.

    Reading them takes 40 ms. A process that is going to fork makes it before.
    """
    key = tuple(map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))
    context = _contexts.get(key)
    if context is None:
        context = _contexts[key] = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
    return context


def preload_tls() -> None:
    """Make the context now. What is wrong with it is found again, and told, by whoever needs it."""
    with suppress(OSError):
        tls_context()


def response_headers(response: h11.Response) -> Mapping[str, str]:
    """By names in lower case; repeated ones are joined."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in response.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
