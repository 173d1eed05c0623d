"""When a worker counts as lost because nothing is heard of it."""

from __future__ import annotations

import trio
from trio.testing import MockClock, memory_stream_pair

from peen.space.generation import silence
from peen.wire.worker import Beat, encode
from peen.worker.framing import FrameStream
from peen.worker.link import WorkerLink

LIMIT_S = 20.0


async def start(nursery: trio.Nursery) -> tuple[WorkerLink, FrameStream]:
    ours, theirs = memory_stream_pair()
    link = WorkerLink(FrameStream(ours), lambda *_: None)
    await nursery.start(link.run)
    return link, FrameStream(theirs)


async def test_a_worker_that_never_beats_is_silent_after_the_limit(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    link, _ = await start(nursery)
    began = trio.current_time()

    await silence(link, LIMIT_S)

    assert trio.current_time() - began == LIMIT_S
    nursery.cancel_scope.cancel()


async def test_each_beat_starts_the_limit_anew(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    link, worker = await start(nursery)
    began = trio.current_time()

    async def beat() -> None:
        for _ in range(3):
            await trio.sleep(15)
            await worker.send(encode(Beat()))

    nursery.start_soon(beat)
    await silence(link, LIMIT_S)

    assert trio.current_time() - began == 3 * 15 + LIMIT_S
    nursery.cancel_scope.cancel()


async def test_a_controller_that_stood_still_itself_waits_once_more(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    link, _worker = await start(nursery)
    began = trio.current_time()
    ended = trio.Event()

    async def watch() -> None:
        await silence(link, LIMIT_S)
        ended.set()

    nursery.start_soon(watch)
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(100)  # as if this process had been stopped for so long
    await trio.testing.wait_all_tasks_blocked()
    assert not ended.is_set()

    mock_clock.autojump_threshold = 0
    await ended.wait()

    assert trio.current_time() - began == 100 + LIMIT_S
    nursery.cancel_scope.cancel()
