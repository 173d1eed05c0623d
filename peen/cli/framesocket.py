"""`/ws/v1` with a blocking socket: send a message, take the frames of one session as they come."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from peen.cli.client import CALL_S, MAX_ERROR_BYTES, CallRefused, ConnectionLost, Endpoint
from peen.entropy import Entropy

SILENCE_S: Final = 75.0
"""The controller pings every 30 s, so after this long without a byte the connection is dead."""
_RECEIVE_BYTES: Final = 262_144
_LEAST_S: Final = 0.001  # a time-out of zero would mean "do not wait", which raises another error


class FrameSocket:
    """One connection. Text frames only; pings are answered while `receive` runs.

    Raises: CallRefused when the upgrade is not accepted; ConnectionLost whenever the connection ends or is silent.
    """

    def __init__(self, endpoint: Endpoint, session_id: str, entropy: Entropy, *, open_s: float = CALL_S) -> None:
        """Connect, and wait at most `open_s` seconds until the socket is open: from then on no frame is missed."""
        self._entropy, self._open_s = entropy, open_s
        self._socket, headers = endpoint.connect(open_s)
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._ready: list[bytes] = []
        self._pieces: list[str] = []
        self._open = False
        self._lost: str | None = None
        self._refusal: tuple[int, bytearray] | None = None
        self._heard_at = entropy.monotonic_s()
        try:
            self._shake_hands(session_id, headers)
        except BaseException:
            self._socket.close()
            raise

    def send(self, payload: bytes) -> None:
        """Send one text frame of UTF-8."""
        self._write(TextMessage(data=payload.decode()))

    def receive(self, within_s: float) -> list[bytes]:
        """The frames that have come, in order; empty if none comes within `within_s` seconds."""
        deadline = self._entropy.monotonic_s() + within_s
        while not self._ready and (left_s := deadline - self._entropy.monotonic_s()) > 0:
            if self._lost is not None:
                raise ConnectionLost(self._lost)
            self._read(left_s)
        frames, self._ready = self._ready, []
        return frames

    def close(self) -> None:
        """Say goodbye without waiting for an answer."""
        with suppress(ConnectionLost, LocalProtocolError):  # it was closed before
            self._write(CloseConnection(code=1000))
        self._socket.close()

    def _shake_hands(self, session_id: str, headers: dict[str, str]) -> None:
        host = headers.pop("host")
        token = headers.pop("authorization", None)
        extra = [(b"authorization", token.encode())] if token is not None else []
        request = Request(host=host, target=f"/ws/v1?sessionId={session_id}", extra_headers=extra)
        self._write(request)
        deadline = self._heard_at + self._open_s
        while not self._open:
            left_s = deadline - self._entropy.monotonic_s()
            if self._lost is not None or left_s <= 0:
                raise ConnectionLost(self._lost or "the controller did not open the socket in time")
            self._read(left_s)
        if self._lost is not None:  # a controller that ends takes whoever comes, and says goodbye in the same breath
            raise ConnectionLost(self._lost)

    def _read(self, within_s: float) -> None:
        """Take what arrives within `within_s`; nothing may."""
        try:
            self._socket.settimeout(max(within_s, _LEAST_S))
            data = self._socket.recv(_RECEIVE_BYTES)
        except TimeoutError:
            if self._entropy.monotonic_s() - self._heard_at > SILENCE_S:
                self._lost = f"nothing was heard of the controller for {SILENCE_S:.0f} s"
            return
        except OSError as error:
            self._lost = f"the connection to the controller broke: {error.strerror or error}"
            return
        self._heard_at = self._entropy.monotonic_s()
        try:
            self._protocol.receive_data(data or None)
            for event in self._protocol.events():
                self._take(event)
        except RemoteProtocolError as error:
            self._lost = f"the controller's frames cannot be read: {error}"
        if not data:
            self._lost = self._lost or "the controller closed the connection"

    def _take(self, event: Event) -> None:
        match event:
            case TextMessage(data=text, message_finished=finished):
                self._pieces.append(text)
                if finished:
                    self._ready.append("".join(self._pieces).encode())
                    self._pieces.clear()
            case Ping():
                self._write(event.response())
            case AcceptConnection():
                self._open = True
            case RejectConnection(status_code=status, has_body=has_body):
                self._refusal = (status, bytearray())
                if not has_body:
                    raise CallRefused.of(status, b"")
            case RejectData(data=data, body_finished=finished):
                self._take_refusal(bytes(data), finished)
            case CloseConnection(reason=reason):
                self._lost = f"the controller closed the connection{f' ({reason})' if reason else ''}"
            case _:
                pass  # pongs, and binary frames, which the contract does not have

    def _take_refusal(self, data: bytes, finished: bool) -> None:
        assert self._refusal is not None, "a body follows its head"
        status, body = self._refusal
        body += data
        if finished or len(body) > MAX_ERROR_BYTES:
            raise CallRefused.of(status, bytes(body[:MAX_ERROR_BYTES]))

    def _write(self, event: Event) -> None:
        data = self._protocol.send(event)
        try:
            self._socket.settimeout(CALL_S)
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(f"the connection to the controller broke: {error.strerror or error}") from error
