from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from hub_world import (
    OTHER_SESSION,
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
from image_kit import PNG, on_wire
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from peen.errors import SessionNotFound, StorageFull
from peen.hub.admit import Rules
from peen.hub.sockets import ClientSocket, HubLimits
from peen.wire.client import ClientLimits, MessageSend, max_frame_bytes
from peen.wire.websocket import text_frame


@asynccontextmanager
async def websocket(
    world: World, resource: str = "/ws/v1", subprotocols: Sequence[str] = ()
) -> AsyncIterator[WebSocketConnection]:
    """A client by another's hand. Its stream is closed here, since the library leaves a reset one open."""
    async with await world.connect() as stream, trio.open_nursery() as nursery:
        connection = await wrap_client_stream(
            nursery, stream, "127.0.0.1", resource, subprotocols=subprotocols, max_message_size=2**24
        )
        yield connection
        await connection.aclose()


async def answer(connection: WebSocketConnection) -> Any:
    return json.loads(await connection.get_message())


async def only_socket(world: World) -> ClientSocket:
    """The server's side of the one client. It is there at the latest when a message was answered."""
    (socket,) = world.hub.sockets
    return socket


async def test_a_message_is_submitted_and_its_answer_comes_back() -> None:
    async with open_world() as world, websocket(world) as connection:
        sent = message_frame("hello", reasoningEffort="low")
        await connection.send_message(sent)
        got = await answer(connection)

        assert got["type"] == "message.completed"
        assert got["triggeredBy"] == json.loads(sent)["id"]
        (message,) = world.backend.received
        assert (message.message, message.session_id, message.reasoning_effort) == ("hello", SESSION, "low")


async def test_messages_are_submitted_one_after_the_other_in_the_order_of_receipt() -> None:
    running, most = 0, 0

    async def slowly(message: MessageSend) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.testing.wait_all_tasks_blocked()
        running -= 1

    async with open_world() as world, websocket(world) as connection:
        world.backend.then = slowly
        for number in range(10):
            await connection.send_message(message_frame(str(number)))
        for _ in range(10):
            await answer(connection)

        assert [message.message for message in world.backend.received] == [str(number) for number in range(10)]
        assert most == 1


async def test_a_malformed_frame_fails_privately_and_the_socket_lives_on() -> None:
    async with open_world() as world, websocket(world) as sender, websocket(world) as other:
        await sender.send_message("{}")
        nothing_known = await answer(sender)
        wrong = message_frame("")
        await sender.send_message(wrong)
        ids_known = await answer(sender)
        await sender.send_message(b"\x00\x01")
        binary = await answer(sender)
        await sender.send_message(message_frame("fine"))
        fine = await answer(sender)
        await other.send_message(message_frame("other"))
        first_of_other = await answer(other)

    assert nothing_known["type"] == "message.failed"
    assert nothing_known["data"] == {"code": "VALIDATION_FAILED", "message": "id: is required"}
    assert (nothing_known["metadata"], nothing_known["triggeredBy"]) == ({}, None)
    assert (ids_known["metadata"], ids_known["triggeredBy"]) == ({"sessionId": SESSION}, json.loads(wrong)["id"])
    assert ids_known["data"]["message"] == "data.message: must not be empty"
    assert binary["data"]["code"] == "VALIDATION_FAILED"
    assert (fine["type"], first_of_other["type"]) == ("message.completed", "message.completed")
    assert [message.message for message in world.backend.received] == ["fine", "other"]


async def test_a_refusal_of_the_backend_is_told_to_the_sender_alone() -> None:
    async def unknown(message: MessageSend) -> None:
        raise SessionNotFound("there is no such session")

    async def full(message: MessageSend) -> None:
        raise StorageFull("/srv/state/peen.db", "disk full")

    async with open_world() as world, websocket(world) as connection:
        world.backend.then = unknown
        sent = message_frame()
        await connection.send_message(sent)
        not_found = await answer(connection)
        world.backend.then = full
        await connection.send_message(message_frame())
        storage = await answer(connection)

    assert not_found["data"] == {"code": "SESSION_NOT_FOUND", "message": "there is no such session"}
    assert (not_found["metadata"], not_found["triggeredBy"]) == ({"sessionId": SESSION}, json.loads(sent)["id"])
    assert storage["data"]["code"] == "STORAGE_FULL"
    assert "/srv" not in storage["data"]["message"]


async def test_a_message_at_its_limits_passes_and_one_byte_more_fails_by_name() -> None:
    limits = ClientLimits(max_message_bytes=100, max_system_prompt_bytes=100)
    prompt = {"mode": "append", "content": "\u0001" * 100}
    async with open_world(client_limits=limits) as world, websocket(world) as connection:
        await connection.send_message(message_frame("\u0001" * 100, systemPrompt=prompt))
        passed = await answer(connection)
        await connection.send_message(message_frame("x" * 101, systemPrompt=prompt))
        failed = await answer(connection)

    assert passed["type"] == "message.completed"
    assert failed["data"]["message"] == "data.message: is larger than the limit of 100 bytes"


async def test_the_largest_images_pass_in_one_frame_and_one_byte_more_fails_by_name() -> None:
    limits = ClientLimits(max_images_per_message=4, max_image_bytes=300_000)
    largest = PNG + b"\xff" * (limits.max_image_bytes - len(PNG))  # base64 of this is slashes
    escaped = json.dumps(on_wire(largest)).replace("/", "\\/")
    async with open_world(client_limits=limits) as world, websocket(world) as connection:
        await connection.send_message(message_frame(images=["IMAGE"] * 4).replace('"IMAGE"', escaped))
        passed = await answer(connection)
        await connection.send_message(message_frame(images=[on_wire(PNG), on_wire(largest + b"\0")]))
        failed = await answer(connection)
        (accepted,) = world.backend.received

    assert passed["type"] == "message.completed"
    assert [image.data for image in accepted.images] == [largest] * 4
    assert failed["data"]["message"] == (
        "data.images[1].data: has 300001 bytes, more than the limit of 300000 (PEEN_MAX_IMAGE_BYTES)"
    )


@pytest.mark.parametrize("fragments", [1, 40])
async def test_a_frame_over_the_limit_closes_with_1009(fragments: int) -> None:
    limits = ClientLimits(max_message_bytes=100, max_system_prompt_bytes=100, max_image_bytes=100)
    payload = b"x" * (max_frame_bytes(limits) + 1)
    async with open_world(client_limits=limits) as world, await world.connect() as stream:
        await stream.send_all((UPGRADE + "\r\n").encode())
        await read_until(stream, b"\r\n\r\n")
        size = -(-len(payload) // fragments)
        pieces = [payload[at : at + size] for at in range(0, len(payload), size)]
        for number, piece in enumerate(pieces):
            frame = bytearray(masked(piece, opcode=1 if number == 0 else 0))
            if number < len(pieces) - 1:
                frame[0] &= 0x7F  # not the last one
            await stream.send_all(frame)
        closed = await read_to_end(stream)

        assert closed[0] == 0x88
        assert closed[2:4] == (1009).to_bytes(2, "big")
        assert world.backend.received == []


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(masked(b"\xff\xfe"), id="not UTF-8"),
        pytest.param(b"\x81\x02hi", id="unmasked"),
        pytest.param(b"\xf1\x80\0\0\0\0", id="reserved bits"),
        pytest.param(masked(b"x", opcode=0), id="a continuation of nothing"),
    ],
)
async def test_a_broken_protocol_ends_the_connection(frame: bytes) -> None:
    async with open_world() as world, await world.connect() as stream:
        await stream.send_all((UPGRADE + "\r\n").encode())
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(frame + masked(message_frame().encode()))

        assert await read_to_end(stream) == b""
        assert world.backend.received == []


