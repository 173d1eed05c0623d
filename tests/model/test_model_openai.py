from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from peen.entropy import SeededEntropy
from peen.errors import ModelError
from peen.execution.attempts import Attempts
from peen.model.chatbody import ChatBodies
from peen.model.encoded import KEPT
from peen.model.fold import Answer, Fold
from peen.model.openai import OpenAiUpstream
from peen.model.reader import CLOSE_S, USAGE_S
from peen.model.replies import ERROR_BODY_S
from peen.model.stream import ModelRequest
from peen.store.spending import is_cost_known
from peen.wire.launch import UpstreamConfig
from peen.wire.model import ToolDefinition
from peen.wire.records import MessageRecord, ModelProgress, ToolCallRecord, Usage

USER = MessageRecord(role="user", content="go")
TOOL = ToolDefinition(name="readFile", description="Read.", parameters=msgspec.Raw(b'{"type":"object"}'))
TEXT = b'data: {"model":"m-1","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"
KEY = "sk-very-secret"


class Broken:
    """In the place of a piece: the connection breaks."""


class Silence:
    """In the place of a piece: nothing comes any more."""


class FakeTransport:
    """Answers every request with the next of its answers, and remembers what was asked."""

    def __init__(self, *answers: FakeReply) -> None:
        self._answers: Iterator[FakeReply] = iter(answers)
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.open = 0
        self.closed = 0

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[FakeReply]:
        self.asked.append((method, url, dict(headers), msgspec.json.decode(body) if body else None))
        self.open += 1
        try:
            await trio.lowlevel.checkpoint()
            yield next(self._answers)
        finally:
            self.open -= 1

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed += 1


class FakeReply:
    def __init__(self, *pieces: bytes | Broken | Silence, status: int = 200, **headers: str) -> None:
        self.status = status
        self.headers = {"content-type": "text/event-stream"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        self._pieces = iter(pieces)

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        piece = next(self._pieces, b"")
        if isinstance(piece, Silence):
            await trio.sleep_forever()
        if isinstance(piece, Broken):
            raise ModelError("the connection broke", kind="transport", retryable=True)
        assert isinstance(piece, bytes)
        return piece


def upstream(transport: FakeTransport, *, key: str | None = None, base_url: str = "http://p:1/v1") -> OpenAiUpstream:
    config = UpstreamConfig(name="up", type="openai", base_url=base_url)
    return OpenAiUpstream(config, key, transport, SeededEntropy(1))


def request(*messages: MessageRecord, **fields: Any) -> ModelRequest:
    return ModelRequest(**{"model_id": "m", "system": "be good", "messages": messages or (USER,), **fields})


async def ask(source: OpenAiUpstream, asked: ModelRequest | None = None) -> Answer:
    fold = Fold("made")
    async with source.stream(asked or request()) as events:
        async for event in events:
            fold.add(event)
    return fold.finish()


async def answer(*pieces: bytes | Broken | Silence, **fields: Any) -> Answer:
    return await ask(upstream(FakeTransport(FakeReply(*pieces, **fields))))


async def failure(*pieces: bytes | Broken | Silence, key: str | None = None, **fields: Any) -> ModelError:
    transport = FakeTransport(FakeReply(*pieces, **fields))
    with pytest.raises(ModelError) as caught:
        await ask(upstream(transport, key=key))
    assert transport.open == 0
    return caught.value


# --- what is sent ---------------------------------------------------------------------------------------------------


async def test_a_request_holds_everything_in_the_providers_words() -> None:
    transport = FakeTransport(FakeReply(TEXT, END, DONE))
    reply = MessageRecord(
        role="assistant",
        content="",
        thinking="not sent back",
        tool_calls=[ToolCallRecord(id="c", name="readFile", arguments=msgspec.Raw(b'{"path": "a"}'))],
    )
    messages = (
        USER,
        reply,
        MessageRecord(role="tool", content="text", tool_call_id="c"),
        MessageRecord(role="system", content="stopped"),
        MessageRecord(role="assistant", content="well"),
        USER,
    )

    await ask(upstream(transport, key=KEY), request(*messages, tools=(TOOL,), max_output_tokens=9))

    ((method, url, headers, body),) = transport.asked
    assert (method, url) == ("POST", "http://p:1/v1/chat/completions")
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["accept-encoding"] == "identity"
    assert body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 9,
        "tools": [
            {
                "type": "function",
                "function": {"name": "readFile", "description": "Read.", "parameters": {"type": "object"}},
            }
        ],
        "messages": [
            {"role": "system", "content": "be good"},
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "readFile", "arguments": '{"path": "a"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "text"},
            {"role": "user", "content": "<system>\nstopped\n</system>"},
            {"role": "assistant", "content": "well"},
            {"role": "user", "content": "go"},
        ],
    }


