"""Worker output on its way into the log."""

from __future__ import annotations

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_one_way_pair

from peen.space.relay import BURST_LINES, MAX_LINE_BYTES, LineCutter, relay


def test_lines_are_cut_at_their_ends_and_at_the_limit() -> None:
    cutter = LineCutter()

    assert cutter.feed(b"one\r\ntwo\nthr") == ["one", "two"]
    assert cutter.feed(b"ee\n") == ["three"]
    assert cutter.feed(b"x" * (MAX_LINE_BYTES + 5)) == ["x" * MAX_LINE_BYTES]
    assert cutter.end() == ["x" * 5]
    assert cutter.end() == []


def test_control_characters_and_bad_utf8_cannot_act_on_a_terminal() -> None:
    assert LineCutter().feed(b"\x1b[31mred\ttab\xff\xc2\x9b\n") == ["\\x1b[31mred\ttab\ufffd\\x9b"]


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(1, 30)))
def test_where_the_bytes_are_split_does_not_matter(lines: list[bytes], sizes: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    whole = LineCutter().feed(data)

    cutter, pieces, at = LineCutter(), [], 0
    for size in sizes:
        pieces += cutter.feed(data[at : at + size])
        at += size
    pieces += cutter.feed(data[at:]) + cutter.end()

    assert pieces == whole


async def test_a_flood_is_thinned_out_and_counted(autojump_clock: MockClock) -> None:
    writer, reader = memory_stream_one_way_pair()
    lines: list[str] = []
    dropped: list[int] = []

    async def write() -> None:
        async with writer:
            await writer.send_all(b"x\n" * (BURST_LINES + 50))
            await trio.sleep(0.1)  # of virtual time: ten more may pass
            await writer.send_all(b"y\n" * 12)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await relay(reader, line=lines.append, dropped=dropped.append)

    assert lines == ["x"] * BURST_LINES + ["y"] * 10
    assert dropped == [50, 2]
