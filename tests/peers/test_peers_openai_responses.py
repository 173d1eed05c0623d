"""The official `openai` client and `peen dev upstream` over the Responses API."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
          - thinking: I should look.
            text: I look.
            chunk: 2
            calls: [{name: readFile, arguments: {path: a}}, {name: listFiles}]
          - {text: "It said {lastResult}.", usage: {prompt: 9, completion: 2, cacheRead: 4, reasoning: 1}}
  cut: {turns: [{rounds: [{text: half, finishReason: length}]}]}
  broken: {turns: [{rounds: [{text: abcdef, chunk: 2, fault: {kind: error, afterPieces: 1, message: overloaded}}]}]}
"""
TOOLS: Final = [
    {"type": "function", "name": name, "description": "d", "parameters": {"type": "object"}, "strict": False}
    for name in ("readFile", "listFiles")
]
GO: Final = {"role": "user", "content": "go"}
KEEPING: Final = {"store": False, "include": ["reasoning.encrypted_content"]}


@pytest.fixture(scope="module", params=[(), ("--crlf",), ("--byte-by-byte",)], ids=["as it is", "crlf", "bytes"])
def provider(request: pytest.FixtureRequest) -> Iterator[UpstreamProcess]:
    with short_directory() as home:
        path = home / "script.yaml"
        path.write_text(SCRIPT)
        with UpstreamProcess(path, *request.param) as running:
            yield running


@pytest.fixture
def client(provider: UpstreamProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=provider.base_url, api_key="any", max_retries=0) as made:
        yield made


def create(client: openai.OpenAI, **fields: Any) -> Any:
    """The client's own types are narrower than what the wire allows, and than what these tests want to send."""
    return client.responses.create(**{**KEEPING, **fields})


def results(response: Any) -> list[dict[str, Any]]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": item.name}
        for item in response.output
        if item.type == "function_call"
    ]


def check_first(response: Any) -> None:
    assert (response.status, response.output_text) == ("completed", "I look.")
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output[0].summary[0].text == "I should look."
    assert response.output[0].encrypted_content
    calls = [(item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]
    assert calls == [("readFile", {"path": "a"}), ("listFiles", {})]


def test_an_answer_with_reasoning_and_calls_and_the_round_after_it(client: openai.OpenAI) -> None:
    first = create(client, model="m", input=[GO], tools=TOOLS, instructions="be good")
    history = [GO, *(item.model_dump(exclude_none=True) for item in first.output), *results(first)]

    second = create(client, model="m", input=history, tools=TOOLS, instructions="be good")

    check_first(first)
    assert second.output_text == "It said listFiles."
    assert (second.usage.input_tokens, second.usage.input_tokens_details.cached_tokens) == (9, 4)
    assert second.usage.output_tokens_details.reasoning_tokens == 1


def test_the_clients_own_accumulator_puts_a_stream_together(client: openai.OpenAI) -> None:
    begin: Any = client.responses.stream
    with begin(model="m", input="go", **KEEPING) as stream:
        events = list(stream)
        final = stream.get_final_response()

    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    numbers = [event.sequence_number for event in events]
    assert deltas == ["I ", "lo", "ok", "."]
    assert numbers == sorted(set(numbers))
    check_first(final)


def test_an_answer_at_its_limit_is_incomplete(client: openai.OpenAI) -> None:
    cut = create(client, model="cut", input="go")
    events = list(create(client, model="cut", input="go", stream=True))

    assert (cut.status, cut.incomplete_details.reason, cut.output_text) == ("incomplete", "max_output_tokens", "half")
    assert events[-1].type == "response.incomplete"


def test_refusals_and_errors_have_the_shape_that_the_client_knows(client: openai.OpenAI) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "readFile", "arguments": "{}"}
    forged = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "forged"}

    with pytest.raises(openai.BadRequestError, match="no result for the call 'c'"):
        create(client, model="m", input=[GO, call])
    with pytest.raises(openai.BadRequestError, match="could not be verified"):
        create(client, model="m", input=[GO, forged, call])
    with pytest.raises(openai.NotFoundError, match="no model 'gone'"):
        create(client, model="gone", input="go")
    last = list(create(client, model="broken", input="go", stream=True))[-1]
    assert (last.type, last.code, last.message) == ("error", "server_error", "overloaded")