async def test_without_key_tools_and_system_prompt_none_of_them_is_mentioned() -> None:
    transport = FakeTransport(FakeReply(END, DONE))

    await ask(upstream(transport), request(system=""))

    ((_, _, headers, body),) = transport.asked
    assert "authorization" not in headers
    assert set(body) == {"model", "stream", "stream_options", "messages"}
    assert body["messages"] == [{"role": "user", "content": "go"}]


@pytest.mark.parametrize(
    ("base_url", "chat_url"),
    [
        ("http://p:1/v1/", "http://p:1/v1/chat/completions"),
        ("http://p:1", "http://p:1/chat/completions"),
        ("https://p/x?api-version=3", "https://p/x/chat/completions?api-version=3"),
    ],
)
async def test_the_address_of_an_answer_is_below_the_base(base_url: str, chat_url: str) -> None:
    transport = FakeTransport(FakeReply(END))

    await ask(upstream(transport, base_url=base_url))

    assert transport.asked[0][1] == chat_url


async def test_openai_itself_takes_the_newer_name_of_the_output_limit() -> None:
    transport = FakeTransport(FakeReply(END))

    await ask(upstream(transport, base_url="https://api.openai.com/v1"), request(max_output_tokens=9))

    assert transport.asked[0][3]["max_completion_tokens"] == 9


async def test_a_request_that_a_strict_provider_would_refuse_is_never_sent() -> None:
    transport = FakeTransport()
    orphan = MessageRecord(role="tool", content="x", tool_call_id="gone")

    with pytest.raises(ModelError, match=r"messages\[1\]: a result for the call 'gone'"):
        await ask(upstream(transport), request(USER, orphan))

    assert transport.asked == []


