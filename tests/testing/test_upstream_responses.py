"""The Responses API over the wire: our adapter against our provider, streamed and in one piece."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx
import msgspec
import pytest
import trio
from image_kit import IMAGES, PNG, sent

from peen.entropy import SystemEntropy
from peen.errors import ModelError
from peen.model.direct import DirectTransport
from peen.model.fold import Answer, Fold
from peen.model.openai import OpenAiUpstream
from peen.model.reasoning import kept_reasoning
from peen.model.script import parse_script
from peen.model.scripted import ScriptedUpstream
from peen.model.stream import ModelRequest
from peen.testing.upstream import Options, UpstreamServer
from peen.testing.upstream.openai import OpenAiWire
from peen.testing.upstream.responses import ResponsesWire
from peen.wire.launch import UpstreamConfig
from peen.wire.model import ToolDefinition
from peen.wire.records import ImageRef, MessageRecord, Usage

TALK: Final = """
models:
  o3: &talk
    contextWindow: 4096
    turns:
      - rounds:
          - thinking: hm, größer
            text: "größer 🙂"
            chunk: 3
            calls: [{name: t, arguments: {a: 1}}, {name: t, arguments: {}}]
            usage: {prompt: 9, completion: 5, cacheRead: 4, reasoning: 1}
          - {thinking: so it is, calls: [{name: t, arguments: {b: 2}}]}
          - {text: "It said {lastResult}."}
      - rounds: [{text: second turn}]
  o4-mini: *talk
  sees: {turns: [{rounds: [{text: "I saw {images}."}]}], repeatLastTurn: true}
  cut: {turns: [{rounds: [{text: half, calls: [{name: t, arguments: "{\\"a"}], finishReason: length}]}]}
  filtered: {turns: [{rounds: [{text: half, finishReason: content_filter}]}]}
  busy: {turns: [{rounds: [{text: abcdef, chunk: 2, fault: {kind: error, afterPieces: 1, message: overloaded}}]}]}
  broken: {turns: [{rounds: [{text: abcdef, chunk: 2, fault: {kind: cut, afterPieces: 1}}]}]}
"""
TOOL: Final = ToolDefinition("t", "does it", msgspec.Raw(b'{"type":"object","properties":{}}'))


@dataclass
class World:
    adapter: OpenAiUpstream
    url: str

    async def ask(self, *messages: MessageRecord, model: str = "o3", **fields: Any) -> Answer:
        request = ModelRequest(model_id=model, system="be good", messages=messages, tools=(TOOL,), **fields)
        fold = Fold("made")
        async with self.adapter.stream(request) as events:
            async for event in events:
                fold.add(event)
        return fold.finish()

    async def log(self) -> list[dict[str, Any]]:
        async with httpx.AsyncClient(trust_env=False) as http:
            found: list[dict[str, Any]] = (await http.get(self.url.removesuffix("/v1") + "/dev/requests")).json()[
                "requests"
            ]
        return found

    async def post(self, **body: Any) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as http:
            return await http.post(f"{self.url}/responses", json=body)


@asynccontextmanager
async def world(*, stream: bool = True, **options: Any) -> AsyncIterator[World]:
    played = ScriptedUpstream("dev", parse_script(TALK, source="s.yaml"), with_demo=False)
    server = UpstreamServer(played, OpenAiWire(), SystemEntropy(), Options(**options), also=(ResponsesWire(),))
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(partial(trio.serve_listeners, server.serve, listeners))
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1"
        config = UpstreamConfig(name="dev", type="openai", base_url=url, api="responses", stream=stream)
        adapter = OpenAiUpstream(config, None, DirectTransport(), SystemEntropy())
        yield World(adapter, url)
        await adapter.aclose()
        nursery.cancel_scope.cancel()


def user(text: str = "go") -> MessageRecord:
    return MessageRecord(role="user", content=text)


def exchange(answer: Answer, *, upstream: str = "dev", model: str = "o3") -> list[MessageRecord]:
    """The answer as it is stored, and results of its calls."""
    reply = MessageRecord(
        role="assistant", content=answer.text, thinking=answer.thinking, tool_calls=list(answer.calls) or None,
        provider_reasoning=kept_reasoning(answer.reasoning, upstream=upstream, model=model),
    )  # fmt: skip
    return [reply, *(MessageRecord(role="tool", content=call.id, tool_call_id=call.id) for call in answer.calls)]


@pytest.mark.parametrize("options", [{}, {"crlf": True}, {"byte_by_byte": True}])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_conversation_plays_over_the_wire_as_it_is_written(stream: bool, options: dict[str, bool]) -> None:
    async with world(stream=stream, **options) as here:
        first = await here.ask(user(), reasoning_effort="high", max_output_tokens=99)
        messages = [user(), *exchange(first)]
        second = await here.ask(*messages)
        messages += exchange(second)
        third = await here.ask(*messages)
        note = MessageRecord(role="system", content="stopped")
        later = await here.ask(*messages, *exchange(third), note, user("next"), user("<skill>\nname: x"))

    assert (first.text, first.thinking, first.finish_reason) == ("größer 🙂", "hm, größer", "completed")
    assert [(call.id, bytes(call.arguments)) for call in first.calls] == [
        ("call_0_0_0", b'{"a":1}'),
        ("call_0_0_1", b"{}"),
    ]
    assert first.usage == Usage(prompt=9, completion=5, cache_read=4, reasoning=1)
    assert [bytes(call.arguments) for call in second.calls] == [b'{"b":2}']
    assert (third.text, later.text) == ("It said call_0_1_0.", "second turn")


async def test_reasoning_goes_back_byte_for_byte_to_its_own_upstream_and_model_alone() -> None:
    async with world() as here:
        first = await here.ask(user())
        await here.ask(user(), *exchange(first))
        with pytest.raises(ModelError, match="could not be verified: it was not made for 'o4-mini'") as caught:
            await here.ask(user(), *exchange(first, model="o4-mini"), model="o4-mini")
        other = await here.ask(user(), *exchange(first), model="o4-mini")
        elsewhere = await here.ask(user(), *exchange(first, upstream="elsewhere"))
        log = await here.log()

    assert (caught.value.http_status, caught.value.retryable) == (400, False)
    assert [request["reasoning"] for request in log] == [0, 1, 0, 0, 0]
    assert other.thinking == elsewhere.thinking == "so it is"


async def test_reasoning_stays_behind_when_a_call_that_it_led_to_is_left_out() -> None:
    async with world() as here:
        first = await here.ask(user())
        reply, result, _ = exchange(first)
        calls = reply.tool_calls or []
        second = await here.ask(user(), msgspec.structs.replace(reply, tool_calls=calls[:1]), result)

    assert second.thinking == "so it is"


async def test_an_answer_that_was_cut_is_length_and_its_call_is_dropped() -> None:
    async with world() as here:
        cut = await here.ask(user(), model="cut")
        filtered = await here.ask(user(), model="filtered")

    assert (cut.text, cut.finish_reason, cut.calls, cut.truncated) == ("half", "length", (), True)
    assert (filtered.text, filtered.finish_reason) == ("half", "content_filter")


@pytest.mark.parametrize(
    ("model", "kind", "words"), [("busy", "server_error", "overloaded"), ("broken", "transport", "broke")]
)
async def test_faults_in_the_stream_are_errors_that_are_tried_again(model: str, kind: str, words: str) -> None:
    async with world() as here:
        with pytest.raises(ModelError, match=words) as caught:
            await here.ask(user(), model=model)

    assert (caught.value.kind, caught.value.retryable) == (kind, True)


CALL: Final = {"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}"}
RESULT: Final = {"type": "function_call_output", "call_id": "c", "output": "x"}
GO: Final = {"role": "user", "content": "go"}


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([GO, CALL], "no result for the call 'c'"),
        ([GO, RESULT], "a result for the call 'c', which is not open"),
        ([GO, CALL, RESULT, CALL, RESULT], "the call id 'c' was used before"),
        ([GO, {"type": "reasoning", "id": "rs_1", "summary": []}, CALL, RESULT], "'input[1]' could not be verified"),
        ([{"role": "user"}], "'input[0].content'"),
        ([{"type": "audio"}], "Invalid enum value 'audio'"),
        ([GO, {**CALL, "name": "a b"}], "Invalid 'input[1].name'"),
    ],
)
async def test_input_that_a_strict_provider_refuses_is_refused(items: list[dict[str, Any]], problem: str) -> None:
    async with world() as here:
        refused = await here.post(model="o3", input=items, stream=True)

    assert refused.status_code == 400
    assert problem in refused.json()["error"]["message"]


# --- images


def input_image(url: str | None, role: str = "user") -> dict[str, Any]:
    parts = [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": url}]
    return {"type": "message", "role": role, "content": parts}


async def test_images_are_seen_by_the_model_and_a_refused_one_is_named_by_its_place() -> None:
    pictures, broken = sent(*IMAGES.values()), b"RIFF1234JUNK"
    bad = ImageRef(media_type="image/webp", size_bytes=12, sha256=hashlib.sha256(broken).hexdigest())
    known = {image.sha256: image.data for image in pictures} | {bad.sha256: broken}
    message = MessageRecord(role="user", content="look", images=[image.ref for image in pictures])
    async with world() as here:
        answer = await here.ask(message, model="sees", images=known)
        later = MessageRecord(role="user", content="and this?", images=[message.images[0], bad])
        with pytest.raises(ModelError) as caught:
            await here.ask(message, *exchange(answer), later, model="sees", images=known)

    told = ", ".join(f"{media_type} ({len(data)} bytes)" for media_type, data in IMAGES.items())
    assert answer.text == f"I saw {told}."
    assert caught.value.images == (bad.sha256,)


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (input_image("http://example.com/a.png"), "only data URLs with base64"),
        (input_image("data:image/png;base64,####"), "not valid base64"),
        (input_image(f"data:image/bmp;base64,{b64encode(b'BM a bitmap').decode()}"), "unsupported image"),
        (input_image(None), "image_url"),
        (input_image(f"data:image/png;base64,{b64encode(PNG).decode()}", "assistant"), "only allowed in messages"),
    ],
)
async def test_an_image_that_is_none_is_refused(item: dict[str, Any], problem: str) -> None:
    async with world() as here:
        answer = await here.post(model="sees", input=[item])

    assert answer.status_code == 400
    assert problem in answer.json()["error"]["message"]
