"""`peen dev upstream --wire anthropic`: what it refuses, and that our own adapter understands what it says."""

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
from peen.model.anthropic import AnthropicUpstream
from peen.model.direct import DirectTransport
from peen.model.fold import Answer, Fold
from peen.model.reasoning import kept_reasoning
from peen.model.script import parse_script
from peen.model.scripted import ScriptedUpstream
from peen.model.stream import ModelRequest
from peen.testing.upstream import Options, UpstreamServer
from peen.testing.upstream.anthropic import AnthropicWire
from peen.testing.upstream.anthropicwire import signature_of
from peen.wire.launch import UpstreamConfig
from peen.wire.model import ToolDefinition
from peen.wire.records import ImageRef, MessageRecord, Usage

TALK: Final = """
models:
  claude-sonnet-4-5:
    contextWindow: 4096
    turns:
      - rounds:
          - thinking: hm
            text: "größer 🙂"
            chunk: 3
            calls: [{name: t, arguments: {a: 1}}, {name: t, arguments: "{"}]
          - {text: "{lastResult}!", usage: {prompt: 9, completion: 2, cacheRead: 4, cacheWrite: 1, reasoning: 1}}
      - rounds: [{text: second turn}]
  sees: {turns: [{rounds: [{text: "I saw {images}.", repeat: 2}]}], repeatLastTurn: true}
  silent: {turns: [{rounds: [{text: abc, fault: {kind: error, afterPieces: 0, message: overloaded}}]}]}
  busy: {turns: [{rounds: [{text: abc, fault: {kind: status, status: 529, retryAfter: 2}}]}]}
"""
MODEL: Final = "claude-sonnet-4-5"
DEFAULT: Final = Options()
TOOL: Final = ToolDefinition("t", "", msgspec.Raw(b'{"type":"object"}'))
GO: Final = {"role": "user", "content": "go"}
CALL: Final = {"type": "tool_use", "id": "c", "name": "t", "input": {}}
CALLING: Final = {"role": "assistant", "content": [CALL]}
RESULT: Final = {"type": "tool_result", "tool_use_id": "c", "content": "x"}
RETURNED: Final = {"role": "user", "content": [RESULT]}
SIGNED: Final = {"type": "thinking", "thinking": "hm", "signature": signature_of("hm")}


@dataclass
class World:
    """A running server, a plain HTTP client of it, and our adapter."""

    http: httpx.AsyncClient
    adapter: AnthropicUpstream

    async def ask(self, *messages: MessageRecord, model: str = MODEL, effort: str | None = None) -> Answer:
        fold = Fold("made")
        request = ModelRequest(
            model_id=model, system="be good", messages=messages, tools=(TOOL,), reasoning_effort=effort
        )
        async with self.adapter.stream(request) as events:
            async for event in events:
                fold.add(event)
        return fold.finish()

    async def post(self, *messages: dict[str, Any], **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "max_tokens": 4096, "messages": messages, **fields}
        return await self.http.post("/v1/messages", json=body)


@asynccontextmanager
async def world(options: Options = DEFAULT, *, stream: bool = True) -> AsyncIterator[World]:
    played = ScriptedUpstream("dev", parse_script(TALK, source="s.yaml"), with_demo=False)
    server = UpstreamServer(played, AnthropicWire(), SystemEntropy(), options)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(partial(trio.serve_listeners, server.serve, listeners))
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        config = UpstreamConfig(name="dev", type="anthropic", base_url=url, stream=stream)
        async with httpx.AsyncClient(base_url=url) as client:
            adapter = AnthropicUpstream(config, "k", DirectTransport(), SystemEntropy())
            yield World(client, adapter)
            await adapter.aclose()
        nursery.cancel_scope.cancel()


def user(text: str) -> MessageRecord:
    return MessageRecord(role="user", content=text)


def stored(answer: Answer) -> list[MessageRecord]:
    """The messages that an answer leaves behind, with a result for each call."""
    reply = MessageRecord(
        role="assistant",
        content=answer.text,
        tool_calls=list(answer.calls) or None,
        provider_reasoning=kept_reasoning(answer.reasoning, upstream="dev", model=MODEL),
    )
    results = [MessageRecord(role="tool", content=f"r{i}", tool_call_id=c.id) for i, c in enumerate(answer.calls)]
    return [reply, *results]


