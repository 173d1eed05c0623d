"""Both ends of a link, joined in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from peen.errors import (
    BadRequest,
    LinkLost,
    PeenError,
    SessionBusy,
    StaleClaim,
    StorageFull,
    ValidationFailed,
    WorkerFailed,
)
from peen.wire.turncalls import CommitSteps, Committed, EmitEvents, Emitted, HistoryPage, HistoryRows
from peen.wire.worker import Beat, Call, HelloAck, Result, RunTurn, ShutDown, Shutdown, TurnEnded, WireError, encode
from peen.wire.workerstruct import WorkerStruct
from peen.worker.framing import HEADER, FrameStream
from peen.worker.link import MAX_OUTSTANDING, MAX_PARKED, ControllerLink, Reply, WorkerLink
from peen.worker.peer import error_of, wire_error

ACK = HelloAck(session_id="s", workspace="/w", agent_space="control")
COMMIT = CommitSteps(execution_id="e", holder="h")


@dataclass
class Pair:
    """A controller's and a worker's end. Calls wait in `calls` until a test answers them."""

    controller: WorkerLink
    worker: ControllerLink
    calls: list[tuple[str, bytes, Reply]] = field(default_factory=list)
    commands: list[WorkerStruct] = field(default_factory=list)
    release: trio.Event = field(default_factory=trio.Event)

    def answer(self, index: int, outcome: bytes | WireError) -> None:
        self.calls[index][2](outcome)


@asynccontextmanager
async def joined() -> AsyncIterator[Pair]:
    ours, theirs = memory_stream_pair()
    made: list[Pair] = []

    def handle(method: str, payload: Raw, reply: Reply) -> None:
        if method == "events.emit":
            raise StaleClaim("another holder")
        made[0].calls.append((method, bytes(payload), reply))

    async def obey(method: str, request: WorkerStruct) -> WorkerStruct:
        made[0].commands.append(request)
        match request:
            case RunTurn(message="fail"):
                raise SessionBusy("a turn is running")
            case RunTurn(message="wait"):
                await made[0].release.wait()
        return TurnEnded(state="completed") if method == "runTurn" else ShutDown()

    pair = Pair(WorkerLink(FrameStream(ours), handle), ControllerLink(FrameStream(theirs), ACK, obey))
    made.append(pair)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.controller.run)
        nursery.start_soon(pair.worker.run, nursery)
        yield pair
        nursery.cancel_scope.cancel()


def turn(message: str) -> RunTurn:
    return RunTurn(turn_id="t", request_id="r", message=message)


def page(number: int) -> HistoryPage:
    return HistoryPage(after_sequence=number, up_to_sequence=number)


def committed(number: int) -> bytes:
    return encode(Committed(message_sequence=number))


async def test_calls_are_handled_in_order_and_answered_in_any() -> None:
    async with joined() as pair:
        answers = [pair.worker.call_soon(COMMIT, Committed) for _ in range(3)]
        await wait_all_tasks_blocked()
        assert [method for method, _, _ in pair.calls] == ["steps.commit"] * 3

        for index in (2, 0, 1):
            pair.answer(index, committed(index))

        assert [(await answer).message_sequence for answer in answers] == [0, 1, 2]


async def test_commands_are_answered_in_any_order() -> None:
    async with joined() as pair:
        ended: list[str] = []

        async def run(message: str) -> None:
            await pair.controller.command(turn(message), TurnEnded)
            ended.append(message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "wait")
            await wait_all_tasks_blocked()
            await run("go")
            pair.release.set()

        assert ended == ["go", "wait"]


async def test_errors_cross_in_both_directions_as_their_classes() -> None:
    async with joined() as pair:
        with pytest.raises(SessionBusy, match="a turn is running"):
            await pair.controller.command(turn("fail"))

        with pytest.raises(StaleClaim, match="another holder"):
            await pair.worker.call(EmitEvents(execution_id="e", holder="h", events=[]), Emitted)


@pytest.mark.parametrize("error", [
    StaleClaim("a"), ValidationFailed("b"), SessionBusy("c"), BadRequest("d"), WorkerFailed("e"), LinkLost("f"),
])  # fmt: skip
def test_an_error_comes_back_as_it_was(error: PeenError) -> None:
    back = error_of(wire_error(error))

    assert type(back) is type(error)
    assert str(back) == str(error)
    assert getattr(back, "message", str(error)) == str(error)


def test_errors_of_the_store_keep_their_text_and_unknown_ones_too() -> None:
    full = error_of(wire_error(StorageFull("peen.db", "no space")))
    unknown = error_of(WireError(code="FROM_THE_FUTURE", message="something"))

    assert isinstance(full, StorageFull)
    assert full.problem == str(full) == "peen.db: no space"
    assert type(unknown) is PeenError
    assert str(unknown) == "something"


async def test_at_most_64_calls_are_under_way_and_the_rest_keeps_its_order() -> None:
    async with joined() as pair:
        answers = [pair.worker.call_soon(page(number), HistoryRows) for number in range(MAX_OUTSTANDING + 5)]
        await wait_all_tasks_blocked()
        assert len(pair.calls) == MAX_OUTSTANDING

        for index in range(len(answers)):
            pair.answer(index, encode(HistoryRows(history=[])))
            await wait_all_tasks_blocked()

        assert [payload for _, payload, _ in pair.calls] == [encode(page(n)) for n in range(len(answers))]
        for answer in answers:
            assert (await answer).history == []


async def test_who_never_waits_for_answers_is_told_so() -> None:
    async with joined() as pair:
        for _ in range(MAX_OUTSTANDING + MAX_PARKED):
            pair.worker.call_soon(COMMIT)

        with pytest.raises(RuntimeError, match="wait for answers"):
            pair.worker.call_soon(COMMIT)


async def test_a_writing_call_cannot_be_cancelled_and_a_reading_one_can() -> None:
    async with joined() as pair:
        outcomes: list[str] = []

        async def write() -> None:
            await pair.worker.call(COMMIT, Committed)
            outcomes.append("written")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(pair.worker.call, page(1))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await wait_all_tasks_blocked()
                left = len(nursery.child_tasks)
                pair.answer([method for method, _, _ in pair.calls].index("steps.commit"), committed(1))

        assert left == 1
        assert outcomes == ["written"]


@pytest.mark.parametrize("breaking", ["controller", "worker"])
async def test_everything_in_flight_is_lost_with_the_link(breaking: str) -> None:
    async with joined() as pair:
        lost: list[str] = []

        async def expect_loss(act: Callable[[], object]) -> None:
            try:
                await act()  # type: ignore[misc]
            except LinkLost as error:
                lost.append(str(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_loss, lambda: pair.controller.command(turn("wait")))
            nursery.start_soon(expect_loss, lambda: pair.worker.call(COMMIT))
            nursery.start_soon(expect_loss, lambda: pair.worker.call(page(1)))
            await wait_all_tasks_blocked()
            (pair.controller if breaking == "controller" else pair.worker).lose("pulled")

        assert len(lost) == 3
        assert "pulled" in lost
        with pytest.raises(LinkLost):
            pair.worker.call_soon(COMMIT)
        with pytest.raises(LinkLost):
            await pair.controller.command(Shutdown())
        await wait_all_tasks_blocked()
        assert pair.controller.closed.is_set()
        assert pair.worker.closed.is_set()


async def test_an_answer_after_the_loss_is_dropped() -> None:
    async with joined() as pair:
        pair.worker.call_soon(COMMIT)
        await wait_all_tasks_blocked()
        pair.controller.lose("pulled")

        pair.answer(0, committed(1))  # the commit happened; nobody is left to tell

        assert pair.controller.reason == "pulled"


async def test_a_call_is_answered_only_once() -> None:
    async with joined() as pair:
        pair.worker.call_soon(COMMIT)
        await wait_all_tasks_blocked()
        pair.answer(0, committed(1))

        with pytest.raises(KeyError):
            pair.answer(0, committed(1))


async def test_a_command_that_is_given_up_drops_its_late_answer() -> None:
    async with joined() as pair:
        with trio.CancelScope() as giving_up:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pair.controller.command, turn("wait"))
                await wait_all_tasks_blocked()
                giving_up.cancel()
        pair.release.set()

        assert await pair.controller.command(turn("go"), TurnEnded) == TurnEnded(state="completed")
        with trio.fail_after(1):
            await pair.controller.quiet()


async def test_quiet_waits_for_the_last_answer() -> None:
    async with joined() as pair:
        order: list[str] = []

        async def run() -> None:
            await pair.controller.command(turn("wait"))
            order.append("answered")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await wait_all_tasks_blocked()
            nursery.start_soon(pair.controller.quiet)
            await wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 2
            pair.release.set()

        assert order == ["answered"]


async def test_an_answer_too_long_for_a_frame_becomes_an_error() -> None:
    async with joined() as pair:
        answer = pair.worker.call_soon(page(1), HistoryRows)
        await wait_all_tasks_blocked()
        pair.answer(0, b'"' + bytes(32 * 1024 * 1024).replace(b"\0", b"x") + b'"')

        with pytest.raises(PeenError, match="over the limit"):
            await answer


async def test_a_worker_beats_while_it_lives(autojump_clock: MockClock) -> None:
    async with joined() as pair:
        began = trio.current_time()
        await trio.sleep(12)

        assert pair.controller.last_beat - began == 10
        assert not pair.controller.closed.is_set()


# --- peers that do not keep the protocol ----------------------------------------------------------------------------


def call(number: int) -> bytes:
    return encode(Call(id=number, method="steps.commit", payload=Raw(encode(COMMIT))))


def framed(payload: bytes) -> bytes:
    return HEADER.pack(len(payload)) + payload


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (framed(b"{}"), "not part of the protocol"),
        (framed(b'{"kind":"beat","extra":1}'), "not part of the protocol"),
        (framed(b"\xff"), "not part of the protocol"),
        (framed(b'{"kind":"hello","protocol":1,"sessionId":"s","generationId":"g","credential":"c","agentSpace":"a",'
                b'"pid":1}'), "said hello twice"),
        (framed(call(2)) + framed(call(2)), "numbered a call 2 after 2"),
        (b"".join(framed(call(number)) for number in range(1, MAX_OUTSTANDING + 2)), "more than 64 calls"),
        (HEADER.pack(32 * 1024 * 1024 + 1), "the limit is 33554432 bytes"),
        (framed(call(1))[:-1], "in the middle of a frame"),
        (framed(encode(Beat())), "the peer closed the connection"),
    ],
)  # fmt: skip
async def test_a_worker_that_breaks_the_protocol_loses_its_link(data: bytes, reason: str) -> None:
    ours, theirs = memory_stream_pair()
    link = WorkerLink(FrameStream(ours), lambda *_: None)
    await theirs.send_all(data)
    await theirs.send_eof()

    await link.run()

    assert link.closed.is_set()
    assert reason in link.reason


async def test_a_reply_of_the_wrong_shape_loses_the_link_and_leaves_nobody_waiting() -> None:
    async with joined() as pair:
        answer = pair.worker.call_soon(COMMIT, Committed)
        await wait_all_tasks_blocked()
        pair.answer(0, b'{"wrong":1}')

        with pytest.raises(LinkLost, match="not part of the protocol"):
            await answer


async def test_frames_that_came_with_the_greeting_are_not_lost() -> None:
    ours, theirs = memory_stream_pair()
    frames = FrameStream(theirs)
    frames.unread([encode(Result(id=1, error=WireError(code="STALE_CLAIM", message="late")))])

    async def refuse(method: str, request: WorkerStruct) -> WorkerStruct:
        raise AssertionError(method)

    link = ControllerLink(frames, ACK, refuse)
    answer = link.call_soon(COMMIT)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, nursery)
        with pytest.raises(StaleClaim, match="late"):
            await answer
        nursery.cancel_scope.cancel()
    await ours.aclose()
