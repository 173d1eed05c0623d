from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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
from peen.model.script import load_script, parse_script
from peen.model.scripted import ScriptedUpstream
from peen.model.sse import SseParser
from peen.model.stream import ModelRequest, StreamEvent, TextDelta
from peen.testing.upstream import Options, UpstreamServer
from peen.testing.upstream.openai import OpenAiWire
from peen.wire.launch import UpstreamConfig
from peen.wire.records import ImageRef, MessageRecord, Usage

SCRIPTS: Final = Path(__file__).parent.parent.parent / "harness_examples" / "scripts"
TALK: Final = """
models:
  m:
    contextWindow: 4096
    turns:
      - rounds:
          - thinking: hm
            text: "größer 🙂"
            chunk: 3
            calls: [{name: t, arguments: {a: 1}}, {name: t, arguments: "{"}]
          - {text: "It said {lastResult}.", usage: {prompt: 9, completion: 2, cacheRead: 4, reasoning: 1}}
      - rounds: [{text: second turn}]
"""
DEFAULT: Final = Options()
GO: Final = {"role": "user", "content": "go"}
CALL: Final = {"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}
CALLING: Final = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: Final = {"role": "tool", "tool_call_id": "c", "content": "x"}


@dataclass
class World:
    """A running server, a plain HTTP client of it, and our adapter."""

    url: str
    http: httpx.AsyncClient
    adapter: OpenAiUpstream

    async def ask(self, *messages: MessageRecord, model: str = "m") -> Answer:
        fold = Fold("made")
        async with self.adapter.stream(ModelRequest(model_id=model, system="be good", messages=messages)) as events:
            async for event in events:
                fold.add(event)
        return fold.finish()

    async def post(self, *messages: dict[str, Any], **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json={"model": "m", "messages": messages, **fields})

    async def log(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.http.get("/dev/requests")).json()
        return found


@asynccontextmanager
async def world(script: str = TALK, options: Options = DEFAULT) -> AsyncIterator[World]:
    played = ScriptedUpstream("dev", parse_script(script, source="s.yaml"), with_demo=False)
    server = UpstreamServer(played, OpenAiWire(), SystemEntropy(), options)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(partial(trio.serve_listeners, server.serve, listeners))
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        config = UpstreamConfig(name="dev", type="openai", base_url=f"{url}/v1")
        adapter = OpenAiUpstream(config, options.api_key, DirectTransport(), SystemEntropy())
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            yield World(url, http, adapter)
        await adapter.aclose()
        nursery.cancel_scope.cancel()


def user(text: str = "go") -> MessageRecord:
    return MessageRecord(role="user", content=text)


def spoken(answer: Answer) -> MessageRecord:
    return MessageRecord(role="assistant", content=answer.text, tool_calls=list(answer.calls) or None)


def results(answer: Answer) -> list[MessageRecord]:
    return [MessageRecord(role="tool", content=call.id, tool_call_id=call.id) for call in answer.calls]


async def failure(world: World, *, model: str = "m") -> ModelError:
    with pytest.raises(ModelError) as caught:
        await world.ask(user(), model=model)
    return caught.value


@pytest.mark.parametrize("byte_by_byte", [False, True])
@pytest.mark.parametrize("crlf", [False, True])
async def test_a_conversation_plays_over_the_wire_as_it_is_written(crlf: bool, byte_by_byte: bool) -> None:
    async with world(options=Options(crlf=crlf, byte_by_byte=byte_by_byte)) as here:
        first = await here.ask(user())
        messages = [user(), spoken(first), *results(first)]
        second = await here.ask(*messages)
        third = await here.ask(*messages, spoken(second), user("next"), user("<skill>\nname: x"))

    assert (first.text, first.thinking, first.finish_reason) == ("größer 🙂", "hm", "tool_calls")
    assert [(call.id, bytes(call.arguments)) for call in first.calls] == [
        ("call_0_0_0", b'{"a":1}'),
        ("call_0_0_1", b'"{"'),
    ]
    assert (second.text, second.finish_reason) == ("It said call_0_0_1.", "stop")
    assert second.usage == Usage(prompt=9, completion=2, cache_read=4, reasoning=1)
    assert third.text == "second turn"


async def test_an_answer_that_is_not_streamed_is_one_document() -> None:
    async with world() as here:
        document = (await here.post(GO)).json()

    choice = document["choices"][0]
    assert (document["object"], document["model"], choice["finish_reason"]) == ("chat.completion", "m", "tool_calls")
    assert choice["message"]["content"] == "größer 🙂"
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == ['{"a":1}', '"{"']
    assert document["usage"]["total_tokens"] == document["usage"]["prompt_tokens"] + 5


async def test_usage_comes_only_to_those_who_ask_for_it() -> None:
    async with world() as here:
        plain = await here.post(GO, stream=True)
        asked = await here.post(GO, stream=True, stream_options={"include_usage": True})

    chunks = [msgspec.json.decode(event.data) for event in SseParser().feed(asked.content)[:-1]]
    assert b'"usage"' not in plain.content
    assert [chunk["usage"] is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["choices"] == []
    assert asked.content.endswith(b"data: [DONE]\n\n")


async def test_models_come_in_the_scripts_order_with_their_windows() -> None:
    async with world() as here:
        found = await here.adapter.discover()

    assert [(info.name, info.context_window_tokens) for info in found] == [("dev/m", 4096)]


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "messages: must not be empty"),
        ([GO, CALLING], "no result for the call 'c'"),
        ([GO, CALLING, GO], "a user message where the result of the call 'c' belongs"),
        ([GO, RESULT], "a result for the call 'c', which is not open"),
        ([GO, CALLING, RESULT, RESULT], "a result for the call 'c', which is not open"),
        ([GO, CALLING, RESULT, CALLING, RESULT], "the call id 'c' was used before"),
        ([GO, {"role": "tool", "content": "x"}], "'messages[1].tool_call_id'"),
        ([{"role": "user", "content": " "}], "an empty user message"),
        ([{"role": "user", "content": [{"type": "text", "text": ""}]}], "a text part must not be empty"),
        ([GO, {"role": "assistant", "content": ""}], "an empty assistant message"),
        ([GO, {"role": "assistant", "content": "x", "tool_calls": []}], "'messages[1].tool_calls': empty array"),
        ([{"role": "user", "content": None}], "expected a string, got null"),
        ([GO, {"role": "system", "content": "x"}, GO], "System message must be at the beginning."),
        ([{"role": "clown", "content": "x"}], "Invalid enum value 'clown'"),
        ([GO, {**CALLING, "tool_calls": [{**CALL, "function": {"name": "a b", "arguments": "{}"}}]}], "'a b'"),
        ([GO, {**CALLING, "tool_calls": [{**CALL, "function": {"name": "t", "arguments": {}}}]}], "Expected `str`"),
    ],
)
async def test_a_conversation_that_a_strict_provider_refuses_is_refused(
    messages: list[dict[str, Any]], problem: str
) -> None:
    async with world() as here:
        refused = await here.post(*messages, stream=True)

    assert refused.status_code == 400
    assert problem in refused.json()["error"]["message"]
    assert refused.json()["error"]["type"] == "invalid_request_error"


