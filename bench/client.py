"""A WebSocket client that costs next to nothing, so that a measurement is one of the server."""

from __future__ import annotations

import json
import os
import socket
import struct
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit


def api(address: str, path: str, *, body: dict[str, Any] | None = None, session_id: str | None = None) -> Any:
    """One REST call; the decoded answer."""
    headers = {"Content-Type": "application/json"} | ({"X-Session-ID": session_id} if session_id else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


class FeedClient:
    """One connection to `/ws/v1`. Blocking; frames come as raw JSON bytes."""

    def __init__(self, address: str, *, timeout_s: float = 120.0) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        assert parts.port is not None
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._upgrade(parts.netloc)

    def close(self) -> None:
        self._socket.close()

    def send(self, session_id: str, message: str, model: str | None = None) -> str:
        """Send a message; the id of its frame."""
        frame_id = str(uuid.uuid4())
        data = {"message": message} | ({"model": model} if model else {})
        frame = {
            "id": frame_id,
            "type": "message.send",
            "data": data,
            "metadata": {"sessionId": session_id},
            "timestamp": 0,
            "triggeredBy": None,
        }
        payload = json.dumps(frame).encode()
        mask = os.urandom(4)
        size = len(payload)
        head = struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else struct.pack("!BBH", 0x81, 0xFE, size)
        self._socket.sendall(head + mask + bytes(b ^ mask[i & 3] for i, b in enumerate(payload)))
        return frame_id

    def frames(self) -> Iterator[bytes]:
        """Payloads of text frames, until the server closes."""
        while True:
            while (frame := self._next()) is not None:
                opcode, payload = frame
                if opcode == 0x1:
                    yield payload
                elif opcode == 0x8:
                    return
                elif opcode == 0x9:
                    self._socket.sendall(b"\x8a\x80" + os.urandom(4))
            data = self._socket.recv(262_144)
            if not data:
                return
            self._buffer += data

    def wait(self, frame_id: str) -> int:
        """Read until the acknowledgement of one message; the number of frames. Raises: AssertionError if it failed."""
        mark = b'"triggeredBy":"' + frame_id.encode() + b'"'
        for count, frame in enumerate(self.frames(), 1):
            if frame.endswith(mark + b"}"):
                assert b'"message.completed"' in frame, frame.decode()
                return count
        raise AssertionError("the server closed the socket")

    def _next(self) -> tuple[int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, start = buffer[1], 2
        if size == 126:
            if len(buffer) < 4:
                return None
            (size,), start = struct.unpack_from("!H", buffer, 2), 4
        elif size == 127:
            if len(buffer) < 10:
                return None
            (size,), start = struct.unpack_from("!Q", buffer, 2), 10
        if len(buffer) < start + size:
            return None
        frame = buffer[0] & 0xF, bytes(buffer[start : start + size])
        del buffer[: start + size]
        return frame

    def _upgrade(self, host: str) -> None:
        key = "dGhlIHNhbXBsZSBub25jZQ=="
        lines = ["GET /ws/v1 HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", ""]
        self._socket.sendall("\r\n".join(lines).encode())
        while b"\r\n\r\n" not in self._buffer:
            data = self._socket.recv(65_536)
            assert data, "the server closed the connection during the upgrade"
            self._buffer += data
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        assert b" 101 " in head.partition(b"\r\n")[0], head.decode()
        self._buffer = bytearray(rest)