async def test_arguments_that_are_no_object_are_sent_as_one() -> None:
    calls = [ToolCallRecord(id="c", name="t", arguments=msgspec.Raw(b'"not json"'))]
    transport = FakeTransport(FakeReply(END))

    reply = MessageRecord(role="assistant", content="", tool_calls=calls)
    await ask(upstream(transport), request(USER, reply, MessageRecord(role="tool", content="no", tool_call_id="c")))

    sent = transport.asked[0][3]["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert msgspec.json.decode(sent) == {"invalid": "not json"}


async def test_effort_is_sent_where_the_model_takes_it_and_a_change_is_logged_once() -> None:
    transport = FakeTransport(*(FakeReply(END) for _ in range(4)))
    source = upstream(transport)

    with capture_logs() as logs:
        for model_id, effort in (("o3", "max"), ("o3", "max"), ("qwen", "high"), ("o3", None)):
            await ask(source, request(model_id=model_id, reasoning_effort=effort))

    assert [body.get("reasoning_effort") for _, _, _, body in transport.asked] == ["high", "high", None, None]
    assert [(entry["requested"], entry["used"], entry["reason"]) for entry in logs] == [
        ("max", "high", "above_model_maximum"),
        ("high", None, "model_does_not_take_reasoning_effort"),
    ]


# --- what a round costs ---------------------------------------------------------------------------------------------


def exchange(number: int) -> list[MessageRecord]:
    call = ToolCallRecord(id=f"c{number}", name="t", arguments=msgspec.Raw(b"{}"))
    return [
        MessageRecord(role="assistant", content="", tool_calls=[call]),
        MessageRecord(role="tool", content=f"result {number}", tool_call_id=call.id),
    ]


def test_a_body_grown_round_by_round_equals_one_made_at_once() -> None:
    bodies = ChatBodies()
    messages = [USER]

    for number in range(50):
        messages.extend(exchange(number))
        grown = bodies.body(request(*messages), None)

        assert grown == ChatBodies().body(request(*messages), None)


def test_conversations_side_by_side_and_shortened_ones_do_not_mix() -> None:
    bodies = ChatBodies()
    first, second = [USER], [MessageRecord(role="user", content="other")]

    for number in range(KEPT + 3):
        first.extend(exchange(number))
        second.extend(exchange(number))
        for messages in (first, second, second[:3], [MessageRecord(role="user", content=f"short {number}")]):
            assert bodies.body(request(*messages), None) == ChatBodies().body(request(*messages), None)


def test_history_is_not_encoded_again() -> None:
    bodies = ChatBodies()
    messages = [USER, *exchange(0)]
    before = bodies.body(request(*messages), None)

    # Nobody changes a message behind our back; doing so shows that nobody looks at it either.
    assert messages[1].tool_calls is not None
    messages[1].tool_calls.clear()
    after = bodies.body(request(*messages, *exchange(1)), None)

    assert after.startswith(before.removesuffix(b"]}") + b",")


def test_a_later_turn_whose_history_was_read_anew_gets_the_same_body() -> None:
    bodies = ChatBodies()
    first = [USER, *exchange(0)]
    bodies.body(request(*first), None)

    second = [*copy.deepcopy(first), *exchange(1)]

    assert bodies.body(request(*second), None) == ChatBodies().body(request(*second), None)


def test_a_refused_request_leaves_nothing_behind() -> None:
    bodies = ChatBodies()
    open_call = [USER, exchange(0)[0]]

    with pytest.raises(ModelError, match="no result for the call 'c0'"):
        bodies.body(request(*open_call), None)

    whole = [USER, *exchange(0)]
    assert bodies.body(request(*whole), None) == ChatBodies().body(request(*whole), None)


# --- what comes back ------------------------------------------------------------------------------------------------


async def test_a_stream_becomes_an_answer() -> None:
    found = await answer(TEXT + END[:9], END[9:] + USAGE, DONE)

    assert (found.text, found.finish_reason, found.response_model) == ("hi", "stop", "m-1")
    assert found.usage == Usage(prompt=4)


@pytest.mark.parametrize(
    "pieces",
    [
        (TEXT, END, USAGE),
        (TEXT, END, USAGE, b"data: [DONE]"),
        (TEXT, END, USAGE, Broken()),
        (TEXT, END, USAGE, b'data: {"choi'),
        (TEXT, END, USAGE, DONE, b"data: anything\n\n"),
    ],
)
async def test_behind_the_end_of_an_answer_nothing_can_spoil_it(pieces: tuple[bytes | Broken, ...]) -> None:
    found = await answer(*pieces)

    assert (found.text, found.usage.prompt) == ("hi", 4)


@pytest.mark.parametrize(("pieces", "wait_s"), [((END, Silence()), USAGE_S), ((END, DONE, Silence()), CLOSE_S)])
async def test_a_server_that_never_closes_delays_an_answer_a_little(
    pieces: tuple[bytes | Silence, ...], wait_s: float, autojump_clock: MockClock
) -> None:
    found = await answer(TEXT, *pieces)

    assert found.text == "hi"
    assert trio.current_time() == pytest.approx(wait_s)


async def test_the_last_event_of_a_response_is_the_end_of_its_stream(autojump_clock: MockClock) -> None:
    end = b'data: {"type":"response.completed","response":{"status":"completed","output":[]}}\n\n'
    config = UpstreamConfig(name="up", type="openai", base_url="http://p:1/v1", api="responses")
    transport = FakeTransport(FakeReply(end, Silence()))

    await ask(OpenAiUpstream(config, None, transport, SeededEntropy(1)))

    assert trio.current_time() == pytest.approx(CLOSE_S)


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ((TEXT,), "stream_cut"),
        ((DONE,), "stream_cut"),
        ((TEXT, b'data: {"choices":[{"index"'), "stream_cut"),
        ((), "stream_cut"),
        ((TEXT, Broken()), "transport"),
        ((Broken(),), "transport"),
        ((TEXT, b"data: not json\n\n"), "bad_stream"),
        ((TEXT, b'data: {"choices":[{"delta":{"content":7}}]}\n\n'), "stream_cut"),
        ((TEXT, b'data: {"model":"\xff"}\n\n'), "bad_stream"),
        ((b'data: {"x":' + b"[" * 100_000 + b"\n\n",), "bad_stream"),
        ((TEXT, END, TEXT), "bad_stream"),
        ((TEXT, b'data: {"error":{"message":"busy","type":"overloaded_error"}}\n\n'), "server_error"),
        ((TEXT, b'event: error\ndata: {"message":"busy"}\n\n'), "server_error"),
        ((TEXT, b"event: error\ndata: just text\n\n"), "server_error"),
    ],
)
async def test_a_stream_without_a_proper_end_is_an_error_that_is_tried_again(
    pieces: tuple[bytes | Broken, ...], kind: str
) -> None:
    found = await failure(*pieces)

    assert (found.kind, found.retryable) == (kind, True)


