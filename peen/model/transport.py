"""How bytes reach a provider: a Protocol small enough to be relayed, and httpx behind it."""

from __future__ import annotations

import os
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

import trio

from peen.errors import ModelError

if TYPE_CHECKING:
    import httpx

CONNECT_S: Final = 10.0
KEEP_OPEN_S: Final = 120.0
"""How long an idle connection waits for the next round; a tool call between two may well take a minute."""


class Reply(Protocol):
    """The answer to one request, from its head on. Names of headers are in lower case."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Of repeated headers, the last or all joined."""

    async def receive(self) -> bytes:
        """The next piece of the body, b"" at its end. Raises: ModelError `transport` when it breaks off."""


class Transport(Protocol):
    """Sends requests to one provider. Waits for as long as it takes: how long is the caller's business."""

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AbstractAsyncContextManager[Reply]:
        """Send a request; entering returns with the head of the answer, whatever its status.

        Leaving before the end of the body closes the connection at once; after it, the connection is kept for the
        next request. Raises: ModelError `transport` or `timeout`, retryable, when there is no answer.
        """

    async def aclose(self) -> None:
        """Close the connections that wait. The transport may be used again."""


class HttpxTransport:
    """One httpx client, made at the first request: importing httpx and reading certificates take a while.

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
            client = self._client = self._new_client()
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

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        # Reading the certificates takes 0.1 s and means nothing for an address without TLS.
        return httpx.AsyncClient(
            verify=self._encrypted,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_OPEN_S),
        )


# As httpcore reads them: no limit on silence, which the loop watches, nor on the wait for a pool without a limit.
_TIMEOUTS: Final = MappingProxyType({"timeout": {"connect": CONNECT_S, "read": None, "write": None, "pool": None}})


_GZIP_OR_ZLIB: Final = 47


class _HttpxReply:
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces = response.aiter_raw()
        # Compression is never asked for; a gateway that insists on it is understood all the same.
        compressed = response.headers.get("content-encoding", "").lower() in ("gzip", "x-gzip", "deflate")
        self._unzip = zlib.decompressobj(wbits=_GZIP_OR_ZLIB) if compressed else None

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
                plain = piece if self._unzip is None else self._unzip.decompress(piece)
                if plain:
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
        text = f"no connection to {place} within {CONNECT_S:g} s"
        return ModelError(text, kind="timeout", retryable=True)
    if isinstance(exc, httpx.ConnectError):
        return ModelError(f"cannot connect to {place}: {_reason(exc)}", kind="transport", retryable=True)
    if isinstance(exc, httpx.LocalProtocolError):
        # The library's text quotes the header that it refuses, and that may be the key.
        return ModelError(f"the request to {place} is not valid HTTP", kind="transport", retryable=False)
    if isinstance(exc, httpx.UnsupportedProtocol | httpx.ProxyError):
        return ModelError(f"cannot reach {place}: {_reason(exc)}", kind="transport", retryable=False)
    return ModelError(f"the connection to {place} broke: {_reason(exc)}", kind="transport", retryable=True)


def _reason(exc: BaseException) -> str:
    """The operating system's own words where there are some."""
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            # Failed look-ups have numbers of their own, below zero.
            return os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror
        # Several addresses were tried at once: the first one's failure stands for all.
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__ or cause.__context__
    return str(exc) or type(exc).__name__


def origin(url: str) -> str:
    """Scheme, host and port of a URL, without a name, a password or a query that may stand in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
