from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import trio
from engine_kit import Attempt
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from peen.execution.blocks import ENOUGH_BYTES, INTERVAL_S, MOST_BYTES, Blocks, Streaming, event
from peen.model.fold import Answer, Fold, normal_arguments
from peen.model.stream import CallDelta, CallStarted, CallStopped, Finished, StreamEvent, TextDelta, ThinkingDelta
from peen.wire.records import EventRecord

# --- streams that make sense, and what a client makes of block frames

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("text"), TEXTS),
        st.tuples(st.just("thinking"), TEXTS),
        st.tuples(st.just("start"), st.sampled_from(["", "same", "other"])),
        st.tuples(st.just("delta"), TEXTS),
        st.tuples(st.just("stop"), st.just("")),
    ),
    max_size=24,
)


@st.composite
def streams(draw: st.DrawFn) -> list[StreamEvent]:
    """A stream whose calls may overlap each other and the text; all of them are stopped before its end."""
    events: list[StreamEvent] = []
    started = 0
    still_open: list[int] = []
    for move, text in draw(MOVES):
        match move:
            case "text":
                events.append(TextDelta(text))
            case "thinking":
                events.append(ThinkingDelta(text))
            case "start":
                events.append(CallStarted(started, text, f"tool{started}"))
                still_open.append(started)
                started += 1
            case "delta" if still_open:
                events.append(CallDelta(draw(st.sampled_from(still_open)), text))
            case "stop" if still_open:
                index = draw(st.sampled_from(still_open))
                still_open.remove(index)
                events.append(CallStopped(index))
            case _:
                pass
    return [*events, *map(CallStopped, still_open), Finished("stop", "m")]


@dataclass
class Shown:
    """A block as a client knows it."""

    block: dict[str, Any]
    text: str = ""
    is_open: bool = True


@dataclass
class Client:
    """Folds block frames and insists on their rules."""

    blocks: list[Shown] = field(default_factory=list)

    def hear(self, records: list[EventRecord]) -> None:
        for record in records:
            data = msgspec.json.decode(record.data)
            assert data["type"] == record.type
            match record.type:
                case "content_block_start":
                    assert data["index"] == len(self.blocks)
                    self.blocks.append(Shown(data["content_block"]))
                case "content_block_delta":
                    assert self.blocks[data["index"]].is_open
                    kind = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
                    delta = data["delta"]
                    assert delta.pop("type") == kind[self.blocks[data["index"]].block["type"]]
                    (text,) = delta.values()
                    self.blocks[data["index"]].text += text
                case _:
                    assert self.blocks[data["index"]].is_open
                    self.blocks[data["index"]].is_open = False

    def read(self, kind: str, *, since: int = 0) -> str:
        return "".join(shown.text for shown in self.blocks[since:] if shown.block["type"] == kind)

    def check_answer(self, answer: Answer, *, since: int = 0) -> None:
        """Blocks from number `since` on say exactly what the answer says."""
        assert self.read("text", since=since) == answer.text
        assert self.read("thinking", since=since) == answer.thinking
        calls = [shown for shown in self.blocks[since:] if shown.block["type"] == "tool_use"]
        assert [(call.id, call.name, call.arguments) for call in answer.calls] == [
            (shown.block["id"], shown.block["name"], normal_arguments(shown.text)) for shown in calls
        ]
        assert not any(shown.is_open for shown in self.blocks)


@given(streams(), st.data())
def test_folding_the_frames_of_any_stream_in_any_portions_gives_the_answer(
    stream: list[StreamEvent], data: st.DataObject
) -> None:
    blocks, fold, client = Blocks(), Fold("call_0"), Client()
    for item in stream:
        blocks.feed(fold.add(item))
        if data.draw(st.booleans()):
            client.hear(blocks.take())
            assert blocks.is_empty
    blocks.close()
    client.hear(blocks.take())

    client.check_answer(fold.finish())


@given(streams(), streams(), st.data())
def test_blocks_of_a_broken_attempt_are_stopped_and_the_next_attempt_counts_on(
    broken: list[StreamEvent], whole: list[StreamEvent], data: st.DataObject
) -> None:
    blocks, client = Blocks(), Client()
    first = Fold("call_0")
    for item in broken[: data.draw(st.integers(0, len(broken) - 1))]:
        blocks.feed(first.add(item))
    blocks.close()
    client.hear(blocks.take())
    assert not any(shown.is_open for shown in client.blocks)

    since, second = len(client.blocks), Fold("call_0")
    for item in whole:
        blocks.feed(second.add(item))
    blocks.close()
    client.hear(blocks.take())

    client.check_answer(second.finish(), since=since)


def test_pieces_of_one_block_that_wait_together_become_one_frame() -> None:
    blocks = Blocks()
    for text in ("Hel", "lo", "!"):
        blocks.feed(TextDelta(text))

    assert [msgspec.json.decode(record.data) for record in blocks.take()] == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello!"}},
    ]


def test_a_result_is_a_whole_block_that_names_its_call() -> None:
    blocks = Blocks()
    blocks.feed(TextDelta("x"))

    assert [msgspec.json.decode(record.data) for record in blocks.tool_result("id1", "no", is_error=True)] == [
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_result", "tool_use_id": "id1", "is_error": True},
        },
        {"type": "content_block_delta", "index": 1, "delta": {"type": "json_partial", "text": "no"}},
        {"type": "content_block_stop", "index": 1},
    ]


