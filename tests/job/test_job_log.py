"""The way of output into the store: nothing is lost or reordered, and nothing is taken in faster than it is stored."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from peen.errors import LinkLost, PeenError, StaleClaim, StorageFull
from peen.job.log import FLUSH_S, WINDOW, OutputLog
from peen.wire.jobcalls import AppendJobOutput, JobOutputAppended
from peen.wire.joboutput import (
    MAX_CHUNK_BYTES,
    MAX_CHUNK_PIECES,
    MAX_PIECE_BYTES,
    STDERR,
    STDOUT,
    NumberedPiece,
    OutputChunk,
    pieces_of,
    streams_of,
)
from peen.wire.worker import WorkerStruct

JOB = "10b00000-0000-4000-8000-00000000000a"


class Answer:
    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: PeenError | None = None

    def result(self) -> JobOutputAppended:
        if self.error is not None:
            raise self.error
        return JobOutputAppended()


class Store:
    """Takes chunks; answers at once, or when the test says so."""

    def __init__(self, *, answers: bool = True) -> None:
        self.chunks: list[OutputChunk] = []
        self.waiting: deque[Answer] = deque()
        self._answers = answers

    def call_soon(self, request: WorkerStruct, reply: type[Any]) -> Any:
        assert isinstance(request, AppendJobOutput)
        self.chunks += request.chunks
        answer = Answer()
        if self._answers:
            answer.done.set()
        else:
            self.waiting.append(answer)
        return answer

    async def call(self, request: WorkerStruct, reply: type[Any]) -> Any:
        raise AssertionError("the log never waits for a single call")

    def answer(self, error: PeenError | None = None) -> None:
        answer = self.waiting.popleft()
        answer.error = error
        answer.done.set()


def pieces(chunks: Sequence[OutputChunk]) -> list[NumberedPiece]:
    return [piece for chunk in chunks for piece in pieces_of(chunk.first, chunk.index, chunk.data)]


def printed(chunks: Sequence[OutputChunk], stream: int) -> bytes:
    return b"".join(piece.data for piece in pieces(chunks) if piece.stream == stream)


async def taken(*given: tuple[int, bytes]) -> list[OutputChunk]:
    """Everything that a log makes of this."""
    store = Store()
    log = OutputLog(JOB, store)
    for stream, data in given:
        await log.take(stream, data)
    rest = await log.rest()  # may send a chunk before it returns
    return [*store.chunks, *rest]


# A pattern and how often it comes: short to draw and to show, whatever it becomes.
LINE = st.tuples(st.sampled_from([b"x", b"\n", b"ab\n", "\u20ac".encode(), b"\xff\0\r"]), st.integers(0, 30_000))
GIVEN = st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.one_of(LINE, st.binary(max_size=30))), max_size=8)


@settings(deadline=None)
@given(GIVEN)
def test_what_is_stored_is_what_was_printed_in_order_and_within_limits(
    drawn: list[tuple[int, bytes | tuple[bytes, int]]],
) -> None:
    given = [(stream, part if isinstance(part, bytes) else part[0] * part[1]) for stream, part in drawn]

    chunks = trio.run(taken, *given)

    for stream in (STDOUT, STDERR):
        assert printed(chunks, stream) == b"".join(data for number, data in given if number == stream)
    found = pieces(chunks)
    assert [piece.sequence for piece in found] == list(range(1, len(found) + 1))
    for chunk in chunks:
        assert 1 <= streams_of(chunk) <= 3  # which checks that index and data fit
        assert len(chunk.data) <= MAX_CHUNK_BYTES
        assert chunk.count <= MAX_CHUNK_PIECES
    for piece in found:
        assert 0 < len(piece.data) <= MAX_PIECE_BYTES
        assert b"\n" not in piece.data[:-1]
        assert not (piece.goes_on and piece.data.endswith(b"\n"))


async def test_a_long_line_is_never_cut_inside_a_character() -> None:
    text = "a" + "\u20ac" * 10_000

    chunks = await taken((STDOUT, text.encode()))

    assert "".join(piece.data.decode() for piece in pieces(chunks)) == text


async def test_lines_of_both_streams_stay_in_the_order_in_which_they_came() -> None:
    chunks = await taken((STDOUT, b"1\n"), (STDERR, b"2\n"), (STDOUT, b"3\n4"), (STDERR, b"5\n"), (STDOUT, b"6\n"))

    assert [piece.data for piece in pieces(chunks)] == [b"1\n", b"2\n", b"3\n", b"5\n", b"46\n"]


async def test_a_line_without_its_end_is_shown_when_nothing_follows_soon(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    store = Store()
    log = OutputLog(JOB, store)
    nursery.start_soon(log.run)

    await log.take(STDOUT, b"one\nPassword: ")
    await trio.sleep(1.5 * FLUSH_S)
    assert [piece.data for piece in pieces(store.chunks)] == [b"one\n"]
    await trio.sleep(FLUSH_S)

    assert [(piece.data, piece.goes_on) for piece in pieces(store.chunks)][1:] == [(b"Password: ", True)]


async def test_whoever_prints_faster_than_is_stored_has_to_wait(nursery: trio.Nursery) -> None:
    store = Store(answers=False)
    log = OutputLog(JOB, store)
    taken_in: list[int] = []

    async def prints() -> None:
        for number in range(20):
            await log.take(STDOUT, b"x" * (MAX_CHUNK_BYTES - 1) + b"\n")
            taken_in.append(number)

    nursery.start_soon(prints)
    await wait_all_tasks_blocked()
    assert len(store.waiting) == WINDOW + 1
    before = len(taken_in)
    store.answer()
    await wait_all_tasks_blocked()

    assert len(taken_in) == before + 1
    assert len(store.waiting) == WINDOW + 1
    nursery.cancel_scope.cancel()


async def test_a_store_that_refuses_costs_output_and_not_the_command() -> None:
    store = Store(answers=False)
    log = OutputLog(JOB, store)
    for _ in range(3):
        await log.take(STDOUT, b"line\n")
        log.cut()
    store.answer()
    store.answer(StorageFull("/state/peen.db", "no space"))
    store.answer(StaleClaim("a gap"))

    await log.stored()
    await log.take(STDOUT, b"more\n" * 100_000)

    assert "no space" in log.trouble
    assert len(store.chunks) == 3
    assert await log.rest() == []


async def test_a_lost_link_ends_the_taking_in() -> None:
    store = Store(answers=False)
    log = OutputLog(JOB, store)
    await log.take(STDERR, b"line\n")
    log.cut()
    store.answer(LinkLost("gone"))

    with pytest.raises(LinkLost):
        await log.stored()