async def test_what_the_service_says_in_the_middle_is_read_as_that_and_begins_no_turn() -> None:
    note = MessageRecord(role="system", content="the last turn\nwas stopped")
    async with world() as here:
        first = await here.ask(user())
        second = await here.ask(user(), spoken(first), *results(first), note)

    assert second.text == "It said call_0_0_1."


@pytest.mark.parametrize("tools", [True, False])
async def test_reasoning_is_missed_only_where_it_is_wanted_and_there_are_tools(tools: bool) -> None:
    more = {"tools": [{"type": "function", "function": {"name": "t"}}]} if tools else {}
    async with world(options=Options(wants_reasoning=True)) as here:
        begun = await here.post(GO, **more)
        missed = await here.post(GO, CALLING, RESULT, **more)
        empty = await here.post(GO, {**CALLING, "reasoning_content": ""}, RESULT, **more)

    assert (begun.status_code, missed.status_code, empty.status_code) == (200, 400 if tools else 200, 200)
    if tools:
        assert "must be passed back" in missed.json()["error"]["message"]


async def test_without_strict_mode_an_open_call_passes() -> None:
    async with world(options=Options(strict=False)) as here:
        answered = await here.post(GO, CALLING)

    assert answered.json()["choices"][0]["message"]["content"] == "It said ."


@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        ({"name": "a.b"}, "'a.b'"),
        ({"name": "t", "parameters": {"type": "string"}}, "schema must be of 'type: \"object\"'"),
    ],
)
async def test_a_tool_that_a_provider_refuses_is_refused(tool: dict[str, Any], problem: str) -> None:
    async with world() as here:
        refused = await here.post(GO, tools=[{"type": "function", "function": tool}])

    assert (refused.status_code, problem in refused.json()["error"]["message"]) == (400, True)


async def test_keys_paths_models_and_the_end_of_a_script_are_checked() -> None:
    async with world(options=Options(api_key="k")) as here:
        without = await here.post(GO)
        here.http.headers["authorization"] = "Bearer k"
        path = await here.http.get("/v1/other")
        model = await here.post(GO, model="gone")
        ended = await here.post(GO, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"})
        body = await here.http.post("/v1/chat/completions", content=b"{")
        answered = await here.ask(user())

    statuses = [found.status_code for found in (without, path, model, ended, body)]
    assert statuses == [401, 404, 404, 400, 400]
    assert without.json()["error"]["code"] == "invalid_api_key"
    assert ended.json()["error"]["code"] == "script_ended"
    assert answered.text == "größer 🙂"


# --- faults ---------------------------------------------------------------------------------------------------------


def script_text(path: Path) -> str:
    return path.read_text()


def faulty(fault: str, **fields: str) -> str:
    more = "".join(f", {name}: {value}" for name, value in fields.items())
    return f"models: {{m: {{turns: [{{rounds: [{{text: abcdef, chunk: 2, fault: {{{fault}}}{more}}}]}}]}}}}"


async def test_a_status_comes_with_its_wait_and_the_next_attempt_succeeds() -> None:
    async with world(faulty("kind: status, status: 429, retryAfter: 0.2, message: slow down, times: 1")) as here:
        refused = await failure(here)
        answered = await here.ask(user())

    assert (refused.kind, refused.http_status, refused.retry_after_ms) == ("rate_limited", 429, 200)
    assert str(refused).endswith("slow down")
    assert answered.text == "abcdef"


@pytest.mark.parametrize("byte_by_byte", [False, True])
@pytest.mark.parametrize("after", [0, 2])
async def test_a_cut_closes_the_socket_behind_the_pieces(after: int, byte_by_byte: bool) -> None:
    script = faulty(f"kind: cut, afterPieces: {after}, times: 1")
    async with world(script, Options(byte_by_byte=byte_by_byte)) as here:
        cut = await failure(here)
        answered = await here.ask(user())

    assert (cut.kind, cut.retryable) == ("transport", True)
    assert answered.text == "abcdef"


@pytest.mark.parametrize("after", [0, 2])
async def test_an_error_comes_inside_the_stream(after: int) -> None:
    async with world(faulty(f"kind: error, afterPieces: {after}, message: overloaded, times: 1")) as here:
        broken = await failure(here)
        answered = await here.ask(user())

    assert (str(broken), broken.kind) == ("the provider broke off its answer: overloaded", "server_error")
    assert answered.text == "abcdef"


@pytest.mark.parametrize(("after", "begins"), [(0, False), (2, True)])
async def test_silence_keeps_the_socket_until_the_client_leaves(after: int, begins: bool) -> None:
    async with world(faulty(f"kind: silence, afterPieces: {after}, times: 1")) as here:
        seen: list[StreamEvent] = []
        with trio.move_on_after(0.2):
            async with here.adapter.stream(ModelRequest(model_id="m", system="", messages=[user()])) as events:
                async for event in events:
                    seen.append(event)  # noqa: PERF401 - the iteration does not end
        answered = await here.ask(user())
        log = await here.log()

    assert seen == ([TextDelta("ab"), TextDelta("cd")] if begins else [])
    assert answered.text == "abcdef"
    assert [request["closedEarly"] for request in log["requests"]] == [True, False]
    assert [request["status"] for request in log["requests"]] == [200 if begins else 0, 200]
    assert log["openStreams"] == 0


async def test_pieces_come_one_by_one_and_a_client_that_leaves_is_noticed() -> None:
    async with world(faulty("kind: cut, afterPieces: 99", pieceDelayMs="40")) as here:
        began = trio.current_time()
        async with here.adapter.stream(ModelRequest(model_id="m", system="", messages=[user()])) as events:
            first = await anext(events)
            during = await here.log()
        took = trio.current_time() - began
        with trio.fail_after(5):
            while (log := await here.log())["openStreams"]:  # the answer itself is what takes the time
                pass

    assert first == TextDelta("ab")
    assert during["openStreams"] == 1
    assert took < 0.2
    assert log["requests"][0]["closedEarly"] is True


async def test_faults_reach_those_who_do_not_stream_too() -> None:
    async with world(faulty("kind: error, message: overloaded, times: 1")) as here:
        broken = await here.post(GO)
        whole = await here.post(GO)
    async with world(faulty("kind: cut")) as here:
        with pytest.raises(httpx.RemoteProtocolError):
            await here.post(GO)

    assert (broken.status_code, broken.json()["error"]["message"]) == (500, "overloaded")
    assert whole.json()["choices"][0]["message"]["content"] == "abcdef"


# --- connections ----------------------------------------------------------------------------------------------------


async def test_rounds_share_a_connection_and_the_log_says_so() -> None:
    async with world() as here:
        first = await here.ask(user())
        await here.ask(user(), spoken(first), *results(first))
        log = await here.log()

    assert [(request["path"], request["connection"]) for request in log["requests"]] == [
        ("/v1/chat/completions", 1),
        ("/v1/chat/completions", 1),
    ]


async def test_bytes_that_are_no_http_end_their_connection_and_nothing_else() -> None:
    async with world() as here:
        port = int(here.url.rpartition(":")[2])
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"\x16\x03\x01\x00 what is this\r\n\r\n")
            with trio.fail_after(5):
                assert await stream.receive_some() == b""
        answered = await here.ask(user())

    assert answered.text == "größer 🙂"


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.yaml")), ids=lambda path: path.stem)
async def test_every_example_script_is_served(path: Path) -> None:
    models = list(load_script(path).models)
    async with world(script_text(path)) as here:
        listed = await here.adapter.discover()
        answered = await here.post(GO, model=models[0])

    assert [info.model_id for info in listed] == models
    assert answered.status_code in (200, 429)


