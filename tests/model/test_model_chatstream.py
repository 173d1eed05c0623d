from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from peen.errors import ModelError
from peen.model.chatstream import ChatTranslator
from peen.model.chatwire import decode_chunk
from peen.model.fold import Answer, Fold
from peen.model.stream import (
    CallDelta,
    CallStarted,
    CallStopped,
    Finished,
    ReasoningKept,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    UsageReported,
)
from peen.wire.records import Usage


def delta(**fields: Any) -> dict[str, Any]:
    return {"model": "m-1", "choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def end(reason: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def call(
    name: str | None = None, arguments: Any = None, *, index: int | None = None, call_id: str | None = None
) -> Any:
    piece: dict[str, Any] = {"function": {"name": name, "arguments": arguments}}
    if index is not None:
        piece["index"] = index
    if call_id is not None:
        piece["id"] = call_id
    return piece


def translate(*chunks: dict[str, Any]) -> list[StreamEvent]:
    translator = ChatTranslator("m")
    events: list[StreamEvent] = []
    for chunk in chunks:
        translator.take(decode_chunk(msgspec.json.encode(chunk)), events)
    return events


def folded(*chunks: dict[str, Any]) -> Answer:
    fold = Fold("made")
    for event in translate(*chunks):
        fold.add(event)
    return fold.finish()


