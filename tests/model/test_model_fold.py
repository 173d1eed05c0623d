from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.errors import ModelError
from peen.model.fold import MAX_ANSWER_CHARACTERS, Answer, Fold, normal_arguments
from peen.model.stream import (
    CallDelta,
    CallStarted,
    CallStopped,
    Finished,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    UsageReported,
)
from peen.wire.records import Usage

STOP = Finished(reason="stop", response_model="m-1")
TOOL_CALLS = Finished(reason="tool_calls", response_model="m-1")
JSON_OBJECTS = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20), max_size=4)


def fold(*events: StreamEvent, prefix: str = "call_0_0", taken: frozenset[str] = frozenset()) -> Answer:
    collected = Fold(prefix, taken=taken)
    for event in events:
        collected.add(event)
    return collected.finish()


def call(index: int, call_id: str, arguments: str = "{}", *, name: str = "readFile") -> list[StreamEvent]:
    return [CallStarted(index, call_id, name), CallDelta(index, arguments), CallStopped(index)]


@st.composite
def pieces_of(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(
    data=st.data(), text=st.text(max_size=40), thinking=st.text(max_size=40), objects=st.lists(JSON_OBJECTS, max_size=3)
)
def test_any_chunking_of_an_answer_gives_the_same_answer(
    data: st.DataObject, text: str, thinking: str, objects: list[dict[str, object]]
) -> None:
    arguments = [json.dumps(value) for value in objects]
    events: list[StreamEvent] = [ThinkingDelta(piece) for piece in data.draw(pieces_of(thinking))]
    events += [TextDelta(piece) for piece in data.draw(pieces_of(text))]
    streams: list[list[StreamEvent]] = [
        [
            CallStarted(index, f"id{index}", "runCommand"),
            *(CallDelta(index, piece) for piece in data.draw(pieces_of(value))),
            CallStopped(index),
        ]
        for index, value in enumerate(arguments)
    ]
    # Calls start in order; after that their pieces may interleave as they like.
    events += [stream.pop(0) for stream in streams]
    while any(streams):
        events.append(data.draw(st.sampled_from([stream for stream in streams if stream])).pop(0))

    answer = fold(*events, TOOL_CALLS)

    assert (answer.text, answer.thinking) == (text, thinking)
    assert [(record.id, msgspec.json.decode(record.arguments)) for record in answer.calls] == [
        (f"id{index}", value) for index, value in enumerate(objects)
    ]


def test_a_stream_without_an_end_signal_is_cut_and_may_be_retried() -> None:
    with pytest.raises(ModelError) as caught:
        fold(TextDelta("Almost do"))

    assert (caught.value.kind, caught.value.retryable) == ("stream_cut", True)


def test_a_call_that_the_provider_left_open_is_no_finished_answer() -> None:
    with pytest.raises(ModelError) as caught:
        fold(CallStarted(0, "a", "runCommand"), CallDelta(0, '{"command": "rm -r /tmp/x"}'), TOOL_CALLS)

    assert (caught.value.kind, caught.value.retryable) == ("stream_cut", True)
    assert "runCommand" in str(caught.value)


def test_an_answer_cut_by_the_output_limit_keeps_its_text_and_loses_its_calls() -> None:
    answer = fold(
        TextDelta("I will"), *call(0, "a"), CallStarted(1, "b", "runCommand"), CallDelta(1, '{"comm'),
        Finished(reason="length", response_model="m-1"),
    )  # fmt: skip

    assert (answer.text, answer.calls, answer.truncated, answer.finish_reason) == ("I will", (), True, "length")


def test_an_empty_answer_is_a_legal_one() -> None:
    answer = fold(STOP)

    assert (answer.text, answer.calls, answer.truncated, answer.response_model) == ("", (), False, "m-1")


@pytest.mark.parametrize("text", ["", "   ", "null", "\n{}\n", "{}"])
def test_no_arguments_are_an_empty_object(text: str) -> None:
    assert bytes(normal_arguments(text)) == b"{}"


@pytest.mark.parametrize("text", ['{"path": "a", }', '{"path": "a"', "path=a", "NaN", "[" * 5000, r'{"a": "\ud800"}'])
def test_arguments_that_are_no_json_are_kept_as_a_json_string(text: str) -> None:
    decoded = msgspec.json.decode(normal_arguments(text))

    assert decoded == text.encode("utf-8", "replace").decode()


@pytest.mark.parametrize("text", ['["a"]', "3", '"{}"', "true"])
def test_json_that_is_no_object_is_left_for_the_tool_to_refuse(text: str) -> None:
    assert bytes(normal_arguments(text)) == text.encode()


def test_an_object_is_kept_as_it_was_written_but_on_one_line() -> None:
    assert bytes(normal_arguments('{"a" : 1.50,  "b":"x\\ny"}')) == b'{"a" : 1.50,  "b":"x\\ny"}'
    assert bytes(normal_arguments('{\n  "a": 1.50,\r\n  "b": "x\\n y"\n}')) == b'{"a":1.50,"b":"x\\n y"}'


def test_calls_without_an_id_or_with_one_that_is_taken_get_their_own() -> None:
    answer = fold(
        *[event for index, call_id in enumerate(["", "x", "x", "old"]) for event in call(index, call_id)],
        TOOL_CALLS,
        prefix="call_2_5",
        taken=frozenset({"old", "call_2_5_3"}),
    )

    assert [record.id for record in answer.calls] == ["call_2_5_0", "x", "call_2_5_2", "call_2_5_3_2"]


@given(st.lists(st.sampled_from(["", "same", "call_1_0", "call_1_1", "call_1_1_2"]), max_size=6))
def test_whatever_ids_a_provider_sends_they_end_up_unique(ids: list[str]) -> None:
    answer = fold(
        *[event for index, value in enumerate(ids) for event in call(index, value)], TOOL_CALLS, prefix="call_1"
    )

    unique = {record.id for record in answer.calls}
    assert len(unique) == len(ids)
    assert "" not in unique


def test_watchers_are_shown_the_id_that_is_stored() -> None:
    collected = Fold("call_0_1")

    shown = collected.add(CallStarted(0, "", "readFile"))

    assert shown == CallStarted(0, "call_0_1_0", "readFile")
    collected.add(CallStopped(0))
    collected.add(TOOL_CALLS)
    assert [record.id for record in collected.finish().calls] == ["call_0_1_0"]


def test_later_usage_completes_the_earlier_one_even_after_the_end() -> None:
    answer = fold(
        UsageReported(Usage(prompt=10, cache_read=4)),
        UsageReported(Usage(completion=1)),
        STOP,
        UsageReported(Usage(completion=7)),
    )

    assert answer.usage == Usage(prompt=10, completion=7, cache_read=4)


def test_a_zero_takes_nothing_back_that_was_reported() -> None:
    answer = fold(
        UsageReported(Usage(prompt=0, reasoning=0)),
        UsageReported(Usage(prompt=50, completion=5)),
        STOP,
        UsageReported(Usage(prompt=0, completion=0, cache_read=0)),
    )

    assert answer.usage == Usage(prompt=50, completion=5, reasoning=0, cache_read=0)


@pytest.mark.parametrize(
    "events",
    [
        [CallDelta(0, "{}")],
        [CallStopped(0)],
        [*call(0, "a"), CallDelta(0, "{}")],
        [*call(0, "a"), CallStarted(0, "b", "readFile")],
        [STOP, TextDelta("more")],
        [STOP, STOP],
    ],
)
def test_events_in_an_impossible_order_are_refused(events: list[StreamEvent]) -> None:
    with pytest.raises(ModelError) as caught:
        fold(*events)

    assert (caught.value.kind, caught.value.retryable) == ("bad_stream", True)


@pytest.mark.parametrize(
    "events",
    [[TextDelta, TextDelta], [TextDelta, ThinkingDelta], [TextDelta, lambda text: CallDelta(0, text)]],
    ids=["text", "thinking", "a call"],
)
def test_an_answer_that_never_ends_is_not_kept_in_memory(events: list[Callable[[str], StreamEvent]]) -> None:
    half = "x" * (MAX_ANSWER_CHARACTERS // 2)
    collected = Fold("call_0_0")
    collected.add(CallStarted(0, "c", "readFile"))
    for make in events:
        collected.add(make(half))

    with pytest.raises(ModelError, match="more than") as refused:
        collected.add(TextDelta("x"))
    assert (refused.value.kind, refused.value.retryable) == ("answer_too_large", False)
