"""The official `anthropic` client against `peen dev upstream`: what it understands, a provider would send."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import anthropic
import pytest
from crash_kit import short_directory

from peen.testing.upstream.process import UpstreamProcess

SCRIPT: Final = """
models:
  m:
    turns:
      - rounds:
          - {thinking: Hm, text: I look., chunk: 2, calls: [{name: readFile, arguments: {path: a}}, {name: listFiles}]}
          - {text: "{lastResult}!", usage: {prompt: 9, cacheRead: 4, cacheWrite: 2, completion: 2, reasoning: 1}}
  busy: {turns: [{rounds: [{text: now, fault: {kind: status, status: 429, retryAfter: 0.1, times: 1}}]}]}
  full: {turns: [{rounds: [{text: now, fault: {kind: status, status: 529}}]}]}
  cut: {turns: [{rounds: [{text: abcdef, chunk: 2, fault: {kind: cut, afterPieces: 2}}]}]}
  broken: {turns: [{rounds: [{text: abcdef, chunk: 2, fault: {kind: error, afterPieces: 1, message: overloaded}}]}]}
"""
TOOLS: Final = [
    {"name": name, "description": "d", "input_schema": {"type": "object"}} for name in ("readFile", "listFiles")
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
    with UpstreamProcess(script, "--wire", "anthropic", "--api-key", "right") as running:
        yield running


@pytest.fixture
def client(provider: UpstreamProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=provider.base_url, api_key="right", max_retries=0) as made:
        yield made


def create(client: anthropic.Anthropic, **fields: Any) -> Any:
    """The client's own types are narrower than what the wire allows, and than what these tests want to send."""
    return client.messages.create(max_tokens=4096, **fields)


def streamed(client: anthropic.Anthropic, *messages: Any) -> tuple[list[str], Any]:
    """Pieces of text, and the message that the client makes of the stream."""
    tools: Any = TOOLS
    with client.messages.stream(model="m", max_tokens=4096, messages=messages, tools=tools) as stream:
        return [event.text for event in stream if event.type == "text"], stream.get_final_message()


def results(message: Any) -> dict[str, Any]:
    found = [
        {"type": "tool_result", "tool_use_id": block.id, "content": block.name}
        for block in message.content
        if block.type == "tool_use"
    ]
    return {"role": "user", "content": found}


def test_models_are_listed(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == ["m", "busy", "full", "cut", "broken"]


def test_an_answer_with_thinking_and_calls_and_the_round_after_it(client: anthropic.Anthropic) -> None:
    first = create(client, model="m", messages=[GO], tools=TOOLS)
    reply = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]}
    second = create(client, model="m", messages=[GO, reply, results(first)], tools=TOOLS, system="be good")

    assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (first.content[0].thinking, first.content[1].text, first.stop_reason) == ("Hm", "I look.", "tool_use")
    assert [(block.name, block.input) for block in first.content[2:]] == [
        ("readFile", {"path": "a"}),
        ("listFiles", {}),
    ]
    assert (second.content[0].text, second.stop_reason) == ("listFiles!", "end_turn")
    usage = second.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (3, 4, 2)
    assert usage.output_tokens_details.thinking_tokens == 1


@pytest.mark.parametrize("options", [[], ["--crlf"], ["--byte-by-byte"]])
def test_the_clients_own_accumulator_puts_a_stream_together(script: Path, options: list[str]) -> None:
    with (
        UpstreamProcess(script, "--wire", "anthropic", *options) as running,
        anthropic.Anthropic(base_url=running.base_url, api_key="any", max_retries=0) as client,
    ):
        pieces, final = streamed(client, GO)
        reply = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in final.content]}
        _, last = streamed(client, GO, reply, results(final))

    assert pieces == ["I ", "lo", "ok", "."]
    assert (final.content[0].thinking, bool(final.content[0].signature)) == ("Hm", True)
    assert [(block.name, block.input) for block in final.content[2:]] == [
        ("readFile", {"path": "a"}),
        ("listFiles", {}),
    ]
    assert (final.stop_reason, final.usage.input_tokens > 0) == ("tool_use", True)
    assert (last.content[0].text, last.usage.input_tokens, last.usage.output_tokens) == ("listFiles!", 3, 2)


def test_the_client_retries_a_busy_provider_by_itself(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.RateLimitError) as busy:
        create(client, model="busy", messages=[{"role": "user", "content": "once"}])

    patient = client.with_options(max_retries=1)
    answer = create(patient, model="busy", messages=[{"role": "user", "content": "twice"}])

    assert busy.value.response.headers["retry-after"] == "0.1"
    assert answer.content[0].text == "now"


def test_refusals_have_the_shape_that_the_client_knows(provider: UpstreamProcess, client: anthropic.Anthropic) -> None:
    call = {"type": "tool_use", "id": "c", "name": "readFile", "input": {}}

    with pytest.raises(anthropic.BadRequestError, match="without `tool_result` blocks immediately after: c") as refused:
        create(client, model="m", messages=[GO, {"role": "assistant", "content": [call]}, GO])
    with pytest.raises(anthropic.NotFoundError, match="no model 'gone'"):
        create(client, model="gone", messages=[GO])
    with pytest.raises(anthropic.InternalServerError) as full:
        create(client, model="full", messages=[GO])
    with (
        anthropic.Anthropic(base_url=provider.base_url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError) as unknown,
    ):
        stranger.models.list()

    assert (refused.value.status_code, told(refused.value)) == (400, "invalid_request_error")
    assert (full.value.status_code, told(full.value)) == (529, "overloaded_error")
    assert told(unknown.value) == "authentication_error"


def told(error: anthropic.APIStatusError) -> str:
    body: Any = error.body
    return str(body["error"]["type"])


def test_an_error_inside_a_stream_reaches_the_caller(client: anthropic.Anthropic) -> None:
    stream = create(client, model="broken", messages=[GO], stream=True)

    with pytest.raises(anthropic.APIStatusError, match="overloaded"):
        list(stream)


def test_a_stream_that_is_cut_has_no_end(client: anthropic.Anthropic) -> None:
    stream = create(client, model="cut", messages=[GO], stream=True)

    seen: list[str] = []
    with pytest.raises(Exception, match=r"peer closed|incomplete"):
        seen.extend(event.type for event in stream)

    assert "message_stop" not in seen