def calls_of(*pieces: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Of a stream with these call pieces: id, name and arguments of its calls."""
    answer = folded(*(delta(tool_calls=[piece]) for piece in pieces), end("tool_calls"))
    return [(call.id, call.name, bytes(call.arguments).decode()) for call in answer.calls]


def test_an_answer_comes_as_thinking_text_calls_usage_and_end() -> None:
    events = translate(
        delta(role="assistant", content="", refusal=None),
        delta(reasoning_content="hm"),
        delta(content="I "),
        delta(content="read."),
        delta(tool_calls=[call("readFile", "", index=0, call_id="c1")]),
        delta(tool_calls=[call(arguments='{"path":', index=0)]),
        delta(tool_calls=[call(arguments='"a"}', index=0)]),
        end("tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
    )

    assert events == [
        ThinkingDelta("hm"),
        TextDelta("I "),
        TextDelta("read."),
        CallStarted(0, "c1", "readFile"),
        CallDelta(0, '{"path":'),
        CallDelta(0, '"a"}'),
        CallStopped(0),
        ReasoningKept(Raw(b'{"type":"chat_reasoning","field":"reasoning_content","value":"hm"}')),
        Finished("tool_calls", "m-1"),
        UsageReported(Usage(prompt=7, completion=3)),
    ]


@pytest.mark.parametrize(
    ("report", "usage"),
    [
        ({"prompt_tokens": 9}, Usage(prompt=9)),
        ({"completion_tokens": 0}, Usage(completion=0)),
        ({}, Usage()),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            Usage(prompt=9, completion=5, cache_read=4, reasoning=2),
        ),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 3}, Usage(prompt=9, cache_read=3)),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 8}},
            Usage(prompt=9, cache_read=0, cache_write=8),
        ),
        ({"prompt_tokens_details": None, "completion_tokens_details": None}, Usage()),
    ],
)
def test_usage_that_is_not_reported_stays_unknown(report: dict[str, Any], usage: Usage) -> None:
    assert folded(delta(content="x"), end("stop"), {"choices": [], "usage": report}).usage == usage


@pytest.mark.parametrize(
    ("reason", "expected", "truncated"),
    [
        ("stop", "stop", False),
        ("eos", "eos", False),
        ("content_filter", "content_filter", False),
        ("length", "length", True),
        ("max_tokens", "length", True),
        ("model_length", "length", True),
    ],
)
def test_every_word_for_the_output_limit_is_length_and_others_stay(reason: str, expected: str, truncated: bool) -> None:
    answer = folded(delta(content="x"), end(reason))

    assert (answer.finish_reason, answer.truncated) == (expected, truncated)


def test_a_call_that_the_limit_or_a_filter_broke_off_never_runs() -> None:
    cut = delta(tool_calls=[call("runCommand", '{"command":"rm', index=0, call_id="a")])

    assert folded(cut, end("length")).calls == ()
    with pytest.raises(ModelError, match="inside the call of 'runCommand'"):
        folded(cut, end("content_filter"))
    with pytest.raises(ModelError, match="without an end signal"):
        folded(cut)


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        # parallel calls, their pieces mixed
        (
            [
                call("a", "", index=0, call_id="1"), call("b", "", index=1, call_id="2"),
                call(arguments='{"x"', index=0), call(arguments='{"y"', index=1),
                call(arguments=":1}", index=0), call(arguments=":2}", index=1),
            ],
            [("1", "a", '{"x":1}'), ("2", "b", '{"y":2}')],
        ),
        # every call has the number 0, whole calls
        (
            [call("a", '{"x":1}', index=0, call_id="1"), call("b", '{"y":2}', index=0, call_id="2")],
            [("1", "a", '{"x":1}'), ("2", "b", '{"y":2}')],
        ),
        # no numbers
        (
            [call("a", '{"x"', call_id="1"), call(arguments=":1}"), call("b", "{}", call_id="2")],
            [("1", "a", '{"x":1}'), ("2", "b", "{}")],
        ),
        # neither numbers nor ids
        ([call("a", '{"x":1}'), call("b", '{"y":2}')], [("made_0", "a", '{"x":1}'), ("made_1", "b", '{"y":2}')]),
        # one id for all calls
        (
            [call("a", "{}", index=0, call_id="call"), call("b", "{}", index=1, call_id="call")],
            [("call", "a", "{}"), ("made_1", "b", "{}")],
        ),
        # one id and one number for all calls
        (
            [call("a", "{}", index=0, call_id="call"), call("a", '{"y":2}', index=0, call_id="call")],
            [("call", "a", "{}"), ("made_1", "a", '{"y":2}')],
        ),
        # id and name repeated with every piece
        (
            [call("a", '{"x"', index=0, call_id="1"), call("a", ":1}", index=0, call_id="1"),
             call("a", "", index=0, call_id="1")],
            [("1", "a", '{"x":1}')],
        ),
        # arguments as an object, and none at all
        ([call("a", {"x": 1}, index=0, call_id="1")], [("1", "a", '{"x":1}')]),
        ([call("a", index=0, call_id="1")], [("1", "a", "{}")]),
    ],
    ids=["mixed", "all 0", "no numbers", "nothing", "one id", "one id and number", "repeated", "object", "empty"],
)  # fmt: skip
def test_calls_are_told_apart_however_a_server_names_them(
    pieces: list[dict[str, Any]], calls: list[tuple[str, str, str]]
) -> None:
    assert calls_of(*pieces) == calls


def test_a_piece_of_a_call_that_never_began_makes_no_sense() -> None:
    with pytest.raises(ModelError, match="not started") as caught:
        translate(delta(tool_calls=[call(arguments="{}", index=0)]))

    assert (caught.value.kind, caught.value.retryable) == ("bad_stream", True)


def test_other_choices_empty_ones_and_repeated_ends_are_passed_over() -> None:
    other = {"index": 1, "delta": {"content": "another"}, "finish_reason": "stop"}
    answer = folded(
        {"choices": []},
        {"choices": None},
        {"object": "ping"},
        delta(content="one"),
        {"choices": [other]},
        end("stop"),
        end("stop"),
        delta(content=""),
    )

    assert answer.text == "one"


def test_content_in_parts_a_refusal_and_reasoning_under_both_names_are_read_once() -> None:
    answer = folded(
        delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "deep"}]}]),
        delta(reasoning="er", reasoning_content="er"),
        delta(content=[{"type": "text", "text": "No"}]),
        delta(refusal=", thanks."),
        end("stop"),
    )

    assert (answer.thinking, answer.text) == ("deeper", "No, thanks.")


def test_an_answer_in_one_piece_is_read_like_a_stream() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}}],
    }

    answer = folded({
        "model": "m-2", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    })  # fmt: skip

    assert [(call.id, call.name) for call in answer.calls] == [("1", "a")]
    assert (answer.response_model, answer.usage) == ("m-2", Usage(prompt=1, completion=2))


@pytest.mark.parametrize("chunk", [{"error": {"message": "busy", "type": "overloaded_error"}}, end("error")])
def test_an_error_in_the_place_of_a_chunk_ends_the_attempt(chunk: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as caught:
        translate(delta(content="I"), chunk)

    assert (caught.value.kind, caught.value.retryable) == ("server_error", True)