# --- images


def image_part(url: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": url}]}


def data_url(data: bytes, media_type: str = "image/png") -> dict[str, str]:
    return {"url": f"data:{media_type};base64,{b64encode(data).decode()}"}


SEES: Final = "models: {m: {turns: [{rounds: [{text: 'I saw {images}.'}]}], repeatLastTurn: true}}"


async def test_the_model_is_told_type_and_size_of_every_image() -> None:
    pictures = sent(*IMAGES.values())
    message = MessageRecord(role="user", content="look", images=[image.ref for image in pictures])
    asked = ModelRequest(
        model_id="m", system="", messages=[message], images={image.sha256: image.data for image in pictures}
    )
    async with world(SEES) as here:
        fold = Fold("made")
        async with here.adapter.stream(asked) as events:
            async for event in events:
                fold.add(event)

    told = ", ".join(f"{media_type} ({len(data)} bytes)" for media_type, data in IMAGES.items())
    assert fold.finish().text == f"I saw {told}."


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (image_part({"url": "http://example.com/a.png"}), "only data URLs with base64"),
        (image_part({"url": "data:image/png;base64,####"}), "not valid base64"),
        (image_part({"url": "data:image/png;base64,iVBORw0KGg"}), "not valid base64"),
        (image_part(data_url(b"BM a bitmap", "image/bmp")), "unsupported image"),
        (image_part(data_url(PNG + bytes(5_242_880))), "exceeds the maximum"),
        (image_part(None), "image_url"),
        ({**image_part(data_url(PNG)), "role": "assistant"}, "only allowed in messages with role 'user'"),
        ({"role": "user", "content": [{"type": "picture"}]}, "Invalid enum value"),
    ],
)
async def test_an_image_that_is_none_is_refused(message: dict[str, Any], problem: str) -> None:
    async with world(SEES) as here:
        answer = await here.post(GO, message)

    assert answer.status_code == 400
    assert problem in answer.json()["error"]["message"]


async def test_the_place_of_a_refused_image_is_understood_by_our_adapter() -> None:
    broken = b"RIFF1234JUNK"
    image = ImageRef(media_type="image/webp", size_bytes=12, sha256=hashlib.sha256(broken).hexdigest())
    message = MessageRecord(role="user", content="look", images=[image])
    asked = ModelRequest(model_id="m", system="be good", messages=[message], images={image.sha256: broken})
    async with world(SEES) as here:
        with pytest.raises(ModelError) as caught:
            async with here.adapter.stream(asked):
                pass

    assert caught.value.images == (image.sha256,)
