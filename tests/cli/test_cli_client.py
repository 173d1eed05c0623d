"""The blocking client against bytes that a server could send."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from cli_canned import (
    SESSION,
    Handler,
    ServerSocket,
    ack,
    answer,
    canned,
    frame,
    http_bytes,
    read_request,
)

from peen.cli.client import MAX_ERROR_BYTES, CallRefused, Client, ConnectionLost, Endpoint
from peen.cli.framesocket import FrameSocket
from peen.entropy import SystemEntropy


class ByteByByte(socket.socket):
    """Gives one byte at a time, so that every place is one where an answer is cut."""

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        return super().recv(1, flags)


class SplitEndpoint(Endpoint):
    """An endpoint whose connections deliver byte by byte."""

    def connect(self, within_s: float) -> tuple[socket.socket, dict[str, str]]:
        connection, headers = Endpoint.connect(self, within_s)
        split = ByteByByte(fileno=connection.detach())
        split.settimeout(within_s)
        return split, headers


def say(data: bytes) -> Handler:
    def handle(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(data)

    return handle


def client(endpoint: Endpoint, *, call_s: float = 10.0) -> Client:
    return Client(endpoint, SystemEntropy(), call_s=call_s)


def test_an_answer_may_arrive_in_any_pieces(short_path: Path) -> None:
    with canned(short_path / "s", say(http_bytes(200, b'{"status":"ok"}'))) as endpoint:
        split = SplitEndpoint(endpoint.control_socket, None, None)

        assert client(split).get("/ready") == b'{"status":"ok"}'


def test_a_chunked_answer_is_joined(short_path: Path) -> None:
    data = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    with canned(short_path / "s", say(data)) as endpoint:
        assert client(SplitEndpoint(endpoint.control_socket, None, None)).get("/x") == b"abcde"


def test_a_call_says_who_it_is_for_and_what_it_carries(short_path: Path) -> None:
    seen: list[tuple[str, dict[str, str], bytes]] = []

    def note(connection: socket.socket) -> None:
        seen.append(read_request(connection))
        connection.sendall(http_bytes(200, b"{}"))

    with canned(short_path / "s", note, note) as endpoint:
        client(endpoint).post("/api/v1/sessions/open", b'{"workspace":"/w"}')
        client(endpoint).get("/api/v1/session/feed", session_id=SESSION, query={"cursor": 7, "limit": 3})

    post, get = seen
    assert post[0] == "POST /api/v1/sessions/open HTTP/1.1"
    assert post[1]["content-type"] == "application/json"
    assert post[2] == b'{"workspace":"/w"}'
    assert get[0] == "GET /api/v1/session/feed?cursor=7&limit=3 HTTP/1.1"
    assert get[1]["x-session-id"] == SESSION
    assert "content-type" not in get[1]


def test_an_error_envelope_becomes_status_code_and_message(short_path: Path) -> None:
    body = {"code": "SESSION_NOT_FOUND", "message": "no such session"}
    with (
        canned(short_path / "s", answer(404, body)) as endpoint,
        pytest.raises(CallRefused, match=r"^404 SESSION_NOT_FOUND: no such session$") as refused,
    ):
        client(endpoint).get("/api/v1/session")
    assert (refused.value.http_status, refused.value.error_code) == (404, "SESSION_NOT_FOUND")


def test_an_error_that_is_no_envelope_is_shown_up_to_a_limit(short_path: Path) -> None:
    with (
        canned(short_path / "s", say(http_bytes(502, b"x" * 20_000))) as endpoint,
        pytest.raises(CallRefused) as refused,
    ):
        client(endpoint).get("/x")
    assert str(refused.value) == "502: " + "x" * MAX_ERROR_BYTES


@pytest.mark.parametrize("kept", [0, 10, 60, 90])
def test_an_answer_that_ends_early_is_a_lost_connection(short_path: Path, kept: int) -> None:
    whole = http_bytes(200, b'{"status":"ok","more":"text"}')
    assert kept < len(whole)
    with canned(short_path / "s", say(whole[:kept])) as endpoint, pytest.raises(ConnectionLost):
        client(endpoint).get("/ready")


def test_an_answer_that_is_no_http_is_a_lost_connection(short_path: Path) -> None:
    with canned(short_path / "s", say(b"SSH-2.0-OpenSSH_9\r\n\r\n")) as endpoint, pytest.raises(ConnectionLost):
        client(endpoint).get("/ready")


def test_a_server_that_never_answers_is_given_up(short_path: Path) -> None:
    def silent(connection: socket.socket) -> None:
        read_request(connection)
        assert connection.recv(1) == b"", "the client hangs up"

    with canned(short_path / "s", silent) as endpoint, pytest.raises(ConnectionLost, match="in time"):
        client(endpoint, call_s=0.05).get("/ready")


def test_without_a_socket_the_address_is_used_and_needs_the_token(short_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"

        connection, headers = Endpoint(short_path / "missing", address, "secret").connect(5)

        connection.close()
    assert headers == {"host": address.removeprefix("http://"), "authorization": "Bearer secret"}


def test_a_controller_that_is_not_there_is_named(short_path: Path) -> None:
    with pytest.raises(ConnectionLost, match=f"{short_path}/missing: No such file"):
        Endpoint(short_path / "missing", None, None).connect(5)


# --- frames ---------------------------------------------------------------------------------------------------------


def open_frames(endpoint: Endpoint) -> FrameSocket:
    return FrameSocket(endpoint, SESSION, SystemEntropy(), open_s=10.0)


def gather(frames: FrameSocket, count: int) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        more = frames.receive(10.0)
        assert more, "nothing came in time"
        got += more
    return got


def test_frames_arrive_whole_whatever_the_pieces(short_path: Path) -> None:
    sent = [frame("turn.started", {"model": "ü" * 40_000}, 1), ack({"queued": False}, "f")]

    def talk(connection: socket.socket) -> None:
        server = ServerSocket(connection)
        assert server.target == f"/ws/v1?sessionId={SESSION}"
        assert server.receive() == {"hello": "ä"}
        server.send(*sent)
        server.wait_for_close()

    with canned(short_path / "s", talk) as endpoint:
        frames = open_frames(SplitEndpoint(endpoint.control_socket, None, None))
        frames.send('{"hello": "ä"}'.encode())

        assert gather(frames, 2) == sent
        frames.close()


def test_a_ping_is_answered_while_the_client_waits(short_path: Path) -> None:
    def talk(connection: socket.socket) -> None:
        server = ServerSocket(connection)
        server.ping()
        server.send(b'"after the pong"')
        server.wait_for_close()

    with canned(short_path / "s", talk) as endpoint:
        frames = open_frames(endpoint)

        assert gather(frames, 1) == [b'"after the pong"']
        frames.close()


def test_what_came_before_the_end_is_delivered_and_then_the_loss_is_told(short_path: Path) -> None:
    def talk(connection: socket.socket) -> None:
        ServerSocket(connection).send(b'"last words"')

    with canned(short_path / "s", talk) as endpoint:
        frames = open_frames(endpoint)

        assert gather(frames, 1) == [b'"last words"']
        with pytest.raises(ConnectionLost, match="closed the connection"):
            frames.receive(10.0)
        frames.close()


def test_nothing_to_hear_is_no_error(short_path: Path) -> None:
    with canned(short_path / "s", lambda connection: ServerSocket(connection).wait_for_close()) as endpoint:
        frames = open_frames(endpoint)

        assert frames.receive(0.01) == []
        frames.close()


def test_a_refused_upgrade_tells_why(short_path: Path) -> None:
    refusal = http_bytes(401, b'{"code":"UNAUTHORIZED","message":"invalid bearer token"}')
    with canned(short_path / "s", say(refusal)) as endpoint, pytest.raises(CallRefused, match="401 UNAUTHORIZED"):
        open_frames(SplitEndpoint(endpoint.control_socket, None, None))
