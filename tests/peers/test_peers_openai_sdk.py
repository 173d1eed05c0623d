"""The official `openai` client against `peen dev upstream`: what it understands, a provider would send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import openai
import pytest
from crash_kit import short_directory

from peen.testing.upstream.process import UpstreamProcess

SCRIPT: Final = """
models:
  m:
    turns:
      - rounds:
          - {text: I look., chunk: 2, calls: [{name: readFile, arguments: {path: a}}, {name: listFiles}]}
          - {text: "It said {lastResult}.", usage: {prompt: 9, completion: 2, cacheRead: 4, reasoning: 1}}
  busy: {turns: [{rounds: [{text: now, fault: {kind: status, status: 429, retryAfter: 0.1, times: 1}}]}]}
  cut: {turns: [{rounds: [{text: abcdef, chunk: 2, fault: {kind: cut, afterPieces: 2}}]}]}
  broken: {turns: [{rounds: [{text: abcdef, chunk: 2, fault: {kind: error, afterPieces: 1, message: overloaded}}]}]}
"""
TOOLS: Final = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}
    for name in ("readFile", "listFiles")
]
GO: Final = {"role": "user", "content": "go"}


@pytest.fixture(scope="module")
def script() -> Iterator[Path]:
    with short_directory() as home:
        path = home / "script.yaml"
        path.write_text(SCRIPT)
        yield path


@pytest.fixture(scope="module")
def provider(script: Path) -> Iterator[UpstreamProcess]:
    with UpstreamProcess(script, "--api-key", "right") as running:
        yield running


@pytest.fixture
def client(provider: UpstreamProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=provider.base_url, api_key="right", max_retries=0) as made:
        yield made


def create(client: openai.OpenAI, **fields: Any) -> Any:
    """The client's own types are narrower than what the wire allows, and than what these tests want to send."""
    return client.chat.completions.create(**fields)


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["m", "busy", "cut", "broken"]


def test_an_answer_with_calls_and_the_round_after_it(client: openai.OpenAI) -> None:
    first = create(client, model="m", messages=[GO], tools=TOOLS)
    reply = first.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": call.function.name} for call in reply.tool_calls]
    history = [{"role": "system", "content": "be good"}, GO, reply.model_dump(exclude_none=True), *results]

    second = create(client, model="m", messages=history, tools=TOOLS)

    assert (reply.content, first.choices[0].finish_reason) == ("I look.", "tool_calls")
    assert [(call.function.name, json.loads(call.function.arguments)) for call in reply.tool_calls] == [
        ("readFile", {"path": "a"}),
        ("listFiles", {}),
    ]
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("It said listFiles.", "stop")
    assert second.usage.prompt_tokens_details.cached_tokens == 4
    assert second.usage.completion_tokens_details.reasoning_tokens == 1


@pytest.mark.parametrize("options", [[], ["--crlf"], ["--byte-by-byte"]])
def test_the_clients_own_accumulator_puts_a_stream_together(script: Path, options: list[str]) -> None:
    with (
        UpstreamProcess(script, *options) as running,
        openai.OpenAI(base_url=running.base_url, api_key="any", max_retries=0) as client,
        client.chat.completions.stream(
            model="m",
            messages=[{"role": "user", "content": "go"}],
            stream_options={"include_usage": True},
        ) as stream,
    ):
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()

    message = final.choices[0].message
    assert pieces == ["", "I ", "lo", "ok", "."]
    assert (message.content, final.choices[0].finish_reason) == ("I look.", "tool_calls")
    assert message.tool_calls is not None
    assert [call.function.name for call in message.tool_calls] == ["readFile", "listFiles"]
    assert json.loads(message.tool_calls[0].function.arguments) == {"path": "a"}
    assert final.usage is not None
    assert final.usage.prompt_tokens > 0


def test_the_client_retries_a_busy_provider_by_itself(client: openai.OpenAI) -> None:
    with pytest.raises(openai.RateLimitError, match="429"):
        create(client, model="busy", messages=[{"role": "user", "content": "once"}])

    patient = client.with_options(max_retries=1)
    answer = create(patient, model="busy", messages=[{"role": "user", "content": "twice"}])

    assert answer.choices[0].message.content == "now"


def test_refusals_have_the_shape_that_the_client_knows(provider: UpstreamProcess, client: openai.OpenAI) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "readFile", "arguments": "{}"}}
    unpaired = [GO, {"role": "assistant", "content": None, "tool_calls": [call]}]

    with pytest.raises(openai.BadRequestError, match="no result for the call 'c'") as refused:
        create(client, model="m", messages=unpaired)
    with pytest.raises(openai.NotFoundError, match="no model 'gone'"):
        create(client, model="gone", messages=[GO])
    with (
        openai.OpenAI(base_url=provider.base_url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as unknown,
    ):
        stranger.models.list()

    assert (refused.value.type, refused.value.status_code) == ("invalid_request_error", 400)
    assert unknown.value.code == "invalid_api_key"


def test_an_error_inside_a_stream_reaches_the_caller(client: openai.OpenAI) -> None:
    stream = create(client, model="broken", messages=[GO], stream=True)

    with pytest.raises(openai.APIError, match="overloaded"):
        list(stream)
