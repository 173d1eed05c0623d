"""A small blocking client of a running controller: REST calls, one connection each.

It uses plain sockets, so that a short command starts in a fraction of the time that the event loop takes to import.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

import h11
import msgspec

from peen.entropy import Entropy
from peen.errors import PeenError, Refused
from peen.wire.rest import ErrorBody

CALL_S: Final = 30.0
MAX_ERROR_BYTES: Final = 4096
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024  # a page ends at 4 MiB, but one stored message may be larger
_MAX_HEAD_BYTES: Final = 65_536
_RECEIVE_BYTES: Final = 65_536


class ConnectionLost(PeenError):
    """The controller cannot be reached, went away, or does not answer in time. What it did meanwhile is unknown."""

    code = "CONNECTION_LOST"


class CallRefused(Refused):
    """The controller answered with an error; its own status and code are in `http_status` and `error_code`."""

    def __init__(self, http_status: int, error_code: str, message: str) -> None:
        super().__init__(f"{http_status} {error_code}: {message}" if error_code else f"{http_status}: {message}")
        self.http_status, self.error_code = http_status, error_code

    @classmethod
    def of(cls, http_status: int, body: bytes) -> CallRefused:
        """From an answer outside 2xx. A body that is no error envelope is shown as it is."""
        try:
            error = msgspec.json.decode(body, type=ErrorBody)
        except (msgspec.MsgspecError, UnicodeError):
            return cls(http_status, "", body.decode("utf-8", "replace").strip() or "no explanation")
        return cls(http_status, error.code, error.message)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a controller listens: its Unix socket, which needs no token, or else its base URL."""

    control_socket: Path | None
    address: str | None
    token: str | None

    def connect(self, within_s: float) -> tuple[socket.socket, dict[str, str]]:
        """A connection, and the headers that it needs. Raises: ConnectionLost."""
        problem = "it has no socket and no address yet"
        if self.control_socket is not None:
            try:
                return _connect_unix(self.control_socket, within_s), {"host": "localhost"}
            except OSError as error:
                problem = f"{self.control_socket}: {error.strerror or error}"
        if self.address is not None:
            parts = urlsplit(self.address)
            headers = {"host": parts.netloc}
            if self.token is not None:
                headers["authorization"] = f"Bearer {self.token}"
            try:
                return socket.create_connection((parts.hostname or "localhost", parts.port or 80), within_s), headers
            except OSError as error:
                problem = f"{self.address}: {error.strerror or error}"
        raise ConnectionLost(f"the controller cannot be reached: {problem}")


class Client:
    """REST calls to one endpoint, each within `call_s` seconds."""

    def __init__(self, endpoint: Endpoint, entropy: Entropy, *, call_s: float = CALL_S) -> None:
        self._endpoint, self._entropy, self._call_s = endpoint, entropy, call_s

    def get(self, path: str, *, session_id: str | None = None, query: Mapping[str, str | int] | None = None) -> bytes:
        """Body of the answer. Raises: CallRefused, ConnectionLost."""
        target = f"{path}?{urlencode(query)}" if query else path
        return self._call("GET", target, session_id, None)

    def post(self, path: str, body: bytes, *, session_id: str | None = None) -> bytes:
        """Body of the answer. Raises: CallRefused, ConnectionLost."""
        return self._call("POST", path, session_id, body)

    def delete(self, path: str) -> bytes:
        """Body of the answer. Raises: CallRefused, ConnectionLost."""
        return self._call("DELETE", path, None, b"")

    def _call(self, method: str, target: str, session_id: str | None, body: bytes | None) -> bytes:
        deadline = self._entropy.monotonic_s() + self._call_s
        connection, headers = self._endpoint.connect(self._call_s)
        headers |= {"connection": "close", "accept": "application/json"}
        if session_id is not None:
            headers["x-session-id"] = session_id
        if body is not None:
            headers |= {"content-type": "application/json", "content-length": str(len(body))}
        request = h11.Request(method=method, target=target, headers=list(headers.items()))
        with contextlib.closing(connection):
            status, answer = _Exchange(connection, deadline, self._entropy).run(request, body or b"")
        if not 200 <= status < 300:
            raise CallRefused.of(status, answer)
        return answer


class _Exchange:
    """One request and its answer on a fresh connection."""

    def __init__(self, connection: socket.socket, deadline: float, entropy: Entropy) -> None:
        self._socket, self._deadline, self._entropy = connection, deadline, entropy
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)

    def run(self, request: h11.Request, body: bytes) -> tuple[int, bytes]:
        """Status and body; of an error only the first `MAX_ERROR_BYTES`. Raises: ConnectionLost."""
        parts = [self._http.send(request)]
        if body:
            parts.append(self._http.send(h11.Data(data=body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        try:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(b"".join(part for part in parts if part))
            return self._answer()
        except TimeoutError:
            raise ConnectionLost("the controller did not answer in time") from None
        except OSError as error:
            raise ConnectionLost(f"the connection to the controller broke: {error.strerror or error}") from error
        except h11.RemoteProtocolError as error:
            raise ConnectionLost(f"the controller's answer is no HTTP or not whole: {error}") from error

    def _answer(self) -> tuple[int, bytes]:
        status, body, most = 0, bytearray(), MAX_ANSWER_BYTES
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._socket.settimeout(self._left_s())
                self._http.receive_data(self._socket.recv(_RECEIVE_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
                if not 200 <= status < 300:
                    most = MAX_ERROR_BYTES
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > most:
                    if status < 300:
                        raise ConnectionLost(f"the controller's answer is larger than {MAX_ANSWER_BYTES} bytes")
                    return status, bytes(body[:most])
            elif isinstance(event, h11.EndOfMessage):
                return status, bytes(body)
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionLost("the controller closed the connection without an answer")

    def _left_s(self) -> float:
        left_s = self._deadline - self._entropy.monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        return left_s


def _connect_unix(path: Path, within_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(within_s)
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection
