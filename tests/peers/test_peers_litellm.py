"""Both adapters against LiteLLM's proxy: answers that it mocks, and turns that it relays to `peen dev upstream`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pytest
import trio
from crash_kit import Client, Frame, script, short_directory
from image_kit import GIF, PNG, on_wire, sent
from litellm_kit import KEY, LiteLlmProxy
from msgspec import Raw

from peen.entropy import SystemEntropy
from peen.errors import ModelError
from peen.model.anthropic import AnthropicUpstream
from peen.model.direct import DirectTransport
from peen.model.fold import Answer, Fold
from peen.model.openai import OpenAiUpstream
from peen.model.stream import ModelRequest
from peen.testing.daemon import Daemon
from peen.testing.upstream.process import UpstreamProcess
from peen.wire.launch import UpstreamConfig
from peen.wire.model import ToolDefinition
from peen.wire.records import MessageRecord

TEXT: Final = "größer and smaller"
WIRES: Final = ("openai", "anthropic")
CLAUDE: Final = "claude-sonnet-4-5"
READ: Final = {"calls": [{"name": "readFile", "arguments": {"path": "notes.txt"}}]}
SCRIPT: Final = script(
    {
        CLAUDE: [[
            {"thinking": "I should look.", "text": "I read.", "chunk": 3, **READ},
            {"calls": [{"name": "readFile", "arguments": {"path": "a.gif"}}, {"name": "listFiles", "arguments": {}}]},
            {"text": "I saw {images}.", "chunk": 4},
        ]],
    }
)  # fmt: skip
TOOL: Final = ToolDefinition("readFile", "Reads.", Raw(b'{"type":"object","properties":{"path":{"type":"string"}}}'))


def mocked(text: str, model: str = "openai/x") -> dict[str, str]:
    return {"model": model, "api_key": "none", "mock_response": text}


@dataclass
class World:
    """A proxy, and a controller that knows it by both dialects."""

    proxy: LiteLlmProxy
    daemon: Daemon
    client: Client


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with ExitStack() as stack:
        home = stack.enter_context(short_directory())
        path = home / "script.yaml"
        path.write_text(SCRIPT)
        behind = {
            wire: stack.enter_context(UpstreamProcess(path, "--wire", wire, "--api-key", "right")).base_url
            for wire in WIRES
        }
        models = {
            "mock-plain": mocked(TEXT),
            "mock-calls": {"model": "openai/x", "api_key": "none"},
            "mock-limited": mocked("litellm.RateLimitError"),
            "mock-long": mocked("litellm.ContextWindowExceededError"),
            "mock-broken": mocked("litellm.InternalServerError"),
            "claude-mock": mocked(TEXT, f"anthropic/{CLAUDE}"),
            **{
                f"claude-by-{wire}": {"model": f"{wire}/{CLAUDE}", "api_base": url, "api_key": "right"}
                for wire, url in behind.items()
            },
        }
        proxy = stack.enter_context(LiteLlmProxy(home / "proxy", models))
        upstreams = [
            {"name": "openai", "type": "openai", "baseUrl": f"{proxy.url}/v1", "apiKeyEnv": "PROXYKEY"},
            {"name": "anthropic", "type": "anthropic", "baseUrl": proxy.url, "apiKeyEnv": "PROXYKEY"},
        ]
        daemon = Daemon(home, {"PEEN_UPSTREAMS": json.dumps(upstreams), "PROXYKEY": KEY})
        stack.enter_context(daemon)
        yield World(proxy, daemon, stack.enter_context(Client(daemon)))


def adapter(world: World, wire: str, key: str = KEY) -> OpenAiUpstream | AnthropicUpstream:
    if wire == "openai":
        config = UpstreamConfig(name="up", type="openai", base_url=f"{world.proxy.url}/v1")
        return OpenAiUpstream(config, key, DirectTransport(), SystemEntropy())
    config = UpstreamConfig(name="up", type="anthropic", base_url=world.proxy.url)
    return AnthropicUpstream(config, key, DirectTransport(), SystemEntropy())


async def ask(world: World, wire: str, model: str, *, key: str = KEY, images: bool = False) -> Answer:
    """One answer to one message, by our adapter alone."""
    pictures = sent(PNG) if images else ()
    message = MessageRecord(role="user", content="go", images=[image.ref for image in pictures])
    request = ModelRequest(
        model_id=model, system="be good", messages=[message], tools=[TOOL], max_output_tokens=2048,
        images={image.sha256: image.data for image in pictures},
    )  # fmt: skip
    source, fold = adapter(world, wire, key), Fold("made")
    try:
        with trio.fail_after(60):
            async with source.stream(request) as events:
                async for event in events:
                    fold.add(event)
    finally:
        await source.aclose()
    return fold.finish()


def opened(world: World, name: str) -> str:
    """A session of its own, with the files that the models want to read."""
    workspace = world.daemon.workspace_root / name
    workspace.mkdir()
    (workspace / "notes.txt").write_text("blue\n")
    (workspace / "a.gif").write_bytes(GIF)
    return world.client.open(workspace)


def end_of(frames: list[Frame]) -> dict[str, Any]:
    return next(frame["data"] for frame in frames if frame["type"] in ("turn.completed", "turn.failed"))


@pytest.mark.parametrize("wire", WIRES)
async def test_the_models_of_the_proxy_are_found(world: World, wire: str) -> None:
    source = adapter(world, wire)
    found = {info.model_id for info in await source.discover()}

    assert found >= {"mock-plain", "claude-mock", "claude-by-openai", "claude-by-anthropic"}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("model", ["mock-plain", "claude-mock"])
async def test_a_mocked_answer_is_understood(world: World, wire: str, model: str) -> None:
    answer = await ask(world, wire, model)

    assert (answer.text, answer.calls, answer.truncated) == (TEXT, (), False)
    assert answer.usage.completion is not None


@pytest.mark.parametrize("wire", WIRES)
async def test_a_mocked_tool_call_is_understood(world: World, wire: str) -> None:
    answer = await ask(world, wire, "mock-calls")

    assert answer.text == "I read."
    assert [(call.name, bytes(call.arguments)) for call in answer.calls] == [("readFile", b'{"path":"notes.txt"}')]


@pytest.mark.parametrize(
    ("wire", "model", "kind", "retryable"),
    [
        ("openai", "mock-limited", "rate_limited", True),
        ("openai", "mock-long", "context_length_exceeded", False),
        ("openai", "mock-broken", "server_error", True),
        ("openai", "nothing", "invalid_request", False),
        ("anthropic", "mock-limited", "rate_limited", True),
        ("anthropic", "mock-long", "context_length_exceeded", False),
        ("anthropic", "mock-broken", "server_error", True),
        ("anthropic", "nothing", "invalid_request", False),
    ],
)
async def test_faults_are_told_apart(world: World, wire: str, model: str, kind: str, retryable: bool) -> None:
    with pytest.raises(ModelError) as caught:
        await ask(world, wire, model)

    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_wrong_key_is_refused_at_once_and_not_repeated_to_anybody(world: World, wire: str) -> None:
    with pytest.raises(ModelError) as caught:
        await ask(world, wire, "mock-plain", key="wrong-0123456789")

    # A proxy without a database cannot look a key up, and says that with this status.
    assert (caught.value.http_status, caught.value.retryable) == (400, False)
    assert "wrong-0123456789" not in str(caught.value)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("behind", WIRES)
async def test_a_stream_that_is_translated_keeps_text_thinking_and_call(world: World, wire: str, behind: str) -> None:
    answer = await ask(world, wire, f"claude-by-{behind}", images=True)

    assert (answer.text, answer.thinking) == ("I read.", "I should look.")
    assert [(call.name, json.loads(bytes(call.arguments))) for call in answer.calls] == [
        ("readFile", {"path": "notes.txt"})
    ]


@pytest.mark.parametrize("wire", WIRES)
def test_a_turn_with_a_mocked_call_runs_the_tool_and_gives_its_result_back(world: World, wire: str) -> None:
    frames = world.client.ask(opened(world, wire), "go", model=f"{wire}/mock-calls")

    assert [frame["data"]["name"] for frame in frames if frame["type"] == "tool.use"] == ["readFile"]
    assert "blue" in next(frame["data"]["content"] for frame in frames if frame["type"] == "tool.result")
    assert end_of(frames)["text"] == "1 call has returned"


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("behind", WIRES)
def test_a_turn_with_tools_and_images_survives_the_translation(world: World, wire: str, behind: str) -> None:
    session = opened(world, f"{wire}-{behind}")

    frames = world.client.ask(session, "look", model=f"{wire}/claude-by-{behind}", images=[on_wire(PNG)])

    assert end_of(frames).get("error") is None
    assert end_of(frames)["text"] == f"I saw image/png (70 bytes), image/gif ({len(GIF)} bytes)."