async def test_done_is_an_end_also_without_a_finish_reason() -> None:
    found = await answer(TEXT, DONE)

    assert (found.text, found.finish_reason) == ("hi", "")


async def test_a_status_is_an_error_with_the_providers_words_and_wait() -> None:
    found = await failure(b'{"error":{"message":"slow', b' down"}}', status=429, retry_after="3")

    assert str(found) == "the provider answered with status 429: slow down"
    assert (found.kind, found.http_status, found.retry_after_ms) == ("rate_limited", 429, 3000)


async def test_an_error_whose_text_never_ends_or_breaks_off_is_still_that_error(autojump_clock: MockClock) -> None:
    slow = await failure(b"busy", Silence(), status=503)
    assert trio.current_time() == ERROR_BODY_S
    broken = await failure(b"busy", Broken(), status=503)

    assert str(slow) == str(broken) == "the provider answered with status 503: busy"


@pytest.mark.parametrize("content_type", ["text/html; charset=utf-8", "text/plain"])
async def test_a_web_page_in_place_of_a_stream_is_named_as_such(content_type: str) -> None:
    found = await failure(b"<!doctype html><title>Log in</title>", content_type=content_type)

    assert str(found).startswith("http://p:1 answered with a web page ('Log in')")
    assert not found.retryable


async def test_an_answer_that_is_not_streamed_is_taken_as_well() -> None:
    body = (
        b'{"model":"m-1","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":4}}'
    )

    found = await answer(body[:20], body[20:], content_type="application/json")

    assert (found.text, found.usage.prompt) == ("hi", 4)


@pytest.mark.parametrize(
    ("body", "kind", "retryable"),
    [
        (b'{"error":{"message":"busy","code":"insufficient_quota"}}', "quota_exhausted", False),
        (b"{", "bad_response", True),
        (b"{}", "stream_cut", True),
    ],
)
async def test_json_that_is_no_answer_is_an_error(body: bytes, kind: str, retryable: bool) -> None:
    found = await failure(body, content_type="application/json")

    assert (found.kind, found.retryable) == (kind, retryable)


@pytest.mark.parametrize(
    ("pieces", "fields"),
    [
        ((f"Incorrect key: {KEY}".encode(),), {"status": 401}),
        ((f'data: {{"error":{{"message":"Incorrect key: {KEY}"}}}}\n\n'.encode(),), {}),
        ((f'data: {{"error":"Incorrect key: {KEY}"}}\n\n'.encode(),), {}),
        ((f"event: error\ndata: Incorrect key: {KEY}\n\n".encode(),), {}),
        ((f'{{"error":{{"message":"Incorrect key: {KEY}"}}}}'.encode(),), {"content_type": "application/json"}),
    ],
)
async def test_a_key_that_the_provider_repeats_is_taken_out(pieces: tuple[bytes, ...], fields: dict[str, Any]) -> None:
    found = await failure(*pieces, key=KEY, **fields)

    assert str(found).endswith("Incorrect key: [key]")


