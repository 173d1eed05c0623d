"""Who may connect to the real program: hosts, origins, tokens, and requests that try to be two at once."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator

import httpx
import pytest
from crash_kit import Client, script, scripted_daemon, short_directory
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from peen.testing.daemon import Daemon, DaemonFailed

SCRIPT = script({"answers": [[{"text": "hello"}]]})
TOKEN = "a-token-that-nobody-guesses"
UPGRADE = (
    "GET /ws/v1 HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{more}\r\n"
)


@pytest.fixture(scope="module")
def open_daemon() -> Iterator[Daemon]:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def locked_daemon() -> Iterator[Daemon]:
    with short_directory() as home, scripted_daemon(home, SCRIPT, {"PEEN_API_TOKEN": TOKEN}) as daemon:
        yield daemon


def talk(daemon: Daemon, text: str, *, patience_s: float = 5.0) -> str:
    """What the server answers to these bytes, until it closes or falls silent."""
    host, _, port = daemon.address.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=patience_s) as connection:
        connection.sendall(text.encode())
        received = b""
        connection.settimeout(0.5)
        try:
            while data := connection.recv(65_536):
                received += data
        except TimeoutError:
            pass
        return received.decode(errors="replace")


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Origin": "https://evil.example"}, 403, "FORBIDDEN_ORIGIN"),
        ({"Origin": "null"}, 403, "FORBIDDEN_ORIGIN"),
        ({"Host": "rebound.example:80"}, 403, "FORBIDDEN_HOST"),
        ({"Content-Type": "text/plain"}, 415, "BAD_REQUEST"),
    ],
)
def test_a_foreign_page_cannot_change_anything(
    open_daemon: Daemon, headers: dict[str, str], status: int, code: str
) -> None:
    with Client(open_daemon) as client:
        answer = client.http.post(
            "/sessions/open",
            content=json.dumps({"workspace": str(open_daemon.workspace_root)}),
            headers={"Content-Type": "application/json", **headers},
        )
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert client.http.get("/sessions").json()["items"] == []
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("more", ["Origin: https://evil.example\r\n", "Origin: null\r\n"])
def test_a_foreign_page_cannot_open_a_socket(open_daemon: Daemon, more: str) -> None:
    answer = talk(open_daemon, UPGRADE.format(host=open_daemon.address.removeprefix("http://"), more=more))

    assert answer.startswith("HTTP/1.1 403 ")
    assert "FORBIDDEN_ORIGIN" in answer


def test_an_origin_that_is_the_host_may_open_a_socket(open_daemon: Daemon) -> None:
    host = open_daemon.address.removeprefix("http://")

    answer = talk(open_daemon, UPGRADE.format(host=host, more=f"Origin: http://{host}\r\n"))

    assert answer.startswith("HTTP/1.1 101 ")


def test_a_socket_needs_the_token_in_a_header_or_a_subprotocol(locked_daemon: Daemon) -> None:
    encoded = base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip("=")
    wrong = base64.urlsafe_b64encode(b"wrong").decode().rstrip("=")
    url = locked_daemon.socket_url

    with connect(url, additional_headers={"Authorization": f"Bearer {TOKEN}"}):
        pass
    with connect(url, subprotocols=[Subprotocol("peen.v1"), Subprotocol(f"peen.bearer.{encoded}")]) as chosen:
        assert chosen.subprotocol == "peen.v1"
    refused = [
        (url, None, None),
        (url, {"Authorization": "Bearer wrong"}, None),
        (url, None, [Subprotocol("peen.v1"), Subprotocol(f"peen.bearer.{wrong}")]),
        (f"{url}?token={TOKEN}", None, None),
    ]
    for at, headers, offered in refused:
        with (
            pytest.raises(InvalidStatus, match=r"401|400"),
            connect(at, additional_headers=headers, subprotocols=offered),
        ):
            pass


def test_rest_needs_the_token_and_probes_do_not(locked_daemon: Daemon) -> None:
    with httpx.Client(base_url=locked_daemon.address) as http:
        assert http.get("/api/v1/sessions").status_code == 401
        assert http.get("/api/v1/sessions", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert http.get("/api/v1/sessions", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200
        assert http.get(f"/api/v1/sessions?token={TOKEN}").status_code in (400, 401)
        assert http.get("/healthz").json() == http.get("/ready").json() == {"status": "ok"}


def test_listening_to_the_network_without_a_token_does_not_start_and_says_so_in_one_line() -> None:
    with short_directory() as home:
        daemon = Daemon(home, {"PEEN_HTTP_LISTEN_ADDRESS": "0.0.0.0:0"})

        with pytest.raises(DaemonFailed) as failed:
            daemon.launch_and_fail()

        lines = str(failed.value).splitlines()
        assert lines[0] == "exit code 1"
        assert len(lines) == 2
        assert "PEEN_API_TOKEN" in lines[1]


def test_an_upgrade_on_a_connection_that_has_served_http_is_refused_and_closed(open_daemon: Daemon) -> None:
    host = open_daemon.address.removeprefix("http://")

    answer = talk(open_daemon, f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n" + UPGRADE.format(host=host, more=""))

    assert answer.startswith("HTTP/1.1 200")
    assert "HTTP/1.1 426" in answer


def test_a_request_smuggled_behind_another_is_never_read_as_one_of_its_own(open_daemon: Daemon) -> None:
    host = open_daemon.address.removeprefix("http://")
    inner = f"GET /api/v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n"
    for head in (
        f"POST /api/v1/sessions/open HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        f"GET /ws/v1 HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        f"Content-Length: {len(inner)}\r\n\r\n",
    ):
        answer = talk(open_daemon, head + inner)

        assert answer.count("HTTP/1.1 ") == 1
        assert answer.startswith("HTTP/1.1 400")
        assert "contextWindowTokens" not in answer


def test_half_a_request_head_is_neither_answered_nor_served(open_daemon: Daemon) -> None:
    answer = talk(open_daemon, "GET /healthz HTTP/1.1\r\nHos", patience_s=2)

    assert answer == ""


def test_a_request_id_comes_back_and_every_refusal_has_the_envelope(open_daemon: Daemon) -> None:
    given = "0f8fad5b-d9cb-469f-a165-70867728950e"
    with httpx.Client(base_url=open_daemon.address) as http:
        answer = http.get("/api/v1/session", headers={"X-Request-ID": given})
        missing = http.get("/api/v1/nothing")

        assert answer.headers["x-request-id"] == given
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_SESSION_ID")
        assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")
        assert set(missing.json()) == {"code", "message"}
