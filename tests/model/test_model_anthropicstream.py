"""Streams of the Messages API as they are in the wild, each as it is, byte by byte, and with CR LF."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
import trio
from anthropic_kit import (
    STOP,
    Broken,
    FakeReply,
    FakeTransport,
    Piece,
    Silence,
    answer,
    ask,
    begun,
    block,
    ended,
    failure,
    sse,
    text,
    thinking,
    tool_use,
    upstream,
    whole,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from peen.errors import ModelError
from peen.model.fold import Answer, Fold
from peen.model.reader import USAGE_S
from peen.wire.records import Usage

PING = {"type": "ping"}
CALL = tool_use(1, '{"path":', '"a"}')
EMOJI = '{"text":"\U0001f600 caf\u00e9"}'
# One character, cut between its halves as a server does that counts in UTF-16.
PIECE = b'data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"%b"}}\n\n'
HALVES = [PIECE % piece for piece in (rb"\"\ud83d", rb"\ude00\"")]
NAME_HALF = (
    rb'data: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f\ud83d"}}'
    b"\n\n"
)
TEXT_HALF = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ud83d"}}\n\n'


def opened(kind: str, index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def stopped(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def split(data: bytes, way: str) -> list[bytes]:
    match way:
        case "bytes":
            return [data[at : at + 1] for at in range(len(data))]
        case "crlf":
            return [data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")]
        case _:
            return [data]


def said(found: Answer) -> tuple[str, str, list[tuple[str, str, str]], str]:
    calls = [(call.id, call.name, bytes(call.arguments).decode()) for call in found.calls]
    return found.text, found.thinking, calls, found.finish_reason


ONE = [("toolu_1", "readFile", '{"path":"a"}')]
NO_ARGUMENTS = [("toolu_1", "readFile", "{}")]
GOOD: dict[str, tuple[bytes, tuple[Any, ...]]] = {
    "text": (whole(*text(0, "Hel", "lo")), ("Hello", "", [], "end_turn")),
    "ping anywhere": (
        sse(
            PING,
            begun(),
            PING,
            *[one for event in text(0, "a", "b") for one in (event, PING)],
            ended(),
            PING,
            STOP,
            PING,
        ),
        ("ab", "", [], "end_turn"),
    ),
    "a call": (sse(begun(), *text(0, "I look."), *CALL, ended("tool_use"), STOP), ("I look.", "", ONE, "tool_use")),
    "thinking": (whole(*thinking(0, "h", "m"), *text(1, "so")), ("so", "hm", [], "end_turn")),
    "thinking without a signature": (whole(*thinking(0, "hm", signature=())), ("", "hm", [], "end_turn")),
    "holes in the indexes": (
        sse(begun(), *text(3, "a"), *tool_use(7, '{"path":"a"}'), ended("tool_use"), STOP),
        ("a", "", ONE, "tool_use"),
    ),
    "every block has index 0": (
        sse(
            begun(),
            *text(0, "a"),
            *tool_use(0, '{"path":"a"}'),
            *tool_use(0, "{}", call_id="t2"),
            ended("tool_use"),
            STOP,
        ),
        ("a", "", [*ONE, ("t2", "readFile", "{}")], "tool_use"),
    ),
    "whole input in the start": (
        sse(begun(), *tool_use(0, given={"path": "a"}), ended("tool_use"), STOP),
        ("", "", ONE, "tool_use"),
    ),
    "input in the start as text": (
        sse(begun(), *tool_use(0, given='{"path":"a"}'), ended("tool_use"), STOP),
        ("", "", ONE, "tool_use"),
    ),
    "input in the start and in pieces": (
        sse(begun(), *tool_use(0, '{"path":"a"}', given={"path": "a"}), ended("tool_use"), STOP),
        ("", "", ONE, "tool_use"),
    ),
    "no input": (sse(begun(), *tool_use(0), ended("tool_use"), STOP), ("", "", NO_ARGUMENTS, "tool_use")),
    "empty pieces of input": (
        sse(begun(), *tool_use(0, "", ""), ended("tool_use"), STOP),
        ("", "", NO_ARGUMENTS, "tool_use"),
    ),
    "input cut at every character": (
        sse(begun(), *tool_use(0, *EMOJI), ended("tool_use"), STOP),
        ("", "", [("toolu_1", "readFile", EMOJI)], "tool_use"),
    ),
    "input cut inside an escape": (
        sse(begun(), *tool_use(0, '"\\u', "d83d\\", "ude", '00\\n"'), ended("tool_use"), STOP),
        ("", "", [("toolu_1", "readFile", '"\\ud83d\\ude00\\n"')], "tool_use"),
    ),
    "input cut inside a surrogate pair": (
        sse(begun(), opened("tool_use", 1, id="t", name="f", input={}), *HALVES, stopped(1), ended("tool_use"), STOP),
        ("", "", [("t", "f", '"\U0001f600"')], "tool_use"),
    ),
    "half a surrogate pair": (
        sse(begun(), opened("text", 0, text=""), TEXT_HALF, stopped(0), ended(), STOP),
        ("\ufffd", "", [], "end_turn"),
    ),
    "half a surrogate pair in a name": (
        sse(begun(), NAME_HALF, stopped(0), ended("tool_use"), STOP),
        ("", "", [("t", "f\ufffd", "{}")], "tool_use"),
    ),
    "no index": (
        sse(begun(), *[{**event, "index": None} for event in text(0, "a")], ended(), STOP),
        ("a", "", [], "end_turn"),
    ),
    "no message_stop": (sse(begun(), *text(0, "a"), ended()), ("a", "", [], "end_turn")),
    "no stop_reason": (sse(begun(), *text(0, "a"), STOP), ("a", "", [], "end_turn")),
    "no stop_reason behind a call": (sse(begun(), *CALL, STOP), ("", "", ONE, "tool_use")),
    "no message_start": (sse(*text(0, "a"), ended(), STOP), ("a", "", [], "end_turn")),
    "no start of a block": (sse(begun(), *text(0, "a")[1:], ended(), STOP), ("a", "", [], "end_turn")),
    "text in the start": (
        whole(*block(0, "text", {"type": "text_delta", "text": "b"}, text="a")),
        ("ab", "", [], "end_turn"),
    ),
    "blocks out of step": (
        sse(begun(), opened("text", 0, text=""), *CALL, *text(0, "late")[1:], ended("tool_use"), STOP),
        ("late", "", ONE, "tool_use"),
    ),
    "a block that ends behind the reason": (
        sse(begun(), *CALL[:-1], ended("tool_use"), CALL[-1], STOP),
        ("", "", ONE, "tool_use"),
    ),
    "unknown events, blocks and deltas": (
        whole(
            {"type": "new_thing", "index": 0},
            *block(0, "server_tool_use", {"type": "input_json_delta", "partial_json": "{}"}, id="s", name="web"),
            *block(1, "web_search_tool_result", content=[{"type": "x"}]),
            *block(2, "text", {"type": "citations_delta", "citation": {}}, {"type": "text_delta", "text": "a"}),
        ),
        ("a", "", [], "end_turn"),
    ),
    "an empty answer": (whole(), ("", "", [], "end_turn")),
    "empty blocks": (whole(*text(0), *text(1, "")), ("", "", [], "end_turn")),
    "max_tokens inside a call": (sse(begun(), *CALL[:-1], ended("max_tokens"), STOP), ("", "", [], "length")),
    "max_tokens behind a call": (sse(begun(), *CALL, ended("max_tokens"), STOP), ("", "", [], "length")),
    "the window is full": (
        sse(begun(), *text(0, "a"), ended("model_context_window_exceeded"), STOP),
        ("a", "", [], "length"),
    ),
    "refusal": (sse(begun(), *text(0, "I will"), ended("refusal"), STOP), ("I will", "", [], "refusal")),
    "refusal with a reason only": (
        sse(
            begun(),
            {"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_details": {"explanation": "No."}}},
            STOP,
        ),
        ("No.", "", [], "refusal"),
    ),
    "pause_turn": (sse(begun(), *text(0, "a"), ended("pause_turn"), STOP), ("a", "", [], "pause_turn")),
    "comments, a BOM and no spaces": (
        b"\xef\xbb\xbf: hello\n\n:\n"
        + whole(*text(0, "a")).replace(b"data: ", b"data:").replace(b"event: ", b"event:"),
        ("a", "", [], "end_turn"),
    ),
    "no names of events": (
        b"\n".join(line for line in whole(*text(0, "a")).split(b"\n") if not line.startswith(b"event")),
        ("a", "", [], "end_turn"),
    ),
    "types in the names of events only": (
        sse(begun(), *text(0, "a"), ended()) + b'event: message_stop\ndata: {"a":1}\n\n',
        ("a", "", [], "end_turn"),
    ),
    "another dialect's end": (whole(*text(0, "a")) + b"data: [DONE]\n\n", ("a", "", [], "end_turn")),
    "characters of several bytes": (
        whole(*text(0, "\u00e9\u20ac\U0001f600")),
        ("\u00e9\u20ac\U0001f600", "", [], "end_turn"),
    ),
    "an error behind the end": (
        whole(*text(0, "a")) + sse({"type": "error", "error": {"type": "api_error"}}),
        ("a", "", [], "end_turn"),
    ),
    "no blank line at the end": (whole(*text(0, "a"))[:-2], ("a", "", [], "end_turn")),
}


@pytest.mark.parametrize("way", ["as it is", "bytes", "crlf"])
@pytest.mark.parametrize("name", GOOD)
async def test_a_stream_gives_the_answer_that_is_in_it(name: str, way: str) -> None:
    stream, expected = GOOD[name]

    assert said(await answer(*split(stream, way))) == expected


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "r"}
BAD: dict[str, tuple[bytes, tuple[str, bool]]] = {
    "nothing": (b"", ("stream_cut", True)),
    "no end": (sse(begun(), *text(0, "a")), ("stream_cut", True)),
    "no end behind a call": (sse(begun(), *CALL), ("stream_cut", True)),
    "cut inside an event": (whole(*text(0, "a"))[:-90], ("stream_cut", True)),
    "an end without reason and stop": (sse(begun(), *text(0, "a"), ended(None)), ("stream_cut", True)),
    "a call that was not closed": (sse(begun(), *CALL[:-1], ended("tool_use"), STOP), ("stream_cut", True)),
    "a refusal inside a call": (sse(begun(), *CALL[:-1], ended("refusal"), STOP), ("refused", False)),
    "overloaded": (sse(begun(), *text(0, "a"), OVERLOADED), ("server_error", True)),
    "overloaded at once": (sse(OVERLOADED), ("server_error", True)),
    "an error without a name": (b"data: " + msgspec.json.encode(OVERLOADED) + b"\n\n", ("server_error", True)),
    "an error without an object": (b"event: error\ndata: upstream connect error\n\n", ("server_error", True)),
    "api_error": (sse({"type": "error", "error": {"type": "api_error", "message": "x"}}), ("server_error", True)),
    "rate limit": (sse({"type": "error", "error": {"type": "rate_limit_error"}}), ("rate_limited", True)),
    "timeout": (sse({"type": "error", "error": {"type": "timeout_error"}}), ("timeout", True)),
    "billing": (sse({"type": "error", "error": {"type": "billing_error"}}), ("quota_exhausted", False)),
    "a request that is wrong": (
        sse({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}),
        ("invalid_request", False),
    ),
    "too long": (
        sse({"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 3 > 2"}}),
        ("context_length_exceeded", False),
    ),
    "a web page": (b"<!DOCTYPE html><html><title>Portal</title></html>", ("bad_response", False)),
    "no JSON": (sse(begun()) + b"data: {oops\n\n" + sse(STOP), ("bad_stream", True)),
    "a list": (b"data: [1]\n\n", ("bad_stream", True)),
    "a piece of a call that is not there": (sse(begun(), CALL[1], STOP), ("bad_stream", True)),
    "a call without a name": (sse(begun(), *tool_use(0, name=""), STOP), ("bad_stream", True)),
    "a block inside a call": (
        sse(begun(), opened("tool_use", 0, id="t", name="f"), opened("text", 0)),
        ("bad_stream", True),
    ),
}


@pytest.mark.parametrize("way", ["as it is", "bytes", "crlf"])
@pytest.mark.parametrize("name", BAD)
async def test_a_stream_that_is_no_answer_fails(name: str, way: str) -> None:
    stream, expected = BAD[name]

    error = await failure(*split(stream, way))

    assert (error.kind, error.retryable) == expected


@pytest.mark.parametrize("at", range(1, len(whole(*text(0, "\u20ac")))))
async def test_a_stream_may_be_cut_between_any_two_bytes(at: int) -> None:
    stream = whole(*text(0, "\u20ac"))

    assert (await answer(stream[:at], stream[at:])).text == "\u20ac"


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        (({}, {}), Usage()),
        (({"input_tokens": 5}, {"output_tokens": 7}), Usage(prompt=5, completion=7)),
        (
            (
                {
                    "input_tokens": 5,
                    "cache_read_input_tokens": 100,
                    "cache_creation_input_tokens": 20,
                    "output_tokens": 1,
                },
                {"output_tokens": 7},
            ),
            Usage(prompt=125, completion=7, cache_read=100, cache_write=20),
        ),
        # Cumulative, in the last event again; and of a server that knows its input only there.
        (
            ({"input_tokens": 5, "output_tokens": 1}, {"input_tokens": 5, "output_tokens": 7}),
            Usage(prompt=5, completion=7),
        ),
        (({"input_tokens": 0}, {"input_tokens": 9, "output_tokens": 2}), Usage(prompt=9, completion=2)),
        (({"input_tokens": 9}, {"input_tokens": 0, "output_tokens": 2}), Usage(prompt=9, completion=2)),
        (({}, {"output_tokens": 2}), Usage(completion=2)),
        (
            ({"input_tokens": 1}, {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 6}}),
            Usage(prompt=1, completion=9, reasoning=6),
        ),
    ],
)
async def test_usage_is_what_was_reported_and_nothing_else(reports: tuple[Any, Any], expected: Usage) -> None:
    found = await answer(sse(begun(**reports[0]), *text(0, "a"), ended(**reports[1]), STOP))

    assert found.usage == expected
    assert found.response_model == "m-1"


def kept(found: Answer) -> list[Any]:
    return [msgspec.json.decode(item) for item in found.reasoning]


async def test_signed_thinking_is_kept_as_it_came_and_unsigned_is_only_shown() -> None:
    redacted = block(1, "redacted_thinking", data="b64/+==")
    signed = thinking(0, "h\u00e9", "\n\u2028m", signature=("si", "g/+=="))

    found = await answer(whole(*signed, *redacted, *thinking(2, "loud", signature=()), *text(3, "so")))

    assert kept(found) == [
        {"type": "thinking", "thinking": "h\u00e9\n\u2028m", "signature": "sig/+=="},
        {"type": "redacted_thinking", "data": "b64/+=="},
    ]
    assert found.thinking == "h\u00e9\n\u2028mloud"
    assert found.text == "so"


async def test_thinking_without_text_is_kept_too() -> None:
    found = await answer(whole(*thinking(0), *text(1, "so")))

    assert kept(found) == [{"type": "thinking", "thinking": "", "signature": "sig"}]


async def test_thinking_between_other_blocks_remembers_its_place() -> None:
    events = [
        *thinking(0, "one"),
        *text(1, "I ", "look"),
        *tool_use(2),
        *thinking(3, "two"),
        *tool_use(4, call_id="t2"),
    ]

    found = await answer(sse(begun(), *events, ended("tool_use"), STOP))

    assert [(item["type"], item.get("characters"), item.get("id")) for item in kept(found)] == [
        ("thinking", None, None),
        ("text", 6, None),
        ("tool_use", None, "toolu_1"),
        ("thinking", None, None),
    ]


@pytest.mark.parametrize("behind", [[], [Silence()], [Broken()]])
async def test_an_answer_whose_reason_has_come_does_not_wait_for_its_last_event(
    behind: list[Piece], autojump_clock: MockClock
) -> None:

    began = trio.current_time()
    found = await answer(sse(begun(), *text(0, "a"), ended()), *behind)

    assert found.text == "a"
    assert trio.current_time() - began <= USAGE_S


@pytest.mark.parametrize("way", ["as it is", "bytes", "crlf"])
async def test_what_came_before_an_error_is_passed_on_first_in_whatever_pieces_both_came(way: str) -> None:
    stream = sse(begun(input_tokens=3), *text(0, "a"), OVERLOADED)
    fold = Fold("made")

    with pytest.raises(ModelError, match="Overloaded"):
        await ask(upstream(FakeTransport(FakeReply(*split(stream, way)))), fold=fold)

    assert fold.usage == Usage(prompt=3)


async def test_silence_before_the_reason_is_the_callers_business(autojump_clock: MockClock) -> None:

    with trio.move_on_after(1000) as limit:
        await answer(sse(begun(), *text(0, "a")), Silence())

    assert limit.cancelled_caught


async def test_a_key_in_an_error_is_not_repeated() -> None:
    told = sse({"type": "error", "error": {"type": "authentication_error", "message": "bad key sk-1"}})

    error = await failure(told, key="sk-1")

    assert "[key]" in str(error)
    assert "sk-1" not in str(error)


async def test_a_page_in_the_place_of_a_stream_names_the_setting() -> None:
    error = await failure(b"<html><title>Login</title></html>", content_type="text/html")

    assert (error.kind, error.retryable) == ("bad_response", False)
    assert "'Login'" in str(error)
    assert "baseUrl" in str(error)


@pytest.mark.parametrize("asked_to_stream", [True, False])
async def test_an_answer_that_is_not_streamed_is_the_same_answer(asked_to_stream: bool) -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "readFile", "input": {"path": "a"}},
    ]
    usage = {"input_tokens": 1, "cache_read_input_tokens": 2, "output_tokens": 3}
    message = {"type": "message", "model": "m-1", "content": content, "stop_reason": "tool_use", "usage": usage}
    transport = FakeTransport(FakeReply(msgspec.json.encode(message), content_type="application/json"))

    found = await ask(upstream(transport, stream=asked_to_stream))

    assert transport.body()["stream"] is asked_to_stream
    assert said(found) == ("I look.", "hm", ONE, "tool_use")
    assert kept(found) == content[:1]
    assert found.usage == Usage(prompt=3, completion=3, cache_read=2)


@pytest.mark.parametrize(
    ("body", "kind", "retryable"),
    [
        (b'{"type":"error","error":{"type":"overloaded_error","message":"x"}}', "server_error", True),
        (b'{"type":"message","content":[],"stop_reason":"max_tokens"}', "", False),
        (b'{"hello":1}', "bad_response", True),
        (b"[]", "bad_response", True),
    ],
)
async def test_json_that_is_no_answer_fails(body: bytes, kind: str, retryable: bool) -> None:
    if not kind:
        assert (await answer(body, content_type="application/json")).truncated
        return
    error = await failure(body, content_type="application/json")

    assert (error.kind, error.retryable) == (kind, retryable)


SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "text", "tool_use", "thinking", "{"]),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(
        st.sampled_from([
            "type", "index", "delta", "content_block", "text", "thinking", "signature", "partial_json", "id", "name",
            "input", "data", "stop_reason", "usage", "message", "error", "input_tokens",
        ]),
        inner,
        max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip
KINDS = st.sampled_from([
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
    "message_stop", "error", "ping", "x",
])  # fmt: skip
ODD = st.builds(
    lambda kind, shape: {**(shape if isinstance(shape, dict) else {"x": shape}), "type": kind}, KINDS, SHAPES
)
GOOD_EVENTS = st.sampled_from([begun(), *text(0, "a"), *CALL, *thinking(2, "t"), ended("tool_use"), STOP])


@settings(deadline=None)
@given(st.lists(ODD | GOOD_EVENTS, max_size=8), st.binary(max_size=20), st.integers(0, 200))
def test_whatever_comes_is_an_answer_or_one_of_our_errors(events: list[Any], noise: bytes, at: int) -> None:
    stream = sse(*events)
    sent = stream[:at] + noise + stream[at:]

    async def main() -> None:
        with suppress(ModelError):
            found = await answer(*(piece for piece in (sent[: at // 2], sent[at // 2 :]) if piece))
            for call in found.calls:
                msgspec.json.decode(call.arguments)  # what a tool is given is JSON

    trio.run(main)
