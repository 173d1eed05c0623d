"""What one client that never reads may cost: bounded memory, and nothing to anybody else."""

from __future__ import annotations

import gc
import hashlib
import os
import socket
from pathlib import Path

import trio
from hub_world import SESSION, UPGRADE, World, masked, message_frame, open_world, read_until

from peen.hub.sockets import ClientSocket, HubLimits
from peen.wire.websocket import text_frame

FRAMES_AT_ONCE = 64
BURST_BYTES = FRAMES_AT_ONCE * len(text_frame(b"%01000d" % 0))
TOTAL_BYTES = BURST_BYTES * (60 * 1024 * 1024 // BURST_BYTES + 1)
AHEAD_BYTES = 1024 * 1024  # how far the publisher runs ahead of the client that reads


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def open_socket(world: World) -> tuple[trio.SocketStream, ClientSocket]:
    """A client that was answered once, and the server's side of it."""
    before = set(world.hub.sockets)
    stream = await world.connect()
    await stream.send_all((UPGRADE + "\r\n").encode() + masked(message_frame().encode()))
    await read_until(stream, b'"triggeredBy"')
    (ours,) = world.hub.sockets - before
    await stream.send_all(masked(message_frame().encode()))
    await read_until(stream, b'"triggeredBy"')
    return stream, ours


class Reader:
    """Reads everything, and lets the publisher wait for how far it has come."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._moved = trio.Event()
        self.read_bytes = 0
        self.digest = hashlib.sha256()

    async def run(self, total_bytes: int) -> None:
        while self.read_bytes < total_bytes:
            data = await self._stream.receive_some(256 * 1024)
            assert data, "the reading client was cut off"
            self.digest.update(data)
            self.read_bytes += len(data)
            self._moved.set()

    async def reach(self, read_bytes: int) -> None:
        while self.read_bytes < read_bytes:
            await self._moved.wait()
            self._moved = trio.Event()


async def test_a_client_that_never_reads_is_dropped_and_another_gets_everything_in_order() -> None:
    async with open_world() as world:
        deaf, deaf_socket = await open_socket(world)
        keen, keen_socket = await open_socket(world)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        reader, sent = Reader(keen), hashlib.sha256()
        gc.collect()
        before, grown, most_held = resident_bytes(), 0, 0
        number = published = 0

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run, TOTAL_BYTES)
            while published < TOTAL_BYTES:
                frames = [text_frame(b"%01000d" % (number + index)) for index in range(FRAMES_AT_ONCE)]
                number += FRAMES_AT_ONCE
                world.fanout.publish(SESSION, frames)
                sent.update(b"".join(frames))
                published += BURST_BYTES
                most_held = max(most_held, deaf_socket.held_bytes)
                grown = max(grown, resident_bytes() - before)
                await reader.reach(published - AHEAD_BYTES)

        assert reader.digest.digest() == sent.digest()
        assert keen_socket.dropped is None
        assert deaf_socket.dropped == f"more than {HubLimits().held_bytes} bytes wait for it"
        assert deaf_socket not in world.hub.sockets
        assert deaf_socket.held_bytes == 0
        assert 0 < most_held <= HubLimits().held_bytes
        assert grown < 16 * 1024 * 1024
        await deaf.aclose()
        await keen.aclose()


async def test_a_send_that_takes_too_long_drops_the_client() -> None:
    async with open_world(limits=HubLimits(send_s=0.3)) as world:
        deaf, deaf_socket = await open_socket(world)
        frames = [text_frame(b"x" * 1_000_000)] * 7
        dropped = trio.Event()

        async with trio.open_nursery() as nursery:

            async def wait_for_drop() -> None:
                while deaf_socket in world.hub.sockets:
                    await trio.lowlevel.checkpoint()
                dropped.set()

            nursery.start_soon(wait_for_drop)
            while not dropped.is_set():
                if deaf_socket.held_bytes == 0 and deaf_socket.dropped is None:
                    world.fanout.publish(SESSION, frames)
                await trio.lowlevel.checkpoint()

        assert deaf_socket.dropped == "it does not read, or its connection broke"
        await deaf.aclose()