async def test_pings_are_answered_between_frames_and_never_inside_one() -> None:
    frame = text_frame(b"x" * 70_000)
    async with open_world() as world, websocket(world) as connection:
        await connection.send_message(message_frame())
        await answer(connection)
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(connection.ping, bytes([number]))
                world.fanout.publish(SESSION, [frame])
            for _ in range(20):
                assert await connection.get_message() == "x" * 70_000


async def test_a_filtered_socket_hears_its_session_only() -> None:
    async with (
        open_world() as world,
        websocket(world) as everything,
        websocket(world, f"/ws/v1?sessionId={SESSION}") as filtered,
    ):
        for connection in (everything, filtered):
            await connection.send_message(message_frame())
            await answer(connection)

        world.fanout.publish(OTHER_SESSION, [text_frame(b'"other"')])
        world.fanout.publish(SESSION, [text_frame(b'"own"')])

        assert [await answer(everything), await answer(everything)] == ["other", "own"]
        assert await answer(filtered) == "own"


async def test_the_server_selects_peen_v1_and_reads_the_token_beside_it() -> None:
    async with open_world(rules=Rules.of("127.0.0.1", token="secret")) as world:
        async with websocket(world, subprotocols=["peen.v1", "peen.bearer.c2VjcmV0"]) as connection:
            assert connection.subprotocol == "peen.v1"
        refused = await world.exchange(UPGRADE + "Sec-WebSocket-Protocol: peen.v1\r\n\r\n")

    assert (status_of(refused), body_of(refused)["code"]) == (401, "UNAUTHORIZED")


