from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import trio
import trio.testing
from hub_world import (
    SESSION,
    UPGRADE,
    World,
    body_of,
    masked,
    message_frame,
    open_world,
    read_to_end,
    read_until,
    status_of,
)
from structlog.testing import capture_logs

from peen.errors import ConfigurationInvalid
from peen.hub.admit import Rules
from peen.hub.listener import listen_unix, open_memory, peer_uid
from peen.hub.request import MAX_BODY_BYTES
from peen.hub.sockets import HubLimits

REQUEST = "GET /api/v1/workspace-roots HTTP/1.1\r\nHost: localhost\r\n"
LAST = "Connection: close\r\n\r\n"
OPEN = "POST /api/v1/sessions/open HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
QUICK = HubLimits(head_s=0.2, send_s=0.5, close_s=0.5, linger_s=0.2)
ROOTS = {"roots": ["the api"]}


async def test_a_request_is_answered() -> None:
    async with open_world() as world:
        answer = await world.exchange(REQUEST + LAST)

    assert (status_of(answer), body_of(answer)) == (200, ROOTS)
    headers = answer.lower().split(b"\r\n\r\n")[0]
    assert b"\r\nserver:" not in headers
    assert b"\r\nx-request-id: " in headers


@pytest.mark.parametrize("cut", [1, 10, 16, 40, len(REQUEST), len(REQUEST + LAST) - 1])
async def test_a_head_in_two_parts_is_read_as_one(cut: int) -> None:
    whole = (REQUEST + LAST).encode()
    async with open_world() as world, await world.connect() as stream:
        await stream.send_all(whole[:cut])
        await trio.testing.wait_all_tasks_blocked(0.01)
        await stream.send_all(whole[cut:])
        answer = await read_to_end(stream)

    assert (status_of(answer), body_of(answer)) == (200, ROOTS)


async def test_requests_and_bodies_behind_the_head_are_all_read() -> None:
    body = '{"workspace":"/srv"}'
    async with open_world() as world:
        answer = await world.exchange(
            REQUEST + "\r\n" + OPEN + f"Content-Length: {len(body)}\r\n\r\n{body}" + REQUEST + LAST
        )

    assert answer.count(b"HTTP/1.1 200") == 3
    assert b'{"roots":["/srv"]}' in answer


