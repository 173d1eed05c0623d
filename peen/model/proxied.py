"""The way to a provider by a proxy: httpx, which knows every kind of them, and costs more a round."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import trio

from peen.errors import ModelError
from peen.model.transport import (
    CONNECT_S,
    KEEP_OPEN_S,
    Reply,
    Unzip,
    broken,
    invalid_request,
    no_connection,
    no_connection_in_time,
    origin,
    reason,
    unreachable,
)

if TYPE_CHECKING:
    import httpx

# As httpcore reads them: no limit on silence, which the loop watches, nor on the wait for a pool without a limit.
_TIMEOUTS: Final = MappingProxyType({"timeout": {"connect": CONNECT_S, "read": None, "write": None, "pool": None}})


class HttpxTransport:
    """One httpx client, made at the first request: importing httpx and reading certificates take a while.

    The proxies are those of the process' environment.
    Owns: the client. Ends: with `aclose`; a process that exits needs none. Tries nothing twice and follows no
    redirect: there is one place that retries, and a key must not travel to another host.
    """

    def __init__(self, base_url: str) -> None:
        """`base_url` says whether certificates are needed at all."""
        self._encrypted = base_url.startswith("https:")
        self._client: httpx.AsyncClient | None = None
        self._urls: dict[str, httpx.URL] = {}

    @asynccontextmanager
    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> AsyncIterator[Reply]:
        import httpx

        client = self._client
        if client is None:
            client = self._client = self._new_client(url)
        parsed = self._urls.get(url)
        if parsed is None:
            parsed = self._urls[url] = httpx.URL(url)
        request = httpx.Request(method, parsed, headers=dict(headers), content=body, extensions=dict(_TIMEOUTS))
        try:
            response = await client.send(request, stream=True)
        except httpx.TransportError as exc:
            raise _failure(exc, url) from exc
        reply = _HttpxReply(response)
        try:
            yield reply
        finally:
            await reply.abandon()
            await response.aclose()

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _new_client(self, url: str) -> httpx.AsyncClient:
        import httpx

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_OPEN_S)
        try:
            # Reading the certificates takes 0.1 s and means nothing for an address without TLS.
            return httpx.AsyncClient(verify=self._encrypted, follow_redirects=False, limits=limits)
        except (ImportError, ValueError) as exc:
            # A proxy of a kind that is not installed or does not exist. Its address may hold a password.
            raise unreachable(origin(url), "the proxy in the environment is of a kind that is not supported") from exc


class _HttpxReply:
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces = response.aiter_raw()
        self._unzip = Unzip(response.headers)

    @property
    def status(self) -> int:
        return self._response.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def receive(self) -> bytes:
        import httpx

        try:
            async for piece in self._pieces:
                if plain := self._unzip(piece):
                    return plain
        except (httpx.TransportError, zlib.error) as exc:
            raise _failure(exc, str(self._response.request.url)) from exc
        return b""

    async def abandon(self) -> None:
        """End the reading, if it has not ended.

        httpx nests generators; one that is merely dropped is found by the garbage collector, which trio warns of.
        A cancelled read unwinds them all, and returns at once.
        """
        import httpx

        with trio.CancelScope(shield=True) as scope:
            scope.cancel()
            try:
                async for _piece in self._pieces:
                    pass  # what had arrived already
            except httpx.TransportError:
                return


def _failure(exc: httpx.TransportError | zlib.error, url: str) -> ModelError:
    import httpx

    place = origin(url)
    if isinstance(exc, httpx.TimeoutException):
        return no_connection_in_time(place)
    if isinstance(exc, httpx.ConnectError):
        return no_connection(place, exc)
    if isinstance(exc, httpx.LocalProtocolError):
        return invalid_request(place)
    if isinstance(exc, httpx.UnsupportedProtocol | httpx.ProxyError):
        return unreachable(place, reason(exc))
    return broken(place, reason(exc))
