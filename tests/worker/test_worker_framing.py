"""Frames, cut anywhere."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from peen.errors import LinkLost
from peen.wire.worker import MAX_FRAME_BYTES
from peen.worker.framing import HEADER, FrameBuffer, FrameStream, FrameTooLong


def framed(*payloads: bytes) -> bytes:
    return b"".join(HEADER.pack(len(payload)) + payload for payload in payloads)


@given(st.lists(st.binary(max_size=50)), st.lists(st.integers(1, 60)))
def test_frames_come_out_whole_wherever_the_bytes_are_split(payloads: list[bytes], sizes: list[int]) -> None:
    data, buffer = framed(*payloads), FrameBuffer()

    frames: list[bytes] = []
    at = 0
    for size in (*sizes, len(data)):
        frames += buffer.feed(data[at : at + size])
        at += size

    assert frames == payloads
    assert not buffer.half


@given(st.binary(min_size=1, max_size=50), st.data())
def test_a_frame_that_has_not_ended_is_known_as_half(payload: bytes, data: st.DataObject) -> None:
    whole, buffer = framed(payload), FrameBuffer()
    cut = data.draw(st.integers(1, len(whole) - 1))

    assert buffer.feed(whole[:cut]) == []

    assert buffer.half
    assert buffer.missing in (0, len(whole) - cut)
    assert buffer.feed(whole[cut:]) == [payload]


def test_a_frame_over_the_limit_is_refused_by_its_length_alone() -> None:
    buffer = FrameBuffer(max_bytes=10)

    assert buffer.feed(framed(b"good") + HEADER.pack(11)) == [b"good"]
    with pytest.raises(LinkLost, match="a frame of 11 bytes; the limit is 10 bytes"):
        buffer.feed(b"")


async def test_many_frames_arrive_in_one_receive() -> None:
    ours, theirs = memory_stream_pair()
    await theirs.send_all(framed(*[b"x"] * 100))

    assert await FrameStream(ours).receive() == [b"x"] * 100


async def test_an_end_between_frames_is_an_end_and_inside_one_a_loss() -> None:
    ours, theirs = memory_stream_pair()
    await theirs.send_all(framed(b"x") + b"\0\0")
    await theirs.send_eof()
    frames = FrameStream(ours)

    assert await frames.receive() == [b"x"]
    with pytest.raises(LinkLost, match="in the middle of a frame"):
        await frames.receive()

    ours, theirs = memory_stream_pair()
    await theirs.send_eof()
    assert await FrameStream(ours).receive() == []


async def test_what_is_sent_soon_leaves_joined_and_in_order(nursery: trio.Nursery) -> None:
    ours, theirs = memory_stream_pair()
    frames = FrameStream(ours)
    for number in range(5):
        frames.send_soon(b"%d" % number)
    nursery.start_soon(frames.write)

    await frames.drain(below=0)

    assert await theirs.receive_some() == framed(b"0", b"1", b"2", b"3", b"4")
    nursery.cancel_scope.cancel()


async def test_a_frame_too_long_to_send_leaves_the_stream_usable() -> None:
    ours, theirs = memory_stream_pair()
    frames = FrameStream(ours)

    with pytest.raises(FrameTooLong, match=str(MAX_FRAME_BYTES + 1)):
        frames.send_soon(bytes(MAX_FRAME_BYTES + 1))
    await frames.send(b"ok")

    assert await theirs.receive_some() == framed(b"ok")


async def test_a_peer_that_does_not_read_is_given_up(nursery: trio.Nursery) -> None:
    frames = FrameStream(memory_stream_pair()[0])
    large = bytes(MAX_FRAME_BYTES)
    frames.send_soon(large)

    with pytest.raises(LinkLost, match="does not read"):
        frames.send_soon(large)

    with pytest.raises(LinkLost, match="does not read"):
        await frames.write()
    with pytest.raises(LinkLost, match="does not read"):
        await frames.drain()


async def test_drain_waits_until_enough_was_sent(nursery: trio.Nursery) -> None:
    ours, theirs = memory_stream_pair()
    frames = FrameStream(ours)
    frames.send_soon(bytes(2 * 1024 * 1024))
    drained = trio.Event()

    async def drain() -> None:
        await frames.drain()
        drained.set()

    nursery.start_soon(drain)
    await wait_all_tasks_blocked()
    assert not drained.is_set()

    nursery.start_soon(frames.write)
    with trio.fail_after(5):
        await drained.wait()
    assert len(await theirs.receive_some()) == 2 * 1024 * 1024 + HEADER.size
    nursery.cancel_scope.cancel()


async def test_a_broken_connection_is_a_lost_link() -> None:
    ours, theirs = memory_stream_pair()
    await theirs.aclose()
    frames = FrameStream(ours)

    with pytest.raises(LinkLost, match="broke"):
        await frames.send(b"x")
    with pytest.raises(LinkLost, match="broke"):
        frames.send_soon(b"y")
