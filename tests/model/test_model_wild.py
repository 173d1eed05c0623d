"""Streams as they are in the wild, played over HTTP, and what of each reaches the transcript."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import trio

from peen.entropy import SystemEntropy
from peen.errors import ModelError
from peen.model.anthropic import AnthropicUpstream
from peen.model.direct import DirectTransport
from peen.model.fold import Answer, Fold
from peen.model.openai import OpenAiUpstream
from peen.model.reasoning import chat_item
from peen.model.script import Script, load_script
from peen.model.scripted import ScriptedUpstream
from peen.model.stream import ModelRequest, Upstream
from peen.testing.upstream import Options, UpstreamServer
from peen.testing.upstream.anthropic import AnthropicWire
from peen.testing.upstream.openai import OpenAiWire
from peen.testing.upstream.responses import ResponsesWire
from peen.testing.upstream.wire import Wire
from peen.wire.launch import UpstreamConfig
from peen.wire.records import MessageRecord, Usage

STREAMS: Final = Path(__file__).parents[2] / "harness_examples" / "streams"
SCRIPT: Final = load_script(STREAMS / "chat-completions.yaml")
RESPONSES: Final = load_script(STREAMS / "responses.yaml")
MESSAGES: Final = load_script(STREAMS / "messages.yaml")
WAYS: Final = {
    "as it is": Options(),
    "byte by byte": Options(byte_by_byte=True),
    "crlf": Options(crlf=True),
}


class Want(NamedTuple):
    """What is stored. Every call in `calls` runs; an `error` is its kind, and whether it is tried again."""

    text: str = "Hi there"
    finish: str = "stop"
    calls: tuple[tuple[str, str], ...] = ()
    thinking: str = ""
    usage: Usage = Usage()
    kept: tuple[bytes, ...] = ()
    error: tuple[str, bool] | None = None


def calls(*pairs: tuple[str, str], text: str = "", finish: str = "tool_calls", **more: Any) -> Want:
    return Want(text, finish, pairs, **more)


def chat_kept(field: str, value: Any) -> tuple[bytes, ...]:
    return (bytes(chat_item(field, value)),)


def fails(kind: str, *, retried: bool) -> Want:
    return Want(error=(kind, retried))


READ_X: Final = ("readFile", '{"path": "x"}')
READ_Y: Final = ("readFile", '{"path": "y"}')
LIST: Final = ("listFiles", "{}")
CUT: Final = fails("stream_cut", retried=True)
BROKEN: Final = fails("transport", retried=True)
ODD: Final = fails("bad_stream", retried=False)
BUSY: Final = fails("server_error", retried=True)

CASES: Final[dict[str, Want]] = {
    "first-without-choices": Want(),
    "usage-last": Want("Hi ", usage=Usage(prompt=7, completion=2)),
    "usage-everywhere": Want(usage=Usage(prompt=7, completion=2)),
    "usage-null": Want("Hi"),
    "calls-without-index": calls(READ_X, LIST),
    "calls-null-index": calls(READ_X),
    "calls-in-one-delta": calls(READ_X, LIST),
    "calls-in-one-delta-nameless": calls(LIST, LIST),
    "calls-in-one-delta-one-id": calls(LIST, READ_X),
    "calls-both-at-0": calls(READ_X, LIST),
    "calls-both-at-0-mixed": calls(READ_X, READ_Y),
    "calls-mixed": calls(READ_X, READ_Y),
    "name-in-two": calls(READ_X),
    "name-again-and-again": calls(READ_X),
    "arguments-object": calls(("readFile", '{"path":"x"}')),
    "arguments-object-then-text": calls(READ_X),
    "arguments-cut-in-escape": calls(("readFile", r'{"path": "a\nb\u00e9"}')),
    "arguments-cut-in-pair": calls(("readFile", r'{"path": "\ud83d\ude42-🙂"}')),
    "text-cut-in-pair": Want("a🙂b\ufffd"),
    "one-id-for-all": calls(READ_X, READ_Y),
    "empty-ids": calls(READ_X, LIST),
    "arguments-empty": calls(LIST),
    "arguments-null": calls(LIST, LIST),
    "end-without-reason": Want(finish=""),
    "end-without-reason-call": calls(READ_X, finish=""),
    "end-without-reason-half-call": CUT,
    "end-unknown-reason": calls(READ_X, finish="eos_token"),
    "end-stop-with-calls": calls(READ_X, finish="stop"),
    "end-calls-without-calls": Want(finish="tool_calls"),
    "end-length-in-call": Want("Hi ", "length"),
    "end-length-behind-call": Want("", "length"),
    "end-filter-in-call": CUT,
    "end-none": CUT,
    "end-none-call": CUT,
    "end-none-usage": CUT,
    "end-without-done": Want(),
    "end-cut-behind-reason": Want(),
    "end-cut": BROKEN,
    "end-reset": BROKEN,
    "empty-answer": Want(""),
    "empty-null-content": Want(""),
    "empty-done": CUT,
    "empty-body": CUT,
    "lines-comments": Want(),
    "lines-no-space": Want(),
    "lines-json-over-several": Want(),
    "lines-fields": Want(),
    "lines-bom": Want(),
    "lines-lone-cr": Want(),
    "lines-no-last-blank": Want(),
    "lines-utf8-cut": Want("é€🙂"),
    "lines-not-utf8": fails("bad_stream", retried=True),
    "error-object": BUSY,
    "error-object-quota": fails("quota_exhausted", retried=False),
    "error-object-too-long": fails("context_length_exceeded", retried=False),
    "error-event": BUSY,
    "error-event-text": BUSY,
    "error-finish-reason": BUSY,
    "error-document": BUSY,
    "html": fails("bad_response", retried=False),
    "html-as-stream": fails("bad_response", retried=False),
    "not-json": fails("bad_stream", retried=True),
    "document": calls(READ_X, text="Hi there", usage=Usage(prompt=7)),
    "document-as-stream": calls(READ_X, text="Hi there", usage=Usage(prompt=7)),
    "document-length": Want("Hi ", "length"),
    "stream-as-document": Want(),
    "reasoning-content": Want(thinking="hm hm", kept=chat_kept("reasoning_content", "hm hm")),
    "reasoning": Want(thinking="hm hm", kept=chat_kept("reasoning", "hm hm")),
    "thinking": Want(thinking="hm hm"),
    "reasoning-alone": Want("", thinking="hm hm", kept=chat_kept("reasoning_content", "hm hm")),
    "parts": Want(thinking="hm hm"),
    "reasoning-empty": calls(READ_X, kept=chat_kept("reasoning_content", "")),
    "reasoning-details": calls(
        READ_X,
        thinking="hm hm",
        kept=chat_kept(
            "reasoning_details",
            [
                {"type": "reasoning.text", "text": "hm hm", "index": 0, "format": "f", "signature": "s="},
                {"type": "reasoning.encrypted", "data": "x", "index": 1},
                {"type": "reasoning.encrypted", "data": "y", "index": 1},
            ],
        ),
    ),
    "odd-usage-float": Want(usage=Usage(prompt=7, completion=2)),
    "odd-usage-text": Want(usage=Usage(prompt=7)),
    "odd-usage-no-object": Want(),
    "odd-usage-negative": Want(usage=Usage(completion=2)),
    "odd-usage-zeros-last": Want(usage=Usage(prompt=50, completion=5)),
    "odd-finish-number": Want(finish="1"),
    "odd-call-id-number": calls(READ_X),
    "odd-call-arguments-list": calls(LIST),
    "odd-call-no-list": calls(("readFile", '{"path":"x"}')),
    "odd-call-no-function": calls(READ_X),
    "odd-content-object": Want(),
    "odd-choices-object": Want(),
    "odd-event-list": ODD,
    "odd-old-call": fails("bad_response", retried=False),
    "odd-error-list": fails("invalid_request", retried=False),
    "plain-text": fails("bad_response", retried=False),
    "cut-in-first-event": CUT,
}


def completed(text: str = "Hi there", *pairs: tuple[str, str], **more: Any) -> Want:
    return Want(text, "completed", pairs, **more)


RESPONSES_CASES: Final[dict[str, Want]] = {
    "text": completed(usage=Usage(prompt=7, completion=2)),
    "text-without-names": completed(),
    "text-at-the-end": completed(),
    "refusal": completed(),
    "unknown-events": completed(),
    "call": completed("", READ_X),
    "call-done-alone": completed("", READ_X),
    "call-item-alone": completed("", READ_X),
    "call-at-the-end": completed("", READ_X),
    "calls-mixed": completed("", READ_X, READ_Y),
    "call-not-started": fails("bad_stream", retried=True),
    "call-broken": CUT,
    "incomplete": Want("Hi ", "length"),
    "incomplete-filter": Want("Hi ", "content_filter"),
    "incomplete-filter-call": CUT,
    "failed": BUSY,
    "failed-rate": fails("rate_limited", retried=True),
    "failed-quota": fails("quota_exhausted", retried=False),
    "error-event": BUSY,
    "error-without-name": fails("context_length_exceeded", retried=False),
    "error-object": BUSY,
    "end-none": CUT,
    "end-none-call": CUT,
    "end-done-alone": CUT,
    "end-queued": CUT,
    "text-cut-in-pair": completed("a🙂b"),
    "reasoning": completed(
        thinking="hm\n\nhm", kept=(b'{"type":"reasoning" , "id":"rs","encrypted_content":"xyz"}', b'"message"')
    ),
    "reasoning-text": completed(thinking="hm"),
    "reasoning-at-the-end": completed(
        thinking="hm",
        kept=(b'{"type":"reasoning" ,"summary":[{"text":"hm"}],"encrypted_content":"xyz"}', b'"message"'),
    ),
    "document": completed("Hi there", READ_X, usage=Usage(prompt=7)),
    "document-error": BUSY,
    "document-other": CUT,
    "html": fails("bad_response", retried=False),
}


MESSAGES_CASES: Final[dict[str, Want]] = {
    "text": Want(finish="end_turn", usage=Usage(prompt=7, completion=2, cache_read=2)),
    "text-without-names": Want(finish="end_turn"),
    "text-in-the-start": Want(finish="end_turn", usage=Usage(completion=2)),
    "text-cut-in-pair": Want("a🙂b", "end_turn", usage=Usage(completion=2)),
    "unknown-events": Want(finish="end_turn", usage=Usage(completion=2)),
    "usage-zero-at-the-end": Want(finish="end_turn", usage=Usage(prompt=7, completion=2, cache_read=2)),
    "call": calls(READ_X, finish="tool_use"),
    "call-input-in-the-start": calls(("readFile", '{"path":"x"}'), finish="tool_use"),
    "call-without-input": calls(LIST, finish="tool_use"),
    "calls-mixed": calls(READ_X, READ_Y, finish="tool_use"),
    "call-not-started": fails("bad_stream", retried=True),
    "max-tokens-in-call": Want("Hi ", "length"),
    "refusal": Want(finish="refusal", usage=Usage(prompt=7, completion=1, cache_read=2)),
    "refusal-in-call": fails("refused", retried=False),
    "end-without-stop": Want(finish="end_turn", usage=Usage(completion=2)),
    "end-without-reason": Want(finish="end_turn"),
    "end-none": CUT,
    "end-none-call": CUT,
    "end-cut-behind-reason": Want(finish="end_turn", usage=Usage(completion=2)),
    "end-reset": BROKEN,
    "thinking": Want(
        finish="end_turn", thinking="hm hm", usage=Usage(completion=2),
        kept=(b'{"type":"thinking","thinking":"hm hm","signature":"abc/+="}',),
    ),
    "thinking-unsigned": Want(finish="end_turn", thinking="hm", usage=Usage(completion=2)),
    "thinking-redacted": Want(
        finish="end_turn", usage=Usage(completion=2), kept=(b'{"type":"redacted_thinking","data":"xyz"}',)
    ),
    "error-event": BUSY,
    "error-without-name": fails("rate_limited", retried=True),
    "error-text": BUSY,
    "error-billing": fails("quota_exhausted", retried=False),
    "document": calls(("readFile", '{"path":"x"}'), text="Hi there", finish="tool_use", usage=Usage(prompt=7)),
    "document-as-stream": calls(
        ("readFile", '{"path":"x"}'), text="Hi there", finish="tool_use", usage=Usage(prompt=7)
    ),
    "stream-as-document": Want(finish="end_turn", usage=Usage(completion=2)),
    "document-error": BUSY,
    "html": fails("bad_response", retried=False),
}  # fmt: skip

DIALECTS: Final[dict[str, tuple[Script, dict[str, Want], type[Wire]]]] = {
    "chat": (SCRIPT, CASES, OpenAiWire),
    "responses": (RESPONSES, RESPONSES_CASES, ResponsesWire),
    "messages": (MESSAGES, MESSAGES_CASES, AnthropicWire),
}


@asynccontextmanager
async def provider(options: Options, *, api: str = "chat") -> AsyncIterator[OpenAiUpstream | AnthropicUpstream]:
    """An adapter in front of a server that plays the example of an API."""
    script, _, make_wire = DIALECTS[api]
    wire = make_wire()
    server = UpstreamServer(ScriptedUpstream("dev", script, with_demo=False), wire, SystemEntropy(), options)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(partial(trio.serve_listeners, server.serve, listeners))
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}{wire.base_path}"
        adapter: OpenAiUpstream | AnthropicUpstream
        if api == "messages":
            config = UpstreamConfig(name="dev", type="anthropic", base_url=url)
            adapter = AnthropicUpstream(config, None, DirectTransport(), SystemEntropy())
        else:
            config = UpstreamConfig(name="dev", type="openai", base_url=url, api=api)
            adapter = OpenAiUpstream(config, None, DirectTransport(), SystemEntropy())
        yield adapter
        await adapter.aclose()
        nursery.cancel_scope.cancel()


async def ask(adapter: Upstream, model: str, messages: list[MessageRecord]) -> Answer:
    fold = Fold("made", taken={call.id for message in messages for call in message.tool_calls or ()})
    async with adapter.stream(ModelRequest(model_id=model, system="", messages=messages)) as events:
        async for event in events:
            fold.add(event)
    return fold.finish()


def user() -> MessageRecord:
    return MessageRecord(role="user", content="go")


def test_every_stream_of_the_examples_has_its_outcome_here() -> None:
    for script, cases, _ in DIALECTS.values():
        assert list(script.models) == list(cases)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("api", "name"), [(api, name) for api, (_, cases, _) in DIALECTS.items() for name in cases])
async def test_a_stream_comes_to(api: str, name: str, way: str) -> None:
    want = DIALECTS[api][1][name]
    async with provider(WAYS[way], api=api) as adapter:
        if want.error is not None:
            with pytest.raises(ModelError) as caught:
                await ask(adapter, name, [user()])
            assert (caught.value.kind, caught.value.retryable) == want.error
            return
        answer = await ask(adapter, name, [user()])

    ran = tuple((call.name, bytes(call.arguments).decode()) for call in answer.calls)
    kept = tuple(map(bytes, answer.reasoning))
    assert Want(answer.text, answer.finish_reason, ran, answer.thinking, answer.usage, kept) == want
    assert len({call.id for call in answer.calls}) == len(answer.calls)


@pytest.mark.parametrize("name", ["one-id-for-all", "empty-ids"])
async def test_ids_that_a_provider_repeats_or_leaves_out_are_unique_and_paired_when_they_are_sent_again(
    name: str,
) -> None:
    messages, ids = [user()], []
    async with provider(Options(strict=True)) as adapter:  # it refuses ids that are blank, repeated or without a pair
        while (answer := await ask(adapter, name, messages)).calls:
            ids += [call.id for call in answer.calls]
            messages.append(MessageRecord(role="assistant", content="", tool_calls=list(answer.calls)))
            messages += [MessageRecord(role="tool", content=call.id, tool_call_id=call.id) for call in answer.calls]

    assert answer.text == "Hi there"
    assert len(set(ids)) == len(ids) == len([1 for message in messages if message.role == "tool"])


async def test_only_the_program_for_it_plays_raw_rounds() -> None:
    with pytest.raises(ModelError, match="only `peen dev upstream` plays it") as caught:
        async with ScriptedUpstream("s", SCRIPT, with_demo=False).stream(
            ModelRequest(model_id="empty-body", system="", messages=[user()])
        ):
            pass

    assert not caught.value.retryable
