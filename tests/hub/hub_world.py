"""A hub with a backend that only takes notes, and clients that speak in raw bytes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import trio

from peen.entropy import SystemEntropy
from peen.feed.fanout import Fanout
from peen.hub.admit import Rules
from peen.hub.listener import Hub, listen_tcp
from peen.hub.request import ApiRequest, ApiResponse, decode_body, json_response
from peen.hub.rest.health import add_health
from peen.hub.router import Router
from peen.hub.sockets import HubLimits, Replier
from peen.wire.client import ClientLimits, MessageSend
from peen.wire.feed import Completed, ack_frame
from peen.wire.rest import OpenSession, WorkspaceRoots
from peen.wire.websocket import text_frame

SESSION = "11111111-1111-4111-8111-111111111111"
OTHER_SESSION = "22222222-2222-4222-8222-222222222222"
UPGRADE = (
    "GET /ws/v1 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


@dataclass
class NotingBackend:
    """Notes messages and answers each with `message.completed`; `then` runs before the answer."""

    received: list[MessageSend] = field(default_factory=list)
    then: Callable[[MessageSend], Awaitable[None]] | None = None

    async def submit(self, message: MessageSend, origin: Replier) -> None:
        self.received.append(message)
        if self.then is not None:
            await self.then(message)
        frame = ack_frame("a", Completed(queued=False), 0, session_id=message.session_id, triggered_by=message.id)
        origin.reply(text_frame(frame))


def api_router() -> Router:
    """Probes and a few operations: one that needs nothing, one with a body, one of a session, one that breaks."""
    router = Router()
    add_health(router)

    def roots(api: Any, request: ApiRequest) -> ApiResponse:
        return json_response(WorkspaceRoots(roots=[str(api)]))

    async def opened(api: Any, request: ApiRequest) -> ApiResponse:
        return json_response(WorkspaceRoots(roots=[decode_body(request, OpenSession).workspace]))

    def session(api: Any, request: ApiRequest) -> ApiResponse:
        return json_response(WorkspaceRoots(roots=[request.session]))

    def broken(api: Any, request: ApiRequest) -> ApiResponse:
        raise ZeroDivisionError("a secret of line 7")

    router.add("GET", "/api/v1/workspace-roots", roots)
    router.add("POST", "/api/v1/sessions/open", opened)
    router.add("GET", "/api/v1/session", session, session=True)
    router.add("GET", "/api/v1/broken", broken)
    return router


@dataclass
class World:
    hub: Hub
    backend: NotingBackend
    fanout: Fanout
    port: int
    ended: trio.Event
    _running: trio.CancelScope

    def stop(self) -> None:
        """Tell the hub to stop; `ended` is set when it has."""
        self._running.cancel()

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def exchange(self, request: str | bytes) -> bytes:
        """Send `request` on a new connection and read until the server closes it."""
        async with await self.connect() as stream:
            await stream.send_all(request.encode() if isinstance(request, str) else request)
            return await read_to_end(stream)


@asynccontextmanager
async def open_world(
    *,
    rules: Rules | None = None,
    limits: HubLimits | None = None,
    client_limits: ClientLimits | None = None,
    router: Router | None = None,
) -> AsyncIterator[World]:
    """A running hub on a free port of 127.0.0.1."""
    backend, fanout = NotingBackend(), Fanout()
    hub = Hub(
        backend=backend,
        router=router or api_router(),
        api="the api",
        fanout=fanout,
        rules=rules or Rules.of("127.0.0.1"),
        entropy=SystemEntropy(),
        client_limits=client_limits,
        limits=limits or HubLimits(linger_s=0.2),
    )
    listeners = await listen_tcp("127.0.0.1", 0)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            running, ended = trio.CancelScope(), trio.Event()
            await nursery.start(_run, hub, running, ended)
            hub.listen(listeners, trusted=False)
            yield World(hub, backend, fanout, listeners[0].socket.getsockname()[1], ended, running)
            running.cancel()


async def _run(hub: Hub, running: trio.CancelScope, ended: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
    with running:
        await hub.run(task_status=task_status)
    ended.set()


async def read_to_end(stream: trio.abc.ReceiveStream) -> bytes:
    received = b""
    async for piece in stream:
        received += piece
    return received


async def read_until(stream: trio.abc.ReceiveStream, end: bytes, received: bytes = b"") -> bytes:
    while end not in received:
        piece = await stream.receive_some()
        if not piece:
            raise AssertionError(f"closed before {end!r}: {received!r}")
        received += piece
    return received


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body_of(answer: bytes) -> Any:
    return json.loads(answer.split(b"\r\n\r\n", 1)[1])


def message_frame(text: str = "hello", session_id: str = SESSION, **data: Any) -> str:
    """A `message.send` frame as a client writes it."""
    return json.dumps(
        {
            "id": str(uuid4()),
            "type": "message.send",
            "data": {"message": text, **data},
            "metadata": {"sessionId": session_id},
            "timestamp": 0,
            "triggeredBy": None,
        }
    )


def masked(payload: bytes, opcode: int = 1) -> bytes:
    """A client's frame with a mask of zeros, which leaves the payload as it is."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | opcode, 0x80 | size))
    elif size < 65536:
        head = bytes((0x80 | opcode, 0xFE)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, 0xFF)) + size.to_bytes(8, "big")
    return head + b"\0\0\0\0" + payload
