"""Where connections arrive: each one's first request head decides whether it becomes a socket or is served as HTTP."""

from __future__ import annotations

import os
import socket as stdlib_socket
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio
from trio_websocket import wrap_server_stream

from peen.actors import supervised
from peen.entropy import Entropy
from peen.errors import ConfigurationInvalid, Refused
from peen.feed.fanout import Fanout
from peen.hub.admit import Admitted, Head, Rules, admit_socket, wants_socket
from peen.hub.request import BodyTooSlow, error_response
from peen.hub.router import Router, request_id_of
from peen.hub.sockets import Backend, ClientSocket, HubLimits
from peen.hub.stream import HubStream, Opening, abort, linger, read_opening
from peen.wire.client import ClientLimits, max_frame_bytes

if TYPE_CHECKING:
    from peen.hub.app import HttpServer

log = structlog.get_logger(__name__)

BACKLOG: Final = 128
MAX_UNIX_PATH_BYTES: Final = 107  # sun_path less its closing zero
_RECEIVE_BYTES: Final = 65_536


class Hub:
    """All connections of a controller.

    Owns: the listeners given to `listen`, every connection and its task. Borrows: backend, router, fan-out.
    Ends:  when `run` is cancelled. New connections are refused first; sockets send what waits and close with 1001;
           HTTP answers under way are finished; after `close_s` seconds what is left is cut off.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        router: Router,
        api: Any,
        fanout: Fanout,
        rules: Rules,
        entropy: Entropy,
        client_limits: ClientLimits | None = None,
        limits: HubLimits | None = None,
    ) -> None:
        """`api` is what the router's handlers are given."""
        self.backend, self.fanout, self.rules, self.entropy = backend, fanout, rules, entropy
        self.client_limits = client_limits or ClientLimits()
        self.limits = limits or HubLimits()
        self.sockets: set[ClientSocket] = set()
        self.reading: set[trio.CancelScope] = set()
        """Connections whose first head is still awaited; cancelled first when the hub stops."""
        self._router, self._api = router, api
        self._http: HttpServer | None = None
        self._importing = trio.Lock()
        self._live: set[trio.SocketStream] = set()
        self._empty = trio.Event()
        self.stopping = False
        self._connections: trio.Nursery | None = None
        self._accepting: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled. Once started, `listen` and `connect` work."""
        ended = trio.Event()
        async with trio.open_nursery() as nursery:
            self._connections = await nursery.start(self._hold_connections, ended)
            try:
                async with trio.open_nursery() as accepting:
                    self._accepting = accepting
                    task_status.started()
                    await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):  # bounded: see `_close_all`
                    await self._close_all()
                ended.set()

    async def _hold_connections(
        self, ended: trio.Event, *, task_status: trio.TaskStatus[trio.Nursery] = trio.TASK_STATUS_IGNORED
    ) -> None:
        # Shielded, so that connections outlive the cancellation of `run` for as long as `_close_all` grants.
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as connections:
                task_status.started(connections)
                await ended.wait()
                connections.cancel_scope.cancel()

    async def _close_all(self) -> None:
        self.stopping = True
        for scope in self.reading:
            scope.cancel()
        for socket in self.sockets:
            socket.close()
        if self._http is not None:
            await self._http.stop()
        if self._live:
            with trio.move_on_after(self.limits.close_s):
                await self._empty.wait()
        for stream in self._live:
            abort(stream)  # hypercorn shields its sends: only a closed socket ends those

    def listen(self, listeners: Sequence[trio.SocketListener], *, trusted: bool) -> None:
        """Accept connections from now on. `trusted` listeners check the uid of the peer."""
        if self._accepting is None or self._connections is None:
            raise RuntimeError("the hub does not run")
        handler = self._accept_trusted if trusted else partial(self._serve, trusted=False)
        serve = partial(trio.serve_listeners, handler, list(listeners), handler_nursery=self._connections)
        self._accepting.start_soon(serve)

    def connect(self, stream: trio.SocketStream, *, trusted: bool) -> None:
        """Serve a connection that was made in another way than by a listener."""
        if self._connections is None or self.stopping:
            raise RuntimeError("the hub does not run")
        self._connections.start_soon(partial(self._serve, stream, trusted=trusted))

    async def warm(self) -> HttpServer:
        """Import the HTTP libraries and build their server, which takes most of a second in a thread."""
        async with self._importing:
            if self._http is None:
                self._http = await trio.to_thread.run_sync(self._build_http)
        return self._http

    def _build_http(self) -> HttpServer:
        from peen.hub.app import HttpServer

        return HttpServer(self._router, self._api, self.rules, self.entropy, idle_s=self.limits.idle_s)

    async def _accept_trusted(self, stream: trio.SocketStream) -> None:
        uid = peer_uid(stream)
        if uid != os.getuid():
            log.warning("connection of another user refused", uid=uid)
            await stream.aclose()
            return
        await self._serve(stream, trusted=True)

    async def _serve(self, stream: trio.SocketStream, *, trusted: bool) -> None:
        self._live.add(stream)
        try:
            await supervised(partial(serve_connection, stream, self, trusted=trusted), name="connection")
        finally:
            await linger(stream, self.limits.linger_s)
            self._live.discard(stream)
            if self.stopping and not self._live:
                self._empty.set()


async def serve_connection(stream: trio.SocketStream, hub: Hub, *, trusted: bool) -> None:
    """Serve one connection from its first byte to its end. The caller closes `stream`."""
    opening: Opening | None = None
    try:
        with trio.move_on_after(hub.limits.head_s) as waiting:
            hub.reading.add(waiting)
            try:
                opening = await read_opening(stream, max_bytes=hub.limits.head_bytes)
            finally:
                hub.reading.discard(waiting)
        if waiting.cancelled_caught and hub.stopping:
            return
        if waiting.cancelled_caught:
            raise BodyTooSlow(f"no request head arrived within {hub.limits.head_s:g} s")
        if opening is None:
            return
        if not wants_socket(opening.head):
            http = await hub.warm()
            await http.serve(HubStream(stream, opening, send_s=hub.limits.send_s), trusted=trusted)
            return
        admitted = admit_socket(hub.rules, opening.head, trusted=trusted)
    except Refused as refusal:
        await _refuse(stream, hub, opening.head if opening else None, refusal)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return  # the peer went away
    else:
        await _serve_socket(HubStream(stream, opening, send_s=hub.limits.send_s, hold=True), hub, opening, admitted)


async def _serve_socket(stream: HubStream, hub: Hub, opening: Opening, admitted: Admitted) -> None:
    request_id = _request_id(hub, opening.head)
    async with trio.open_nursery() as nursery:
        with trio.fail_after(hub.limits.head_s):
            request = await wrap_server_stream(
                nursery,
                stream,
                max_message_size=max_frame_bytes(hub.client_limits),
                receive_buffer_size=_RECEIVE_BYTES,
            )
            connection = await request.accept(
                subprotocol=admitted.subprotocol, extra_headers=[(b"x-request-id", request_id.encode())]
            )
        stream.release()
        socket = ClientSocket(
            connection,
            stream,
            session_filter=admitted.session_filter,
            backend=hub.backend,
            fanout=hub.fanout,
            entropy=hub.entropy,
            client_limits=hub.client_limits,
            limits=hub.limits,
        )
        hub.sockets.add(socket)
        if hub.stopping:
            socket.close()
        try:
            await socket.run()
        finally:
            hub.sockets.discard(socket)
        nursery.cancel_scope.cancel()  # the library's reader


async def _refuse(stream: trio.SocketStream, hub: Hub, head: Head | None, refusal: Refused) -> None:
    """Answer in plain HTTP. Nothing that the client sent behind its head is looked at."""
    answer = error_response(refusal)
    headers = {
        "content-type": "application/json",
        "x-request-id": _request_id(hub, head),
        **answer.headers,
        "content-length": str(len(answer.body)),
        "connection": "close",
    }
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with trio.move_on_after(hub.limits.send_s):
        await stream.send_all("\r\n".join([*lines, "", ""]).encode() + answer.body)


def _request_id(hub: Hub, head: Head | None) -> str:
    return request_id_of(dict(head.headers) if head else {}, hub.entropy)


# --- ways in --------------------------------------------------------------------------------------------------------


async def listen_tcp(host: str, port: int) -> list[trio.SocketListener]:
    """Listeners for every address of `host`; port 0 takes a free one, the same for all. Raises OSError."""
    listeners = await trio.open_tcp_listeners(port, host=host or None, backlog=BACKLOG)
    return list(listeners)


def listen_unix(path: Path, mode: int = 0o600) -> trio.SocketListener:
    """A listener at `path`, which only its owner may use. A socket left by a dead process is replaced.

    Raises: ConfigurationInvalid when the path is too long for a socket; OSError, also when something else is there.
    """
    size = len(os.fsencode(path))
    if size > MAX_UNIX_PATH_BYTES:
        problem = f"{path} has {size} bytes; the path of a socket has at most {MAX_UNIX_PATH_BYTES}"
        raise ConfigurationInvalid("PEEN_STATE_DIR", problem, example="/var/lib/peen")
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    sock = stdlib_socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM)
    try:
        sock.bind(os.fspath(path))
        # Nobody can connect before `listen`, so there is no moment in which the mode is too wide.
        path.chmod(mode)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


def open_memory(hub: Hub, *, trusted: bool = True) -> trio.SocketStream:
    """A connection to `hub` inside this process; the end returned is the client's."""
    ours, theirs = trio.socket.socketpair()
    try:
        hub.connect(trio.SocketStream(ours), trusted=trusted)
    except RuntimeError:
        ours.close()
        theirs.close()
        raise
    return trio.SocketStream(theirs)


def peer_uid(stream: trio.SocketStream) -> int:
    """The user of the process at the other end of a Unix socket, as it was when it connected."""
    credentials = stream.socket.getsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", credentials)[1]
    return uid