async def test_leaving_a_stream_in_its_middle_closes_the_request() -> None:
    transport = FakeTransport(FakeReply(TEXT, Silence()))
    with trio.CancelScope() as scope:
        async with upstream(transport).stream(request()) as events:
            async for _event in events:
                assert transport.open == 1
                scope.cancel()

    assert scope.cancelled_caught
    assert transport.open == 0


# --- models ---------------------------------------------------------------------------------------------------------


async def test_models_are_listed_in_the_providers_order_with_the_window_it_publishes() -> None:
    listed: list[dict[str, Any]] = [
        {"id": "b", "context_window": 10},
        {"id": "a/x", "context_length": 20, "created": 1.5},
        {"id": "c", "max_model_len": 30},
        {"id": "d", "context_window": 0, "owned_by": None},
    ]
    transport = FakeTransport(FakeReply(msgspec.json.encode({"object": "list", "data": listed})))

    found = await upstream(transport, key=KEY).discover()

    assert [(info.name, info.model_id, info.context_window_tokens) for info in found] == [
        ("up/b", "b", 10), ("up/a/x", "a/x", 20), ("up/c", "c", 30), ("up/d", "d", None),
    ]  # fmt: skip
    assert {(info.connection_name, info.image_input) for info in found} == {("up", True)}
    ((method, url, headers, _),) = transport.asked
    assert (method, url, headers["authorization"]) == ("GET", "http://p:1/v1/models", f"Bearer {KEY}")
    assert (transport.open, transport.closed) == (0, 1)


async def test_openais_own_list_begins_with_its_newest_large_model_that_can_chat() -> None:
    names = [
        "whisper-1", "gpt-4o", "o3", "gpt-5-mini", "gpt-5", "text-embedding-3-small", "gpt-5-pro", "gpt-5-2025-08-07",
        "gpt-image-1", "gpt-4o-audio-preview",
    ]  # fmt: skip
    listed = [{"id": name, "created": 7 if name.startswith("gpt-5") else 3} for name in names]
    transport = FakeTransport(FakeReply(msgspec.json.encode({"data": listed})))

    found = await upstream(transport, base_url="https://api.openai.com/v1").discover()

    assert [info.model_id for info in found] == ["gpt-5", "gpt-4o", "gpt-5-2025-08-07", "gpt-5-mini", "o3"]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (FakeReply(b'{"error":{"message":"who are you"}}', status=401), "status 401: who are you"),
        (FakeReply(b"<html><title>Hello</title>", content_type="text/html"), "a web page ('Hello')"),
        (FakeReply(b'{"models":[]}', content_type="application/json"), "check baseUrl"),
        (FakeReply(b"{", Broken()), "the connection broke"),
    ],
)
async def test_a_list_that_cannot_be_had_says_why(reply: FakeReply, problem: str) -> None:
    transport = FakeTransport(reply)

    with pytest.raises(ModelError) as caught:
        await upstream(transport).discover()

    assert problem in str(caught.value)
    assert transport.closed == 1


# --- the audit ------------------------------------------------------------------------------------------------------


async def test_an_error_that_names_a_status_inside_an_answer_leaves_the_answers_own_and_its_cost_unknown() -> None:
    async def tell(_news: ModelProgress) -> None:
        raise AssertionError("a first attempt is known without a word")

    error = b'data: {"error":{"code":502,"message":"upstream died"}}\n\n'
    attempts = Attempts("r0.model", tell=tell, entropy=SeededEntropy(1), sequence=lambda: 0)
    await attempts.begin(0)
    async with upstream(FakeTransport(FakeReply(error))).stream(request()) as events:
        attempts.answered(events, Fold("made"))
        with pytest.raises(ModelError) as caught:
            await anext(events)
    attempts.fail(caught.value)

    (call,) = attempts.calls
    assert (call.status, call.failure_kind, caught.value.retryable) == (200, "server_error", True)
    assert not is_cost_known(call, cost=None)
