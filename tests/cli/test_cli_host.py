"""Listening inside the controller's own process."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from peen.cli.host import HELD_BYTES, Ear
from peen.feed.fanout import Fanout
from peen.wire.websocket import payload_of, text_frame

SESSION = "11111111-1111-4111-8111-111111111111"


def test_a_frame_gives_back_what_it_was_made_of() -> None:
    for size in (0, 1, 125, 126, 65_535, 65_536, 70_000):
        assert payload_of(text_frame(b"x" * size)) == b"x" * size


async def test_frames_of_the_session_are_heard_in_order_and_once() -> None:
    fanout, ear = Fanout(), Ear(SESSION)
    fanout.add(ear)
    fanout.publish(SESSION, [text_frame(b"1"), text_frame(b"2")])
    fanout.publish("another", [text_frame(b"not ours")])
    ear.reply(text_frame(b"3"))

    assert await ear.listen(60) == [b"1", b"2", b"3"]
    assert ear.take() == []


async def test_listening_returns_as_soon_as_something_comes(nursery: trio.Nursery) -> None:
    ear, heard = Ear(SESSION), []

    async def listen() -> None:
        heard.extend(await ear.listen(60))

    nursery.start_soon(listen)
    await wait_all_tasks_blocked()
    ear.offer([text_frame(b"now")])
    await wait_all_tasks_blocked()

    assert heard == [b"now"]


async def test_silence_ends_after_its_time(autojump_clock: MockClock) -> None:
    began = trio.current_time()

    assert await Ear(SESSION).listen(1.0) == []
    assert trio.current_time() - began == 1.0


def test_a_reader_that_falls_behind_lets_go_and_knows_it() -> None:
    ear = Ear(SESSION)
    big = text_frame(b"x" * (HELD_BYTES // 2))

    missed = []
    for _ in range(2):
        ear.offer([big])
        missed.append(ear.missed)

    assert missed == [False, True]
    assert ear.take() == []
    ear.offer([text_frame(b"later")])
    assert ear.take() == [b"later"]