def test_a_note_stands_between_the_pieces_before_it_and_those_after_it() -> None:
    blocks = Blocks()
    blocks.feed(TextDelta("before"))
    blocks.note(event("provider.retry", {"attempt": 1}))
    blocks.feed(TextDelta("after"))

    assert [record.type for record in blocks.take()] == [
        "content_block_start",
        "content_block_delta",
        "provider.retry",
        "content_block_delta",
    ]


def test_what_waits_is_urgent_when_a_block_began_or_a_kibibyte_has_gathered() -> None:
    blocks = Blocks()
    blocks.feed(TextDelta("first"))
    began = blocks.is_urgent
    blocks.take()
    blocks.feed(TextDelta("é" * (ENOUGH_BYTES // 2 - 1)))
    little = blocks.is_urgent
    blocks.feed(TextDelta("é"))

    assert (began, little, blocks.is_urgent) == (True, False, True)


# --- streaming: when pieces are shown


@dataclass
class Screen:
    """Notes what is shown, and when (seconds since the beginning)."""

    began: float
    shown: list[tuple[float, list[EventRecord]]] = field(default_factory=list)

    async def emit(self, records: list[EventRecord]) -> None:
        self.shown.append((round(trio.current_time() - self.began, 6), records))
        await trio.lowlevel.checkpoint()

    def texts(self) -> list[tuple[float, str]]:
        found = []
        for at, records in self.shown:
            client = Client()
            client.blocks = [Shown({"type": "text"}) for _ in range(9)]
            client.hear([record for record in records if record.type == "content_block_delta"])
            found.append((at, client.read("text")))
        return found


async def play(attempt: Attempt) -> tuple[Screen, Blocks]:
    """Feed a stream at its pace, then end as an answer ends."""
    screen, blocks = Screen(trio.current_time()), Blocks()
    streaming = Streaming(blocks, screen.emit)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(streaming.run)
        await wait_all_tasks_blocked()
        for piece in attempt:
            if isinstance(piece, float):
                await trio.sleep(piece)
            elif not isinstance(piece, Exception):
                blocks.feed(piece)
                streaming.poke()
        nursery.cancel_scope.cancel()
    return screen, blocks


async def test_an_answer_that_comes_all_at_once_shows_nothing_before_its_own_commit(autojump_clock: MockClock) -> None:
    screen, blocks = await play([TextDelta("all"), TextDelta(" at once"), CallStarted(0, "a", "look")])

    assert screen.shown == []
    assert [record.type for record in blocks.take()][:2] == ["content_block_start", "content_block_delta"]


async def test_the_first_piece_of_a_block_is_shown_at_once_and_the_next_ones_together_after_the_interval(
    autojump_clock: MockClock,
) -> None:
    screen, _ = await play([TextDelta("a"), 0.004, TextDelta("b"), 0.01, TextDelta("c"), 0.5, TextDelta("d"), 0.001])

    assert screen.texts() == [(0.0, "a"), (INTERVAL_S, "bc"), (0.514, "d")]


async def test_a_new_block_does_not_wait_for_the_interval(autojump_clock: MockClock) -> None:
    screen, _ = await play([ThinkingDelta("hm"), 0.01, TextDelta("a"), 0.01])

    assert [at for at, _ in screen.shown] == [0.0, 0.01]


async def test_a_kibibyte_does_not_wait_for_the_interval(autojump_clock: MockClock) -> None:
    screen, _ = await play([TextDelta("a"), 0.005, TextDelta("b" * ENOUGH_BYTES), 0.005])

    assert screen.texts() == [(0.0, "a"), (0.005, "b" * ENOUGH_BYTES)]


async def test_pieces_that_are_not_shown_when_the_answer_ends_are_left_to_its_commit(
    autojump_clock: MockClock,
) -> None:
    screen, blocks = await play([TextDelta("a"), 0.01, TextDelta("b")])

    assert screen.texts() == [(0.0, "a")]
    assert [msgspec.json.decode(record.data)["delta"]["text"] for record in blocks.take()] == ["b"]


PACES = st.lists(
    st.one_of(
        st.sampled_from([0.001, 0.007, 0.029, 0.031, 0.2]),
        st.builds(TextDelta, st.sampled_from(["x", "y" * 300, "z" * 1100])),
        st.builds(ThinkingDelta, st.sampled_from(["x", "y" * 300])),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(PACES)
def test_between_two_showings_the_interval_passed_or_a_block_began_or_enough_had_gathered(attempt: Attempt) -> None:
    async def main() -> None:
        screen, blocks = await play([*attempt, 1.0])

        assert blocks.is_empty
        for (before, _), (at, records) in zip(screen.shown, screen.shown[1:], strict=False):
            gathered = sum(len(record.data) for record in records)
            began = any(record.type == "content_block_start" for record in records)
            assert at - before >= INTERVAL_S - 1e-6 or began or gathered >= ENOUGH_BYTES

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_a_model_that_is_faster_than_the_store_is_read_no_further_until_a_piece_is_stored() -> None:
    stored = trio.Event()
    read_on: list[int] = []
    blocks = Blocks()

    async def emit(_pieces: list[EventRecord]) -> None:
        await stored.wait()

    async def read() -> None:
        await streaming.room()
        read_on.append(blocks.waiting_bytes)

    streaming = Streaming(blocks, emit)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(streaming.run)
        blocks.feed(TextDelta("first"))
        streaming.poke()
        await wait_all_tasks_blocked()  # the store has it, and does not answer
        blocks.feed(TextDelta("x" * (MOST_BYTES + 1)))
        streaming.poke()
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        before = [*read_on]
        stored.set()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert (before, read_on) == ([], [0])