async def test_identities_are_chosen_by_the_server() -> None:
    async with open_world() as world, websocket(world) as first, websocket(world) as second:
        for connection in (first, second):
            await connection.send_message(message_frame())
            await answer(connection)

        assert len({socket.identity for socket in world.hub.sockets}) == 2


async def test_a_client_that_leaves_is_forgotten_whether_or_not_it_says_goodbye() -> None:
    async with open_world() as world:
        async with websocket(world) as connection:
            await connection.send_message(message_frame())
            await answer(connection)
            polite = await only_socket(world)
        await gone(world)
        stream = await world.connect()
        await stream.send_all((UPGRADE + "\r\n").encode() + masked(message_frame().encode()))
        await read_until(stream, b"message.completed")
        rude = await only_socket(world)
        await stream.aclose()
        await gone(world)

        assert not world.fanout.has_listeners(SESSION)
        assert (polite.dropped, rude.dropped) == (None, None)


async def gone(world: World) -> None:
    while world.hub.sockets:
        await trio.testing.wait_all_tasks_blocked()


async def test_a_silent_peer_is_pinged_and_then_dropped() -> None:
    limits = HubLimits(ping_s=0.1, silent_s=0.3, linger_s=0.1)
    async with open_world(limits=limits) as world, await world.connect() as stream:
        await stream.send_all((UPGRADE + "\r\n").encode() + masked(message_frame().encode()))
        await read_until(stream, b"message.completed")
        socket = await only_socket(world)
        pinged = await read_until(stream, b"\x89\x00")
        with pytest.raises(trio.BrokenResourceError):
            await read_to_end(stream)

        assert pinged.startswith(b"\x89\x00")
        assert socket.dropped == "nothing was heard of it for 0.3 s"


async def test_a_peer_that_answers_pings_stays() -> None:
    limits = HubLimits(ping_s=0.05, silent_s=1.0)
    async with open_world(limits=limits) as world, websocket(world) as connection:
        began = trio.current_time()
        with trio.move_on_after(1.5):
            await connection.get_message()

        await connection.send_message(message_frame())
        assert (await answer(connection))["type"] == "message.completed"
        assert trio.current_time() - began >= 1.5


async def test_a_slow_backend_is_not_taken_for_a_silent_peer() -> None:
    waiting = trio.Event()

    async def wait(message: MessageSend) -> None:
        with trio.move_on_after(0.2):
            await waiting.wait()

    limits = HubLimits(ping_s=0.05, silent_s=0.1)
    async with open_world(limits=limits) as world, websocket(world) as connection:
        world.backend.then = wait
        for _ in range(4):
            await connection.send_message(message_frame())
        for _ in range(4):
            assert (await answer(connection))["type"] == "message.completed"


async def test_too_many_waiting_frames_drop_the_socket() -> None:
    limits = HubLimits(held_frames=100)
    async with open_world(limits=limits) as world, websocket(world) as connection:
        await connection.send_message(message_frame())
        await answer(connection)
        socket = await only_socket(world)

        world.fanout.publish(SESSION, [text_frame(b"1")] * 100)
        for _ in range(100):
            await connection.get_message()
        at_the_limit = socket.dropped
        world.fanout.publish(SESSION, [text_frame(b"1")] * 101)

        assert at_the_limit is None
        assert socket.dropped == "more than 100 frames wait for it"
        assert socket.held_bytes == 0
        with pytest.raises(ConnectionClosed):
            await connection.get_message()
        world.fanout.publish(SESSION, [text_frame(b"1")])


async def test_what_waits_goes_out_before_the_goodbye() -> None:
    async with open_world() as world, websocket(world) as connection:
        await connection.send_message(message_frame())
        await answer(connection)
        world.fanout.publish(SESSION, [text_frame(b"%d" % number) for number in range(2000)])

        world.stop()

        assert [await answer(connection) for _ in range(2000)] == list(range(2000))
        with pytest.raises(ConnectionClosed) as caught:
            await connection.get_message()
        assert caught.value.reason is not None
        assert caught.value.reason.code == 1001
