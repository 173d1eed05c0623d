"""What each dialect sends: reasoning efforts, reasoning that goes back, and answers asked for in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from peen.model.chatwire import ListedModel
from peen.model.dialects import dialect_of
from peen.model.effort import fit, zai_levels
from peen.model.openai import base_url_of
from peen.model.openaimodels import by_preference
from peen.model.reasoning import items_for, kept_reasoning
from peen.model.stream import ModelRequest
from peen.wire.launch import UpstreamConfig
from peen.wire.model import ToolDefinition
from peen.wire.records import MessageRecord, ToolCallRecord

USER = MessageRecord(role="user", content="go")
TOOL = ToolDefinition("readFile", "Read.", msgspec.Raw(b'{"type":"object"}'))
ITEM = b'{"type":"reasoning" ,"id":"rs_1", "encrypted_content":"x\\/y"}'  # bytes that no encoder would write
ZAI = UpstreamConfig(name="z", type="zai-coding", api_key_env="K")


def config(**fields: Any) -> UpstreamConfig:
    return UpstreamConfig(name="up", type="openai", base_url="http://p/v1", **fields)


def body_of(upstream: UpstreamConfig, *messages: MessageRecord, effort: str | None = None, **fields: Any) -> bytes:
    request = ModelRequest(**{"model_id": "m", "system": "be good", "messages": messages or (USER,), **fields})
    is_openai = upstream.base_url == "https://api.openai.com/v1"
    return dialect_of(upstream, is_openai=is_openai).bodies.body(request, effort)


def sent(upstream: UpstreamConfig, *messages: MessageRecord, **fields: Any) -> Any:
    return msgspec.json.decode(body_of(upstream, *messages, **fields))


def reply(*calls: str, text: str = "", kept: bytes | None = None, model: str = "m", **fields: Any) -> MessageRecord:
    items = [] if kept is None else msgspec.json.decode(kept, type=list[msgspec.Raw])
    records = [ToolCallRecord(id=call, name="readFile", arguments=msgspec.Raw(b'{"p":1}')) for call in calls]
    return MessageRecord(
        role="assistant", content=text, tool_calls=records or None,
        provider_reasoning=kept_reasoning(items, upstream="up", model=model), **fields,
    )  # fmt: skip


def results(*calls: str) -> Sequence[MessageRecord]:
    return [MessageRecord(role="tool", content=f"result {call}", tool_call_id=call) for call in calls]


# --- Responses ------------------------------------------------------------------------------------------------------


def test_a_request_of_the_responses_api_keeps_nothing_at_the_provider() -> None:
    messages = [
        USER,
        reply("a", text="I read."),
        *results("a"),
        MessageRecord(role="system", content="stopped"),
        reply(text="well"),
        USER,
    ]

    body = sent(config(api="responses"), *messages, effort="high", tools=(TOOL,), max_output_tokens=9)

    assert body == {
        "model": "m",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "high"},
        "max_output_tokens": 9,
        "instructions": "be good",
        "tools": [
            {
                "type": "function",
                "name": "readFile",
                "description": "Read.",
                "parameters": {"type": "object"},
                "strict": False,
            }
        ],
        "input": [
            {"type": "message", "role": "user", "content": "go"},
            {"type": "message", "role": "assistant", "content": "I read."},
            {"type": "function_call", "call_id": "a", "name": "readFile", "arguments": '{"p":1}'},
            {"type": "function_call_output", "call_id": "a", "output": "result a"},
            {"type": "message", "role": "user", "content": "<system>\nstopped\n</system>"},
            {"type": "message", "role": "assistant", "content": "well"},
            {"type": "message", "role": "user", "content": "go"},
        ],
    }


@pytest.mark.parametrize(
    ("base_url", "model", "keeps", "reasoning"),
    [
        ("https://api.openai.com/v1", "gpt-5", True, {"summary": "auto"}),
        ("https://api.openai.com/v1", "gpt-4o", False, None),
        ("http://p/v1", "qwen", True, None),
        ("http://p/v1", "openai/o3", True, {"summary": "auto"}),
    ],
)
def test_only_models_that_reason_are_asked_for_reasoning(
    base_url: str, model: str, keeps: bool, reasoning: dict[str, str] | None
) -> None:
    upstream = UpstreamConfig(name="up", type="openai", base_url=base_url, api="responses")

    body = sent(upstream, model_id=model)

    assert ("include" in body, body.get("reasoning")) == (keeps, reasoning)


def test_kept_reasoning_goes_back_byte_for_byte_in_its_place() -> None:
    kept = b"[" + ITEM + b',"message",' + ITEM.replace(b"rs_1", b"rs_2") + b',"call","call"]'

    body = body_of(config(api="responses"), USER, reply("a", "b", text="Hi", kept=kept), *results("a", "b"))

    assert body.count(ITEM) == 1
    inputs = msgspec.json.decode(body)["input"]
    assert [item.get("id") or item.get("call_id") or item["role"] for item in inputs] == [
        "user", "rs_1", "assistant", "rs_2", "a", "b", "a", "b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "model_id", "upstream"),
    [
        (reply("a", kept=b"[" + ITEM + b',"call"]', model="other"), "m", config(api="responses")),
        (reply("a", kept=b"[" + ITEM + b',"call"]'), "other", config(api="responses")),
        (
            reply("a", kept=b"[" + ITEM + b',"call"]'),
            "m",
            UpstreamConfig(name="another", type="openai", base_url="http://p", api="responses"),
        ),
        (reply("a", kept=b"[" + ITEM + b',"call","call"]'), "m", config(api="responses")),  # a call was left out
        (reply("a", text="more", kept=b"[" + ITEM + b',"call"]'), "m", config(api="responses")),
        (reply("a", kept=b"[" + ITEM + b',"call"]'), "m", config()),
        (
            reply("a", kept=b'["call",{"type":"thinking","signature":"rs_1"}]'),  # it once spoke another dialect
            "m",
            config(api="responses"),
        ),
        (reply("a", thinking="for display"), "m", config(api="responses")),
        (reply("a", thinking="for display"), "m", config()),
    ],
)
def test_reasoning_goes_nowhere_else_and_never_as_text(
    answer: MessageRecord, model_id: str, upstream: UpstreamConfig
) -> None:
    body = body_of(upstream, USER, answer, *results("a"), model_id=model_id)

    assert b'encrypted_content":' not in body
    assert b"rs_1" not in body
    assert b"for display" not in body


def test_one_conversation_under_two_models_has_two_requests() -> None:
    bodies = dialect_of(config(api="responses"), is_openai=False).bodies
    messages = [USER, reply("a", kept=b"[" + ITEM + b',"call"]'), *results("a")]

    def body(model_id: str) -> bytes:
        return bodies.body(ModelRequest(model_id=model_id, system="", messages=messages), None)

    assert [ITEM in body(model_id) for model_id in ("m", "other", "m")] == [True, False, True]


def test_what_another_release_kept_is_not_sent() -> None:
    odd = MessageRecord(role="assistant", content="x", provider_reasoning=msgspec.Raw(b'{"version":9}'))

    assert items_for(odd, upstream="up", model="m") == []


# --- one piece ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_answer_may_be_asked_for_in_one_piece(api: str) -> None:
    body = sent(config(api=api, stream=False))

    assert body["stream"] is False
    assert "stream_options" not in body


# --- Z.ai -----------------------------------------------------------------------------------------------------------


def test_zai_always_thinks_and_gets_its_own_thinking_back() -> None:
    messages = [
        USER,
        reply("a", thinking="hm", model="z/glm-5.3"),
        *results("a"),
        reply(text="well", thinking="hm hm"),
        USER,
    ]
    messages[1] = msgspec.structs.replace(messages[1], model="z/glm-5.3")
    messages[3] = msgspec.structs.replace(messages[3], model="z/other")

    body = sent(ZAI, *messages, model_id="glm-5.3", effort="max")

    assert body["thinking"] == {"type": "enabled", "clear_thinking": False}
    assert body["reasoning_effort"] == "max"
    assert [message.get("reasoning_content") for message in body["messages"]] == [None, None, "hm", None, None, None]
    assert "hm" not in [message["content"] for message in body["messages"]]


@pytest.mark.parametrize(
    ("model", "requested", "used"),
    [
        ("glm-5.3", "minimal", ("low", "below_model_minimum")),
        ("glm-5.3", "low", ("low", None)),
        ("glm-5.3", "high", ("high", None)),
        ("glm-5.3", "max", ("max", None)),
        ("GLM-5.3", "xhigh", ("high", "not_a_model_level")),
        ("glm-5.3-flash", "high", (None, "model_does_not_take_reasoning_effort")),
        ("glm-5.30", "high", (None, "model_does_not_take_reasoning_effort")),
    ],
)
def test_efforts_of_zais_models(model: str, requested: str, used: tuple[str | None, str | None]) -> None:
    assert fit(requested, zai_levels(model)) == used


def test_each_type_has_its_address() -> None:
    assert base_url_of(ZAI) == "https://api.z.ai/api/coding/paas/v4"
    assert base_url_of(UpstreamConfig(name="o", type="openai")) == "https://api.openai.com/v1"
    assert base_url_of(config()) == "http://p/v1"


def test_the_responses_api_reaches_models_that_cannot_chat() -> None:
    listed = [ListedModel(id=name, created=1) for name in ("gpt-5-codex", "gpt-5", "gpt-5-pro", "whisper-1")]

    assert [model.id for model in by_preference(listed)] == ["gpt-5"]
    assert [model.id for model in by_preference(listed, responses=True)] == ["gpt-5", "gpt-5-codex", "gpt-5-pro"]
