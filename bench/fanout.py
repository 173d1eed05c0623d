"""What it costs the controller to show one frame to many sockets: `python -m bench.fanout [--quick] [--json]`.

CPU time of the serving process, in microseconds a frame and socket, while clients in another process read: frames
published in bursts of 50, and one at a time. The floor is trio's own `send_all` of the same bytes to as many sockets.
"""

from __future__ import annotations

import base64
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio
from msgspec import Raw

from bench.common import median, parser, report, table
from peen.entropy import SystemEntropy
from peen.feed.fanout import Fanout
from peen.hub.admit import Rules
from peen.hub.listener import Hub, listen_tcp
from peen.hub.router import Router
from peen.hub.sockets import Replier
from peen.wire.client import MessageSend
from peen.wire.feed import frame_bytes
from peen.wire.websocket import text_frame

SESSION: Final = "11111111-1111-4111-8111-111111111111"
REQUEST: Final = "33333333-3333-4333-8333-333333333333"
BURST: Final = 50
SOCKETS: Final = (1, 20, 100)
SETTLE_FRAMES: Final = 500  # after so many frames the clients are given time to read what the kernel holds

Send = Callable[[Sequence[bytes]], Awaitable[None]]


class NoBackend:
    """These clients send nothing."""

    async def submit(self, message: MessageSend, origin: Replier) -> None:
        raise RuntimeError("a client of this measurement does not send")


def frames(count: int) -> list[bytes]:
    """Streamed pieces of an answer, 300 to 400 bytes each as they go over the wire."""
    data = Raw(
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a few words of an answer"}}'
    )
    return [
        text_frame(frame_bytes(SESSION, "content_block_delta", data, 1_700_000_000_000 + n, SESSION, REQUEST, n))
        for n in range(count)
    ]


# --- the clients' process -------------------------------------------------------------------------------------------


def read_for_ever(port: int, count: int, upgrade: bool) -> None:
    """Open `count` connections, say so on standard output, and read until the server closes them."""
    selector = selectors.DefaultSelector()
    key = base64.b64encode(b"0123456789abcdef").decode()
    head = (
        f"GET /ws/v1?sessionId={SESSION} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", port))
        if upgrade:
            client.sendall(head.encode())
            if b" 101 " not in client.recv(4096):
                raise RuntimeError("the upgrade was refused")
        client.setblocking(False)
        selector.register(client, selectors.EVENT_READ)
    print("ready", flush=True)
    buffer = bytearray(1 << 20)
    while selector.get_map():
        for ready, _ in selector.select():
            client = ready.fileobj  # type: ignore[assignment]
            if not client.recv_into(buffer):
                selector.unregister(client)
                client.close()


@asynccontextmanager
async def clients(port: int, count: int, *, upgrade: bool) -> AsyncIterator[None]:
    """The clients of one measurement; they end when their connections are closed."""
    command = [sys.executable, "-m", "bench.fanout", "--port", str(port), "--clients", str(count)]
    process = await trio.lowlevel.open_process([*command, *(["--upgrade"] if upgrade else [])], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        with trio.fail_after(30):
            while not await process.stdout.receive_some():
                raise RuntimeError("the clients did not start")
        yield
    finally:
        process.terminate()
        with trio.CancelScope(shield=True), trio.move_on_after(5):
            await process.wait()
        await process.stdout.aclose()


# --- the measured process -------------------------------------------------------------------------------------------


async def cpu_us(send: Send, sockets: int, *, burst: int, count: int) -> float:
    """CPU microseconds a frame and socket for `count` frames, `burst` at a time."""
    bursts = [frames(burst)] * (count // burst)
    spent = 0.0
    for number, each in enumerate(bursts):
        began = time.process_time()
        await send(each)
        spent += time.process_time() - began
        if (number * burst) % SETTLE_FRAMES == 0:
            await trio.sleep(0.002 + 0.0002 * sockets)
    return spent * 1e6 / (len(bursts) * burst * sockets)


async def measure_hub(sockets: int, count: int) -> tuple[float, float]:
    """Bursts and one by one, through the hub."""
    fanout = Fanout()
    hub = Hub(
        backend=NoBackend(),
        router=Router(),
        api=None,
        fanout=fanout,
        rules=Rules.of("127.0.0.1"),
        entropy=SystemEntropy(),
    )

    async def send(burst: Sequence[bytes]) -> None:
        for frame in burst:
            fanout.publish(SESSION, (frame,))
        # One pass of the scheduler lets every writer send.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()

    listeners = await listen_tcp("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(hub.run)
        hub.listen(listeners, trusted=False)
        async with clients(listeners[0].socket.getsockname()[1], sockets, upgrade=True):
            await cpu_us(send, sockets, burst=BURST, count=BURST * 10)
            bursts = await cpu_us(send, sockets, burst=BURST, count=count)
            single = await cpu_us(send, sockets, burst=1, count=count // 4)
            if len(hub.sockets) != sockets or any(each.held_bytes for each in hub.sockets):
                raise RuntimeError("a client was dropped or lags: the figures mean nothing")
        nursery.cancel_scope.cancel()
    return bursts, single


async def measure_floor(sockets: int, count: int) -> tuple[float, float]:
    """The same bytes by `send_all` on bare sockets, one after the other."""
    streams: list[trio.SocketStream] = []

    async def accept(stream: trio.SocketStream) -> None:
        streams.append(stream)
        await trio.sleep_forever()

    async def send(burst: Sequence[bytes]) -> None:
        joined = b"".join(burst)
        for stream in streams:
            await stream.send_all(joined)

    listeners = await listen_tcp("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, accept, listeners)
        async with clients(listeners[0].socket.getsockname()[1], sockets, upgrade=False):
            await cpu_us(send, sockets, burst=BURST, count=BURST * 10)
            bursts = await cpu_us(send, sockets, burst=BURST, count=count)
            single = await cpu_us(send, sockets, burst=1, count=count // 4)
        nursery.cancel_scope.cancel()
    return bursts, single


async def measure(*, quick: bool) -> dict[str, dict[str, float]]:
    runs = 1 if quick else 3
    results: dict[str, dict[str, float]] = {
        name: {} for name in ("cpu_us_per_frame", "cpu_us_per_frame_single", "floor", "floor_single")
    }
    for sockets in SOCKETS:
        count = (2_000 if quick else 10_000) * (4 if sockets == 1 else 1)
        ours = [await measure_hub(sockets, count) for _ in range(runs)]
        bare = [await measure_floor(sockets, count) for _ in range(runs)]
        for names, samples in (
            (("cpu_us_per_frame", "cpu_us_per_frame_single"), ours),
            (("floor", "floor_single"), bare),
        ):
            for position, name in enumerate(names):
                results[name][str(sockets)] = round(median(sample[position] for sample in samples), 2)
    return results


def main() -> None:
    made = parser(__doc__ or "")
    made.add_argument("--port", type=int, help="internal: run the clients of this port")
    made.add_argument("--clients", type=int, default=1, help="internal: how many")
    made.add_argument("--upgrade", action="store_true", help="internal: they ask for a WebSocket")
    arguments = made.parse_args()
    if arguments.port is not None:
        read_for_ever(arguments.port, arguments.clients, arguments.upgrade)
        return
    results = trio.run(partial(measure, quick=arguments.quick))
    rows = [[f"{n} sockets", *(results[name][str(n)] for name in results)] for n in SOCKETS]
    head = ["CPU us a frame and socket", "bursts of 50", "one by one", "floor, bursts", "floor, one by one"]
    report(arguments, results, table(head, rows))


if __name__ == "__main__":
    main()