@pytest.mark.parametrize("options", [DEFAULT, Options(byte_by_byte=True), Options(crlf=True)])
async def test_our_adapter_talks_with_it_over_turns_and_rounds(options: Options) -> None:
    async with world(options) as own:
        first = await own.ask(user("go"), effort="low")
        messages = [user("go"), *stored(first)]
        second = await own.ask(*messages, effort="low")
        messages += [*stored(second), MessageRecord(role="system", content="note"), user("again")]
        third = await own.ask(*messages, effort="low")

    assert (first.text, first.thinking, first.finish_reason) == ("größer 🙂", "hm", "tool_use")
    assert [(call.name, bytes(call.arguments)) for call in first.calls] == [("t", b'{"a":1}'), ("t", b'"{"')]
    assert [msgspec.json.decode(item) for item in first.reasoning] == [SIGNED]
    assert (second.text, second.finish_reason) == ("r1!", "end_turn")
    assert second.usage == Usage(prompt=9, completion=2, cache_read=4, cache_write=1, reasoning=1)
    assert third.text == "second turn"


async def test_an_answer_that_is_not_streamed_is_the_same() -> None:
    async with world(stream=False) as own:
        first = await own.ask(user("go"))
        second = await own.ask(user("go"), *stored(first))

    assert (first.text, first.thinking, len(first.calls), len(first.reasoning)) == ("größer 🙂", "hm", 2, 1)
    assert (second.text, second.usage.prompt) == ("r1!", 9)


async def test_models_are_listed_with_their_window() -> None:
    async with world() as own:
        models = await own.adapter.discover()

    assert (models[0].model_id, models[0].context_window_tokens) == (MODEL, 4096)
    assert len(models) == 4


@pytest.mark.parametrize(("model", "status"), [("silent", None), ("busy", 529)])
async def test_an_overloaded_provider_says_so_with_a_status_or_in_the_stream(model: str, status: int | None) -> None:
    async with world() as own:
        with pytest.raises(ModelError) as refused:
            await own.ask(user("go"), model=model)

    error = refused.value
    assert (error.kind, error.retryable, error.http_status) == ("server_error", True, status)
    assert error.retry_after_ms == (None if status is None else 2000)


