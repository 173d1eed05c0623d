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

from peen.errors import LinkLost, PeenError, StaleClaim, StorageError, StorageFailed, StorageFull
from peen.job.log import DISCARD_S, FLUSH_S, TELL_S, WINDOW, OutputLog
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
from peen.wire.workerstruct import WorkerStruct

JOB = "10b00000-0000-4000-8000-00000000000a"


class Answer:
    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: PeenError | None = None
        self.missing = (0, "")

    def result(self) -> JobOutputAppended:
        if self.error is not None:
            raise self.error
        return JobOutputAppended(unstored_bytes=self.missing[0], output_missing=self.missing[1])


class Store:
    """Takes chunks; answers at once, or when the test says so."""

    def __init__(self, *, answers: bool = True) -> None:
        self.chunks: list[OutputChunk] = []
        self.waiting: deque[Answer] = deque()
        self.told: list[AppendJobOutput] = []
        self.answers = answers

    def call_soon(self, request: WorkerStruct, reply: type[Any]) -> Any:
        assert isinstance(request, AppendJobOutput)
        self.chunks += request.chunks
        answer = Answer()
        if self.answers:
            answer.done.set()
        else:
            self.waiting.append(answer)
        return answer

    async def call(self, request: WorkerStruct, reply: type[Any]) -> Any:
        assert isinstance(request, AppendJobOutput)
        self.told.append(request)
        answer = self.call_soon(request, reply)
        await answer.done.wait()
        return answer.result()

    def answer(self, error: PeenError | None = None, *, missing: tuple[int, str] = (0, "")) -> None:
        answer = self.waiting.popleft()
        answer.error, answer.missing = error, missing
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


@pytest.mark.parametrize("error", [StorageFull("/state/peen.db", "no space"), StorageFailed("/state/peen.db", "torn")])
async def test_a_store_that_refuses_costs_output_and_not_the_command(error: StorageError) -> None:
    store = Store(answers=False)
    log = OutputLog(JOB, store)
    for _ in range(3):
        await log.take(STDOUT, b"line\n")
        log.cut()
    store.answer()
    store.answer(error)
    store.answer(StaleClaim("a gap"))

    await log.stored()
    await log.take(STDOUT, b"more\n" * 100_000)

    assert len(store.chunks) == 3
    assert await log.rest() == []
    assert log.unstored_bytes == len(b"line\n" * 2 + b"more\n" * 100_000)
    if isinstance(error, StorageFull):
        assert "behind number 1 is not stored: the disk of PEEN_STATE_DIR was full" in log.missing
        assert log.failure == ""
    else:
        assert "torn" in log.failure
        assert log.missing == ""


async def test_a_limit_that_the_store_names_ends_the_sending_and_the_rest_is_counted() -> None:
    store = Store(answers=False)
    log = OutputLog(JOB, store)
    for _ in range(3):
        await log.take(STDERR, b"line\n")
        log.cut()
    store.answer()
    store.answer(missing=(2, "behind number 2: a limit"))
    store.answer(missing=(5, "behind number 2: a limit"))

    await log.stored()
    await log.take(STDERR, b"more\n" * 3)

    assert (await log.rest(), len(store.chunks)) == ([], 3)
    assert (log.missing, log.failure, log.unstored_bytes) == ("behind number 2: a limit", "", 2 + 5 + 15)


async def test_what_is_not_stored_is_taken_in_no_faster_than_a_disk_would(autojump_clock: MockClock) -> None:
    store = Store(answers=False)
    log = OutputLog(JOB, store)
    await log.take(STDOUT, b"line\n")
    log.cut()
    store.answer(missing=(5, "a limit"))
    await log.stored()
    began = trio.current_time()

    for _ in range(1000):
        await log.take(STDOUT, bytes(65_536))

    assert trio.current_time() - began == pytest.approx(1000 * DISCARD_S)
    assert log.unstored_bytes == 5 + 1000 * 65_536


async def test_what_is_missing_is_told_while_the_job_runs_and_again_when_more_is(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    store = Store(answers=False)
    log = OutputLog(JOB, store)
    nursery.start_soon(log.run)
    await log.take(STDOUT, b"line\n")
    log.cut()
    store.answer(StorageFull("/state/peen.db", "no space"))
    await log.stored()
    await trio.sleep(TELL_S / 2)
    assert [told.unstored_bytes for told in store.told] == [5]
    store.answer(StorageFull("/state/peen.db", "no space"))  # that could not be stored either

    store.answers = True
    for _ in range(100):
        await log.take(STDOUT, b"more\n" * 20_000)
        await trio.sleep(TELL_S / 25)
    await trio.sleep(2 * TELL_S)

    counts = [told.unstored_bytes for told in store.told]
    assert len(counts) in range(5, 9)  # for four seconds of printing
    assert counts == sorted(set(counts))
    assert counts[-1] == 5 + 100 * 100_000
    assert {told.output_missing for told in store.told} == {log.missing}
    assert store.chunks[1:] == []
    nursery.cancel_scope.cancel()


async def test_a_lost_link_ends_the_taking_in() -> None:
    store = Store(answers=False)
    log = OutputLog(JOB, store)
    await log.take(STDERR, b"line\n")
    log.cut()
    store.answer(LinkLost("gone"))

    with pytest.raises(LinkLost):
        await log.stored()
