"""A server in a thread that says what a test wrote down: one handler a connection, in order."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, Pong, Request, TextMessage

from peen.cli.client import Endpoint
from peen.settings import Settings, load_settings

SESSION = "11111111-1111-4111-8111-111111111111"
REQUEST = "22222222-2222-4222-8222-222222222222"
PATIENCE_S = 10.0  # a hung test ends, and says so

Handler = Callable[[socket.socket], None]


@contextmanager
def canned(path: Path, *handlers: Handler) -> Iterator[Endpoint]:
    """Listen at `path`; the n-th connection goes to the n-th handler, each in a thread of its own.

    What a handler raises fails the test, and so does a connection that never comes.
    """
    faults: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def body() -> None:
            try:
                work()
            except BaseException as fault:  # carried over to the test's own thread
                faults.append(fault)

        thread = threading.Thread(target=body)
        thread.start()
        return thread

    def serve(handler: Handler, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(PATIENCE_S)
            handler(connection)

    def accept() -> None:
        for handler in handlers:
            connection, _ = listener.accept()
            threads.append(guarded(partial(serve, handler, connection)))
        listener.close()  # whoever connects once more is refused, and not left waiting

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        listener.settimeout(PATIENCE_S)
        threads: list[threading.Thread] = []
        threads.append(guarded(accept))
        try:
            yield Endpoint(path, None, None)
        finally:
            for thread in threads:  # grows while the first of them runs
                thread.join()
            path.unlink()
    if faults:
        raise faults[0]


# --- HTTP -----------------------------------------------------------------------------------------------------------


def read_request(connection: socket.socket) -> tuple[str, dict[str, str], bytes]:
    """Request line, headers (names in lower case) and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += _some(connection)
    return first, headers, body


def answer(status: int, body: Any, seen: list[str] | None = None) -> Handler:
    """Answer one request with JSON; its request line is added to `seen`."""

    def handle(connection: socket.socket) -> None:
        first, _, _ = read_request(connection)
        if seen is not None:
            seen.append(first)
        connection.sendall(http_bytes(status, json.dumps(body).encode()))

    return handle


def http_bytes(status: int, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def opened(*, feed_sequence: int = 0, seen: list[str] | None = None) -> Handler:
    """The answer of `sessions/open`."""
    return answer(200, {"session": session_json(feed_sequence), "created": False}, seen)


def session_json(feed_sequence: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "id": SESSION, "createdAt": "2026-01-31T12:00:00.000Z", "updatedAt": "2026-01-31T12:00:00.000Z",
        "messageCount": 0, "completedTurnCount": 0, "activeTurn": False, "status": "idle", "agent": "default",
        "model": "up/model", "workspace": "/work", "agentSpace": "control", "feedSequence": feed_sequence,
        "usage": {"billedCostAmount": "0", "costKnown": True}, **changes,
    }  # fmt: skip


# --- frames ---------------------------------------------------------------------------------------------------------


class ServerSocket:
    """The server's end of one `/ws/v1`."""

    def __init__(self, connection: socket.socket) -> None:
        """Accept the upgrade."""
        self._connection, self._protocol = connection, WSConnection(ConnectionType.SERVER)
        self._texts: list[str] = []
        self.target = ""
        self.pongs = 0
        while not self.target:
            self._read()
        self._connection.sendall(self._protocol.send(AcceptConnection()))

    def receive(self) -> dict[str, Any]:
        """The next frame of the client."""
        while not self._texts:
            self._read()
        frame: dict[str, Any] = json.loads(self._texts.pop(0))
        return frame

    def send(self, *frames: bytes) -> None:
        for frame in frames:
            self._connection.sendall(self._protocol.send(TextMessage(data=frame.decode())))

    def ping(self) -> None:
        """Send a ping and wait for its pong."""
        self._connection.sendall(self._protocol.send(Ping()))
        before = self.pongs
        while self.pongs == before:
            self._read()

    def settle(self) -> None:
        """Wait until the client has taken in what was sent: the second ping is answered from its next wait only."""
        self.ping()
        self.ping()

    def wait_for_close(self) -> None:
        while self._read():
            pass

    def _read(self) -> bool:
        data = self._connection.recv(65536)
        self._protocol.receive_data(data or None)
        for event in self._protocol.events():
            match event:
                case Request(target=target):
                    self.target = target
                case TextMessage(data=text):
                    self._texts.append(text)
                case Pong():
                    self.pongs += 1
                case CloseConnection():
                    return False
                case _:
                    raise AssertionError(f"unexpected {event}")
        if not data:
            raise AssertionError("the client went away")
        return True


def frame(kind: str, data: dict[str, Any], sequence: int, *, request: str | None = REQUEST) -> bytes:
    """A sequenced frame."""
    metadata = {"sessionId": SESSION, "sequence": sequence, **({"requestId": request} if request else {})}
    return json.dumps(
        {"id": "x", "type": kind, "data": data, "timestamp": 1, "metadata": metadata, "triggeredBy": None}
    ).encode()


def ack(data: dict[str, Any], triggered_by: str | None, *, request: str | None = REQUEST) -> bytes:
    """`message.completed`, or `message.failed` where `data` has a code."""
    metadata = {"sessionId": SESSION, **({"requestId": request} if request else {})}
    kind = "message.failed" if "code" in data else "message.completed"
    return json.dumps(
        {"id": "y", "type": kind, "data": data, "timestamp": 1, "metadata": metadata, "triggeredBy": triggered_by}
    ).encode()


def whole_turn(message: str, text: str, *, first: int = 1) -> list[bytes]:
    """The frames of a turn that completes, from sequence `first` on."""
    return [
        frame("userMessage.created", {"message": message}, first),
        frame("turn.started", {"sessionId": SESSION, "model": "up/model", "workspace": "/work"}, first + 1),
        frame("turn.completed", {"model": "up/model", "text": text, "finishReason": "stop"}, first + 2),
    ]


def press() -> None:
    """SIGINT to this process, as from a terminal; to its main thread, whose wait it is to end at once."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


# --- settings -------------------------------------------------------------------------------------------------------


def settings_in(base: Path) -> Settings:
    """Settings whose directories lie in `base`, and exist."""
    for name in ("state", "config", "work"):
        (base / name).mkdir(mode=0o700)
    return load_settings(environment_in(base), cwd=base, home=base)


def environment_in(base: Path) -> dict[str, str]:
    return {
        "PEEN_STATE_DIR": str(base / "state"),
        "PEEN_CONFIG_DIR": str(base / "config"),
        "PEEN_WORKSPACE_ROOT": str(base),
        "PEEN_HTTP_LISTEN_ADDRESS": "127.0.0.1:0",
    }


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    assert data, "the client went away"
    return data
