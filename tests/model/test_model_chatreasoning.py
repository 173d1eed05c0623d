"""Reasoning of chat completions: what of it goes back, to whom, and what follows when a provider does not like that."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from test_model_dialects import USER, config, reply, results, sent
from test_model_openai import DONE, END, TEXT, FakeReply, FakeTransport, ask, request

from peen.entropy import SeededEntropy
from peen.errors import ModelError
from peen.model.openai import OpenAiUpstream
from peen.model.reasoning import REASONING_MISSED, chat_item
from peen.wire.launch import UpstreamConfig
from peen.wire.records import MessageRecord

MISSED = "The `reasoning_content` in the thinking mode must be passed back to the API."
DETAILS: list[dict[str, Any]] = [{"type": "reasoning.encrypted", "data": "x/y", "index": 0, "id": None}]


def kept(field: str, value: object) -> bytes:
    return b"[%b]" % bytes(chat_item(field, value))


def conversation(field: str = "reasoning_content", value: object = "hm é🙂") -> list[MessageRecord]:
    thought = kept(field, value)
    return [USER, reply("a", kept=thought), *results("a"), reply(text="well", kept=thought), USER]


def reasoning(body: Any, field: str = "reasoning_content") -> list[Any]:
    return [message.get(field) for message in body["messages"] if message["role"] == "assistant"]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [(None, ["t", "t"]), ("always", ["t", "t"]), ("calls", ["t", None]), ("never", [None, None])],
)
def test_the_setting_says_which_answers_go_back_with_their_reasoning(setting: str | None, expected: list[Any]) -> None:
    assert reasoning(sent(config(reasoning=setting), *conversation(value="t"))) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [("reasoning_content", "hm é🙂"), ("reasoning_content", ""), ("reasoning", "hm"), ("reasoning_details", DETAILS)],
)
def test_reasoning_goes_back_in_the_field_that_it_came_in(field: str, value: object) -> None:
    body = sent(config(), *conversation(field, value))

    assert reasoning(body, field) == [value, value]
    fields = {name for message in body["messages"] for name in message}
    assert fields == {"role", "content", "tool_calls", "tool_call_id", field}
    assert all("hm" not in str(message["content"]) for message in body["messages"])


def test_it_goes_to_nobody_else() -> None:
    other_model = sent(config(), *conversation(), model_id="other")
    other_upstream = sent(UpstreamConfig(name="else", type="openai", base_url="http://p/v1"), *conversation())
    responses = sent(config(api="responses"), *conversation())

    assert reasoning(other_model) == reasoning(other_upstream) == [None, None]
    assert "hm" not in str(responses)


def test_what_another_dialect_has_kept_stays_away() -> None:
    item = b'[{"type":"reasoning","id":"rs_1","encrypted_content":"x"}]'

    body = sent(config(), USER, reply("a", kept=item), *results("a"))

    assert "rs_1" not in str(body)


def refusal(message: str, status: int = 400) -> FakeReply:
    body = msgspec.json.encode({"error": {"message": message, "type": "invalid_request_error"}})
    return FakeReply(body, status=status, content_type="application/json")


def openai(transport: FakeTransport, **fields: Any) -> OpenAiUpstream:
    return OpenAiUpstream(config(**fields), None, transport, SeededEntropy(1))


async def test_a_provider_that_misses_reasoning_which_nobody_has_gets_an_empty_text_from_then_on() -> None:
    transport = FakeTransport(refusal(MISSED), FakeReply(TEXT, END, DONE), FakeReply(TEXT, END, DONE))
    source = openai(transport)
    messages = [*conversation(value="t"), reply("b"), *results("b")]

    with pytest.raises(ModelError) as caught:
        await ask(source, request(*messages))
    await ask(source, request(*messages))
    await ask(source, request(*messages, reply(text="so"), USER))

    assert caught.value.kind == REASONING_MISSED

    bodies = [body for _, _, _, body in transport.asked]
    assert [reasoning(body) for body in bodies] == [["t", "t", None], ["t", "t", ""], ["t", "t", "", ""]]
    assert transport.open == 0


async def test_what_is_missed_for_all_that_is_an_ordinary_refusal() -> None:
    transport = FakeTransport(refusal(MISSED), refusal(MISSED), refusal(MISSED))
    source = openai(transport)

    for kind in (REASONING_MISSED, "invalid_request", "invalid_request"):
        with pytest.raises(ModelError, match="must be passed back") as caught:
            await ask(source, request(*conversation()))
        assert (caught.value.kind, caught.value.retryable) == (kind, False)
    assert len(transport.asked) == 3


@pytest.mark.parametrize(
    ("setting", "message", "advice"),
    [
        ("never", MISSED, "always"),
        ("calls", MISSED, "always"),
        (None, "messages.2.assistant.reasoning_content: property 'messages.2.assistant' is unsupported", "never"),
        (None, "Extra inputs are not permitted, field: 'messages[8].reasoning', value: 'Now I need'", "never"),
        (None, '[{"loc":["body","messages",5,"assistant","reasoning_content"],"msg":"Extra inputs"}]', "never"),
    ],
)
async def test_a_refusal_that_names_the_field_is_told_with_the_setting(
    setting: str | None, message: str, advice: str
) -> None:
    transport = FakeTransport(refusal(message, status=422 if message.startswith("[") else 400))

    with pytest.raises(ModelError) as caught:
        await ask(openai(transport, reasoning=setting), request(*conversation()))

    assert message in str(caught.value)
    assert str(caught.value).endswith(f'is set by "reasoning" of its upstream: try "{advice}")')
    assert len(transport.asked) == 1


@pytest.mark.parametrize("message", ["reasoning_effort is not supported", "no reasoning about that", "bad model"])
async def test_other_refusals_are_told_as_they_are(message: str) -> None:
    with pytest.raises(ModelError) as caught:
        await ask(openai(FakeTransport(refusal(message))), request(*conversation()))

    assert str(caught.value) == f"the provider answered with status 400: {message}"