REFUSED: Final[dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]]] = {
    "no messages": ([], {}, "at least one"),
    "an answer first": ([CALLING, RETURNED], {}, "must alternate"),
    "two of a role": ([GO, GO], {}, "must alternate"),
    "an answer last": ([GO, {"role": "assistant", "content": "x"}], {}, "prefill"),
    "a system message": ([GO, {"role": "system", "content": "x"}], {}, "role"),
    "a call without result": ([GO, CALLING, GO], {}, "without `tool_result` blocks immediately after: c"),
    "a result without call": ([GO, {"role": "assistant", "content": "x"}, RETURNED], {}, "unexpected `tool_use_id`"),
    "a result at the beginning": ([RETURNED], {}, "unexpected `tool_use_id`"),
    "two results": ([GO, CALLING, {"role": "user", "content": [RESULT, RESULT]}], {}, "single result"),
    "a repeated id": ([GO, CALLING, RETURNED, CALLING, RETURNED], {}, "must be unique: c"),
    "a wrong id": ([GO, {"role": "assistant", "content": [{**CALL, "id": "a:0"}]}, GO], {}, "should match pattern"),
    "a wrong name": ([GO, {"role": "assistant", "content": [{**CALL, "name": "a b"}]}, GO], {}, "should match pattern"),
    "text before the result": (
        [GO, CALLING, {"role": "user", "content": [{"type": "text", "text": "x"}, RESULT]}],
        {},
        "must come first",
    ),
    "an empty block": ([{"role": "user", "content": [{"type": "text", "text": " \n"}]}], {}, "non-whitespace text"),
    "empty text": ([{"role": "user", "content": ""}], {}, "non-whitespace text"),
    "no blocks": ([{"role": "user", "content": []}], {}, "content must not be empty"),
    "an empty block in a result": (
        [GO, CALLING, {"role": "user", "content": [{**RESULT, "content": [{"type": "text", "text": ""}]}]}],
        {},
        "non-whitespace text",
    ),
    "an empty prompt": ([GO], {"system": [{"type": "text", "text": ""}]}, "non-whitespace text"),
    "a call by the user": ([{"role": "user", "content": [CALL]}], {}, "does not belong"),
    "input that is no object": ([GO, {"role": "assistant", "content": [{**CALL, "input": "x"}]}], {}, "input"),
    "changed thinking": (
        [GO, {"role": "assistant", "content": [{**SIGNED, "thinking": "hm!"}, CALL]}, RETURNED],
        {},
        "Invalid `signature`",
    ),
    "a turn that does not begin with thinking": (
        [GO, CALLING, RETURNED],
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        "Expected `thinking`",
    ),
    "a budget that is too small": ([GO], {"thinking": {"type": "enabled", "budget_tokens": 10}}, "budget_tokens"),
    "a budget above the limit": ([GO], {"thinking": {"type": "enabled", "budget_tokens": 5000}}, "must be greater"),
    "no limit": ([GO], {"max_tokens": 0}, "max_tokens"),
    "two tools of a name": ([GO], {"tools": [{"name": "t", "input_schema": {"type": "object"}}] * 2}, "unique"),
    "a tool without a schema": ([GO], {"tools": [{"name": "t", "input_schema": {}}]}, "input_schema"),
    "too many marks": (
        [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}] * 5}],
        {},
        "maximum of 4",
    ),
    "no JSON object": ([GO], {"messages": "x"}, "messages"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_request_that_the_provider_refuses_is_refused(name: str) -> None:
    messages, fields, words = REFUSED[name]
    async with world() as own:
        answer = await own.post(*messages, **fields)

    told = answer.json()
    assert (answer.status_code, told["type"], told["error"]["type"]) == (400, "error", "invalid_request_error")
    assert words in told["error"]["message"]


async def test_a_request_that_is_right_is_answered() -> None:
    thought = {"role": "assistant", "content": [SIGNED, CALL]}
    results = {"role": "user", "content": [{**RESULT, "content": [{"type": "text", "text": "x"}], "is_error": True}]}
    async with world() as own:
        answer = await own.post(GO, thought, results, system="s", thinking={"type": "enabled", "budget_tokens": 1024})

    assert answer.status_code == 200
    assert answer.json()["content"] == [{"type": "text", "text": "x!"}]


# --- images


def image_block(image: bytes, media_type: str = "image/png", **source: Any) -> dict[str, Any]:
    given = {"type": "base64", "media_type": media_type, "data": b64encode(image).decode(), **source}
    return {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image", "source": given}]}


async def test_the_model_is_told_type_and_size_of_every_image() -> None:
    pictures = sent(*IMAGES.values())
    message = MessageRecord(role="user", content="look", images=[image.ref for image in pictures])
    asked = ModelRequest(
        model_id="sees", system="", messages=[message, user("and now?")],
        images={image.sha256: image.data for image in pictures},
    )  # fmt: skip
    async with world() as here:
        fold = Fold("made")
        async with here.adapter.stream(asked) as events:
            async for event in events:
                fold.add(event)

    told = ", ".join(f"{media_type} ({len(data)} bytes)" for media_type, data in IMAGES.items())
    assert fold.finish().text == f"I saw {told}."


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (
            image_block(PNG, "image/jpeg"),
            "messages.0.content.1.image.source.base64.data: the image was specified using",
        ),
        (image_block(PNG, "image/bmp"), "Invalid enum value"),
        (image_block(b"no image"), "unsupported image"),
        (image_block(PNG, data="####"), "not valid base64"),
        (image_block(PNG + bytes(5_242_880)), "exceeds the maximum"),
        ({"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}, "Invalid"),
    ],
)
async def test_an_image_that_is_none_is_refused(message: dict[str, Any], problem: str) -> None:
    async with world() as here:
        answer = await here.post(message)

    assert answer.status_code == 400
    assert problem in answer.json()["error"]["message"]


async def test_an_image_of_the_assistant_is_refused() -> None:
    async with world() as here:
        answer = await here.post(GO, {**image_block(PNG), "role": "assistant"}, GO)

    assert answer.status_code == 400
    assert "does not belong" in answer.json()["error"]["message"]


async def test_an_image_may_stand_alone_and_in_the_result_of_a_call() -> None:
    alone = {"role": "user", "content": image_block(PNG)["content"][1:]}
    result = {"role": "user", "content": [{**RESULT, "content": image_block(PNG)["content"]}]}
    broken = {"role": "user", "content": [{**RESULT, "content": image_block(b"no image")["content"]}]}
    async with world() as here:
        answers = [
            await here.post(alone, model="sees"),
            await here.post(GO, CALLING, result, model="sees"),
            await here.post(GO, CALLING, broken, model="sees"),
        ]

    assert [answer.status_code for answer in answers] == [200, 200, 400]
    assert answers[0].json()["content"][0]["text"] == "I saw image/png (70 bytes)."


async def test_the_place_of_a_refused_image_is_understood_by_our_adapter() -> None:
    broken = b"RIFF1234JUNK"
    image = ImageRef(media_type="image/webp", size_bytes=12, sha256=hashlib.sha256(broken).hexdigest())
    message = MessageRecord(role="user", content="look", images=[image])
    asked = ModelRequest(model_id="sees", system="", messages=[message], images={image.sha256: broken})
    async with world() as here:
        with pytest.raises(ModelError) as caught:
            async with here.adapter.stream(asked):
                pass

    assert caught.value.images == (image.sha256,)