async def test_one_connection_serves_many_requests() -> None:
    async with open_world() as world, httpx.AsyncClient(base_url=f"http://127.0.0.1:{world.port}") as client:
        for _ in range(3):
            assert (await client.get("/api/v1/workspace-roots")).json() == ROOTS
        head = await client.head("/api/v1/workspace-roots")
        missing = await client.get("/api/v1/nothing", headers={"X-Request-ID": SESSION})
        session = await client.get("/api/v1/session", headers={"X-Session-ID": SESSION})
        options = await client.options("/api/v1/session")
        trace = await client.request("TRACE", "/api/v1/session")

    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "21")
    assert (missing.status_code, missing.headers["x-request-id"]) == (404, SESSION)
    assert session.headers["x-session-id"] == SESSION
    assert (options.status_code, options.headers["allow"]) == (405, "GET, HEAD")
    assert trace.status_code == 405
    assert not [name for name in options.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("request_text", "status", "code"),
    [
        ("NONSENSE\r\n\r\n", 400, "BAD_REQUEST"),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "BAD_REQUEST"),
        ("GET / HTTP/1.1\r\n\r\n", 400, "BAD_REQUEST"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400, "BAD_REQUEST"),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nX: " + "y" * 20_000, 431, "BAD_REQUEST"),
        ("GET /api/v1/workspace-roots HTTP/1.0\r\n\r\n", 403, "FORBIDDEN_HOST"),
        (REQUEST.replace("localhost", "evil.example") + LAST, 403, "FORBIDDEN_HOST"),
        (REQUEST + "Origin: http://evil.example\r\n" + LAST, 403, "FORBIDDEN_ORIGIN"),
        (REQUEST.replace("GET /api", "GET http://evil.example/api") + LAST, 400, "BAD_REQUEST"),
        (REQUEST.replace("-roots", "-roots?token=x") + LAST, 400, "BAD_REQUEST"),
        (REQUEST.replace("-roots", "-roots?x=%ff") + LAST, 400, "BAD_REQUEST"),
        (OPEN.replace("application/json", "text/plain") + "Content-Length: 2\r\n" + LAST + "{}", 415, "BAD_REQUEST"),
        (OPEN + "Content-Length: 2\r\n" + LAST + "{}", 400, "VALIDATION_FAILED"),
        (OPEN + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n" + LAST + "0\r\n\r\n", 400, "BAD_REQUEST"),
        ("GET /ws/v1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 426, "BAD_REQUEST"),
        (UPGRADE.replace("/ws/v1", "/ws/v2") + "\r\n", 426, "BAD_REQUEST"),
        (UPGRADE.replace("127.0.0.1", "evil.example") + "\r\n", 403, "FORBIDDEN_HOST"),
        (UPGRADE + "Origin: null\r\n\r\n", 403, "FORBIDDEN_ORIGIN"),
        (UPGRADE.replace("/ws/v1", "/ws/v1?sessionId=x") + "\r\n", 400, "INVALID_SESSION_ID"),
        (UPGRADE.replace("Version: 13", "Version: 8") + "\r\n", 426, "BAD_REQUEST"),
        (UPGRADE + "Content-Length: 4\r\n\r\nGET ", 400, "BAD_REQUEST"),
        ("GET /api/v1/broken HTTP/1.1\r\nHost: localhost\r\n" + LAST, 500, "INTERNAL_SERVER_ERROR"),
    ],
)
async def test_a_refusal_is_plain_http_with_the_envelope_and_closes(request_text: str, status: int, code: str) -> None:
    async with open_world(limits=QUICK) as world:
        answer = await world.exchange(request_text.encode("latin-1"))

        assert (status_of(answer), body_of(answer)["code"]) == (status, code)
        assert answer.lower().count(b"\r\nx-request-id: ") == 1
        assert world.backend.received == []


async def test_nothing_behind_a_refused_upgrade_is_carried_out() -> None:
    smuggled = OPEN + "Content-Length: 17\r\n" + LAST + '{"workspace":"/"}'
    async with open_world(limits=QUICK) as world:
        answer = await world.exchange(UPGRADE + "Origin: null\r\n\r\n" + smuggled)

    assert status_of(answer) == 403
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_frames_behind_the_head_of_an_upgrade_are_the_first_ones_read() -> None:
    early, later = message_frame("early"), message_frame("later")
    async with open_world() as world, await world.connect() as stream:
        first = masked(early.encode())
        await stream.send_all((UPGRADE + "\r\n").encode() + first[:7])
        received = await read_until(stream, b"\r\n\r\n")
        await stream.send_all(first[7:] + masked(later.encode()))
        while received.count(b"message.completed") < 2:
            received = await read_until(stream, b"message.completed", await stream.receive_some() + received)

        assert status_of(received) == 101
        assert [message.message for message in world.backend.received] == ["early", "later"]


async def test_a_head_that_never_ends_is_given_up() -> None:
    async with open_world(limits=QUICK) as world:
        slow = await world.exchange(REQUEST)
        silent = await world.exchange("")

    assert (status_of(slow), status_of(silent)) == (408, 408)


async def test_drops_of_a_head_do_not_buy_time() -> None:
    async with open_world(limits=QUICK) as world, await world.connect() as stream:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def drip() -> None:
                with trio.CancelScope():
                    for letter in REQUEST * 100:
                        try:
                            await stream.send_all(letter.encode())
                        except trio.BrokenResourceError:
                            return
                        await trio.sleep(0.01)  # the pace of the slow client, not an order of events

            nursery.start_soon(drip)
            answer = await read_until(stream, b"\r\n\r\n")
            nursery.cancel_scope.cancel()

        assert status_of(answer) == 408
        assert trio.current_time() - began < 5


async def test_a_client_that_leaves_in_its_head_is_forgotten() -> None:
    async with open_world() as world:
        async with await world.connect() as stream:
            await stream.send_all(REQUEST.encode())
            await stream.send_eof()
            assert await read_to_end(stream) == b""
        assert status_of(await world.exchange(REQUEST + LAST)) == 200


async def test_a_late_upgrade_is_answered_with_426_and_the_connection_closes() -> None:
    async with open_world() as world, await world.connect() as stream:
        await stream.send_all((REQUEST + "\r\n").encode())
        first = await read_until(stream, b'{"roots":["the api"]}')
        await stream.send_all((UPGRADE + "\r\n").encode())
        second = await read_to_end(stream)

    assert (status_of(first), status_of(second)) == (200, 426)
    assert body_of(second)["message"] == "open a new connection for the socket"
    assert b"connection: close" in second.lower()


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit_is_refused_and_the_answer_arrives(declared: bool) -> None:
    size = MAX_BODY_BYTES * 2
    if declared:
        text = OPEN.encode() + f"Content-Length: {size}\r\n{LAST}".encode() + b"x" * size
    else:
        text = OPEN.encode() + f"Transfer-Encoding: chunked\r\n{LAST}".encode()
        text += f"{size:x}\r\n".encode() + b"x" * size + b"\r\n0\r\n\r\n"
    async with open_world() as world:
        answer = await world.exchange(text)

    assert (status_of(answer), body_of(answer)["code"]) == (413, "BAD_REQUEST")


async def test_a_body_of_the_allowed_size_is_read() -> None:
    path = "/" + "x" * (MAX_BODY_BYTES - 17)
    body = f'{{"workspace":"{path}"}}'
    assert len(body) == MAX_BODY_BYTES
    async with open_world() as world:
        answer = await world.exchange(OPEN + f"Content-Length: {len(body)}\r\n" + LAST + body)

    assert body_of(answer) == {"roots": [path]}


async def test_a_kept_connection_that_says_nothing_more_is_closed() -> None:
    async with open_world(limits=HubLimits(idle_s=0.2)) as world, await world.connect() as stream:
        for _ in range(2):
            await stream.send_all((REQUEST + "\r\n").encode())
            await read_until(stream, b'{"roots":["the api"]}')
        await stream.send_all(REQUEST[:20].encode())

        assert await read_to_end(stream) == b""


async def test_a_connection_that_its_client_has_closed_is_not_kept() -> None:
    async with open_world() as world, await world.connect() as stream:
        await stream.send_all((REQUEST + "\r\n").encode())
        await read_until(stream, b'{"roots":["the api"]}')
        await stream.send_eof()

        with trio.fail_after(20):  # seconds; an idle one would be kept for 60
            assert await read_to_end(stream) == b""


async def test_a_client_that_closes_its_half_early_is_answered_all_the_same() -> None:
    async with open_world() as world, await world.connect() as stream:
        await stream.send_all((REQUEST + "\r\n").encode())
        await stream.send_eof()

        with trio.fail_after(20):
            assert (await read_to_end(stream)).endswith(b'{"roots":["the api"]}')


async def test_no_query_string_is_logged() -> None:
    with capture_logs() as lines:
        async with open_world(limits=QUICK) as world:
            await world.exchange(REQUEST.replace("-roots", "-roots?secret=hush") + LAST)
            await world.exchange(UPGRADE.replace("/ws/v1", "/ws/v1?secret=hush") + "\r\n")
            await world.exchange(UPGRADE.replace("/ws/v1", "/ws/v2?secret=hush") + "\r\n")
            await world.exchange(REQUEST.replace("workspace-roots", "broken?secret=hush") + LAST)
            async with await open_socket(world, f"?sessionId={SESSION}"):
                pass

    assert "/api/v1/workspace-roots" in [line.get("path") for line in lines]
    assert "request failed" in [line["event"] for line in lines]
    assert "hush" not in repr(lines)
    assert SESSION not in repr(lines)


def test_http_libraries_are_not_imported_before_they_are_needed() -> None:
    heavy = "{'quart', 'hypercorn', 'werkzeug', 'flask', 'quart_trio'}"
    code = f"import sys, peen.hub.listener, peen.hub.rest.health; print(sorted({heavy} & set(sys.modules)))"

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "[]"


async def test_a_token_guards_everything_but_the_probes() -> None:
    async with open_world(rules=Rules.of("127.0.0.1", token="secret")) as world:
        refused = await world.exchange(REQUEST + LAST)
        nowhere = await world.exchange(REQUEST.replace("workspace", "nothing") + LAST)
        socket_refused = await world.exchange(UPGRADE + "\r\n")
        admitted = await world.exchange(REQUEST + "Authorization: bearer secret\r\n" + LAST)
        probe = await world.exchange("GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + LAST)

    assert [status_of(answer) for answer in (refused, nowhere, socket_refused)] == [401, 401, 401]
    assert body_of(refused) == {"code": "UNAUTHORIZED", "message": "invalid bearer token"}
    assert (status_of(admitted), status_of(probe)) == (200, 200)


async def test_an_http_client_that_never_reads_is_cut_off() -> None:
    async with open_world(limits=QUICK) as world, await world.connect() as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        flood = (REQUEST + "\r\n").encode() * 1000

        async def send_for_ever() -> None:
            while True:
                await stream.send_all(flood)

        with pytest.raises(trio.BrokenResourceError):
            await send_for_ever()


async def test_a_unix_socket_is_its_owners_and_needs_no_token(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    async with open_world(rules=Rules.of("127.0.0.1", token="secret")) as world:
        world.hub.listen([listen_unix(path)], trusted=True)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

        async with await trio.open_unix_socket(str(path)) as stream:
            assert peer_uid(stream) == os.getuid()
            await stream.send_all((REQUEST.replace("localhost", "peen") + LAST).encode())
            answer = await read_to_end(stream)
        async with await trio.open_unix_socket(str(path)) as stream:
            await stream.send_all((REQUEST + "Origin: http://localhost\r\n" + LAST).encode())
            refused = await read_to_end(stream)

    assert (status_of(answer), body_of(answer)) == (200, ROOTS)
    assert (status_of(refused), body_of(refused)["code"]) == (403, "FORBIDDEN_ORIGIN")


def test_a_socket_left_behind_is_replaced_and_anything_else_is_not(tmp_path: Path) -> None:
    async def bind(path: Path) -> None:
        async with listen_unix(path):
            pass

    trio.run(bind, tmp_path / "control.sock")
    trio.run(bind, tmp_path / "control.sock")
    (tmp_path / "file").write_text("mine")

    with pytest.raises(OSError, match="in use"):
        trio.run(bind, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(ConfigurationInvalid, match="107"):
        trio.run(bind, tmp_path / ("x" * 120))


async def test_a_connection_in_memory_is_served_like_any_other() -> None:
    async with open_world(rules=Rules.of("127.0.0.1", token="secret")) as world:
        async with open_memory(world.hub) as stream:
            await stream.send_all((UPGRADE + "\r\n").encode() + masked(message_frame("inside").encode()))
            received = await read_until(stream, b"message.completed")
        async with open_memory(world.hub) as stream:
            await stream.send_all((REQUEST + LAST).encode())
            answer = await read_to_end(stream)

        assert status_of(received) == 101
        assert [message.message for message in world.backend.received] == ["inside"]
        assert status_of(answer) == 200


async def test_a_hub_that_stopped_takes_no_connection_and_leaves_none_open() -> None:
    async with open_world() as world:
        world.stop()
        await world.ended.wait()

        with pytest.raises(RuntimeError):
            open_memory(world.hub)


async def test_a_fault_in_one_connection_touches_no_other() -> None:
    async def explode(message: object) -> None:
        raise ZeroDivisionError

    async with open_world() as world:
        other = await open_socket(world)
        world.backend.then = explode
        async with await open_socket(world) as stream:
            await stream.send_all(masked(message_frame("boom").encode()))
            assert await read_to_end(stream) == b""

        world.backend.then = None
        async with other:
            await other.send_all(masked(message_frame("still here").encode()))
            await read_until(other, b"message.completed")


async def open_socket(world: World, query: str = "") -> trio.SocketStream:
    stream = await world.connect()
    await stream.send_all((UPGRADE.replace("/ws/v1", f"/ws/v1{query}") + "\r\n").encode())
    await read_until(stream, b"\r\n\r\n")
    return stream


async def test_stopping_closes_sockets_with_1001_and_frees_the_port() -> None:
    async with open_world() as world:
        port = world.port
        stream = await open_socket(world)
        idle = await world.connect()
        kept = await world.connect()
        await kept.send_all((REQUEST + "\r\n").encode())
        await read_until(kept, b'{"roots":["the api"]}')
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            ended = trio.Event()

            async def read_close() -> None:
                received = await read_until(stream, b"the server is closing")
                assert received[0] == 0x88
                assert received[2:4] == (1001).to_bytes(2, "big")
                await stream.send_all(masked(received[2:4], opcode=8))
                assert await read_to_end(stream) == b""
                ended.set()

            nursery.start_soon(read_close)
            world.stop()
            await ended.wait()
            assert await read_to_end(kept) == b""
            assert await read_to_end(idle) == b""
        await world.ended.wait()
        assert trio.current_time() - began < 2
        with pytest.raises(OSError, match="failed"):
            await trio.open_tcp_stream("127.0.0.1", port)
        for each in (stream, idle, kept):
            await each.aclose()


async def test_stopping_does_not_wait_for_those_who_do_not_answer() -> None:
    async with open_world(limits=QUICK) as world:
        deaf = await open_socket(world)
        stuck = await world.connect()
        await stuck.send_all((OPEN + "Content-Length: 100\r\n\r\n{").encode())
        await trio.testing.wait_all_tasks_blocked(0.05)
        began = trio.current_time()

        world.stop()
        await world.ended.wait()

        assert trio.current_time() - began < QUICK.close_s + 2 * QUICK.linger_s + 1
        for each in (deaf, stuck):
            await each.aclose()
