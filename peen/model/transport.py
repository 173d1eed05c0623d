"""How bytes reach a provider: a Protocol small enough to be relayed, and what every implementation of it shares."""

from __future__ import annotations

import os
import ssl
import zlib
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol
from urllib.parse import urlsplit

from peen.errors import ModelError

CONNECT_S: Final = 10.0
KEEP_OPEN_S: Final = 60.0
"""How long an idle connection waits for the next round; most tool calls between two take less."""

_GZIP_OR_ZLIB: Final = 47
_ZIPPED: Final = frozenset({"gzip", "x-gzip", "deflate"})


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


class Unzip:
    """Undoes the compression of one body. It is never asked for; a gateway that insists on it is understood."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        zipped = headers.get("content-encoding", "").lower() in _ZIPPED
        self._zip = zlib.decompressobj(wbits=_GZIP_OR_ZLIB) if zipped else None

    def __call__(self, piece: bytes) -> bytes:
        """What `piece` holds, which may be nothing yet. Raises: zlib.error."""
        return piece if self._zip is None else self._zip.decompress(piece)


def no_connection(place: str, exc: BaseException) -> ModelError:
    """The error for a connection that did not come about. A certificate that is refused stays so: no retry."""
    retryable = not isinstance(_cause(exc), ssl.SSLCertVerificationError)
    return ModelError(f"cannot connect to {place}: {reason(exc)}", kind="transport", retryable=retryable, unsent=True)


def no_connection_in_time(place: str) -> ModelError:
    """The error for a server that does not accept within `CONNECT_S`."""
    return ModelError(f"no connection to {place} within {CONNECT_S:g} s", kind="timeout", retryable=True, unsent=True)


def broken(place: str, why: str) -> ModelError:
    """The error for a connection that was there and failed; `why` holds nothing of request or answer."""
    return ModelError(f"the connection to {place} broke: {why}", kind="transport", retryable=True)


def invalid_request(place: str) -> ModelError:
    """The error for a request that cannot be written as HTTP. It quotes nothing, since that may be the key."""
    return ModelError(f"the request to {place} is not valid HTTP", kind="transport", retryable=False, unsent=True)


def unreachable(place: str, why: str) -> ModelError:
    """The error for an address, or a way to it, that cannot work."""
    return ModelError(f"cannot reach {place}: {why}", kind="transport", retryable=False, unsent=True)


def reason(exc: BaseException) -> str:
    """Why it failed, in the operating system's own words where there are some."""
    cause = _cause(exc)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {cause.reason or cause}"
    if isinstance(cause, OSError):
        # Failed look-ups have numbers of their own, below zero.
        return os.strerror(cause.errno) if cause.errno and cause.errno > 0 else str(cause.strerror)
    # h11 quotes what it cannot read, and a server may repeat the key in that.
    return str(exc).partition(": bytearray(")[0] or type(exc).__name__


def _cause(exc: BaseException) -> OSError | None:
    """The error of the system, or of TLS, at the bottom of `exc`."""
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause
        # Several addresses were tried at once: the first one's failure stands for all.
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__ or cause.__context__
    return None


def origin(url: str) -> str:
    """Scheme, host and port of a URL, without a name, a password or a query that may stand in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
