"""The straight way to a provider: h11 over trio's own streams, connections kept open between the rounds."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import h11
import trio

from peen.errors import ModelError
from peen.model.connection import Connection, Target, connect, response_headers
from peen.model.transport import KEEP_OPEN_S, Reply, Unzip, broken, invalid_request

MAX_IDLE: Final = 8
"""Connections to one origin that are kept while nobody uses them; more are closed after their answer."""

Connect = Callable[[Target], Awaitable[Connection]]


class _Idle(NamedTuple):
    connection: Connection
    since_s: float


class DirectTransport:
    """Keeps the connections that wait, a few an origin.

    Follows no redirect, so that a key never travels to another host. Repeats nothing, with one exception: a request
    over a connection that had waited is sent once more, over a new one, if the server closed the old one before it
    could have read the request. Whatever the method, it has had no effect then (see `Connection.was_closed_before`).

    Owns: the idle connections. Ends: with `aclose`; a process that exits needs none.
    """

    def __init__(self, *, connect: Connect = connect) -> None:
        self._connect = connect
        self._idle: dict[str, list[_Idle]] = {}
        self._targets: dict[str, Target] = {}

    @asynccontextmanager
    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> AsyncIterator[Reply]:
        target = self._targets.get(url)
        if target is None:
            target = self._targets[url] = Target.of(url)
        connection, head = await self._ask(target, _request(method, target, headers, body), body)
        try:
            yield _DirectReply(connection, head, target.place)
        finally:
            self._put_back(target, connection)

    async def aclose(self) -> None:
        for waiting in self._idle.values():
            for idle in waiting:
                idle.connection.close()
        self._idle.clear()
        await trio.lowlevel.checkpoint()  # last, so that a cancelled caller leaves nothing open

    async def _ask(self, target: Target, request: h11.Request, body: bytes) -> tuple[Connection, h11.Response]:
        waiting = self._take(target)
        if waiting is not None:
            try:
                return waiting, await waiting.ask(request, body)
            except ModelError:
                was_unread = waiting.was_closed_before()
                waiting.close()
                if not was_unread:
                    raise
            except BaseException:
                waiting.close()
                raise
        fresh = await self._connect(target)
        try:
            return fresh, await fresh.ask(request, body)
        except BaseException:
            fresh.close()
            raise

    def _take(self, target: Target) -> Connection | None:
        """The connection used last, if any still stands; those that do not are closed."""
        waiting = self._idle.get(target.place, [])
        oldest_s = trio.current_time() - KEEP_OPEN_S
        while waiting:
            connection, since_s = waiting.pop()
            if since_s > oldest_s and not connection.has_ended():
                return connection
            connection.close()
        return None

    def _put_back(self, target: Target, connection: Connection) -> None:
        if not connection.is_reusable():
            connection.close()
            return
        waiting = self._idle.setdefault(target.place, [])
        waiting.append(_Idle(connection, trio.current_time()))
        oldest_s = trio.current_time() - KEEP_OPEN_S
        while len(waiting) > MAX_IDLE or waiting[0].since_s <= oldest_s:
            waiting.pop(0).connection.close()


class _DirectReply:
    def __init__(self, connection: Connection, head: h11.Response, place: str) -> None:
        self._connection, self._place = connection, place
        self.status: Final = head.status_code
        self.headers: Final = response_headers(head)
        self._unzip = Unzip(self.headers)

    async def receive(self) -> bytes:
        while piece := await self._connection.receive():
            try:
                plain = self._unzip(piece)
            except zlib.error as exc:
                raise broken(self._place, f"its compression is not valid: {exc}") from exc
            if plain:
                return plain
        return b""


def _request(method: str, target: Target, headers: Mapping[str, str], body: bytes) -> h11.Request:
    """Raises: ModelError, not retryable, if a header holds what HTTP does not allow."""
    fields = [("host", target.netloc), *headers.items()]
    if target.basic is not None:
        fields = [*((name, value) for name, value in fields if name.lower() != "authorization")]
        fields.append(("authorization", target.basic))
    if body or method not in ("GET", "HEAD"):
        fields.append(("content-length", str(len(body))))
    try:
        return h11.Request(method=method, target=target.path, headers=fields)
    except (h11.LocalProtocolError, UnicodeError) as exc:
        raise invalid_request(target.place) from exc
