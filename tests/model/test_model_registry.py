from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from test_model_openai import FakeReply, FakeTransport
from trio.testing import MockClock

from peen.entropy import SeededEntropy
from peen.errors import ConfigurationInvalid, ModelError, ValidationFailed
from peen.model.anthropic import AnthropicUpstream
from peen.model.openai import OpenAiUpstream
from peen.model.registry import DISCOVERY_S, REDISCOVERY_PAUSE_S, REDISCOVERY_S, Models
from peen.model.stream import ModelInfo, ModelRequest, StreamEvent
from peen.wire.launch import UpstreamConfig

EMBEDDED = UpstreamConfig(name="scripted", type="scripted")
SCRIPT = "models: {a/b: {contextWindow: 100, turns: [{rounds: [{text: hi}]}]}, c: {turns: [{rounds: [{text: hi}]}]}}"


class FakeUpstream:
    def __init__(self, name: str, *models: str, delay_s: float = 0.0, fails: bool = False) -> None:
        self.name, self._models, self._delay_s, self._fails = name, models, delay_s, fails
        self.asked = 0

    def recover(self) -> None:
        self._fails = False

    async def discover(self) -> list[ModelInfo]:
        self.asked += 1
        await trio.sleep(self._delay_s)
        if self._fails:
            raise ModelError("no such host", kind="transport", retryable=True)
        return [
            ModelInfo(name=f"{self.name}/{model}", connection_name=self.name, model_id=model) for model in self._models
        ]

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[StreamEvent]]:
        raise NotImplementedError


def script_file(directory: Path, text: str = SCRIPT) -> str:
    path = directory / "script.yaml"
    path.write_text(text)
    return str(path)


async def test_the_embedded_upstream_offers_the_demo_without_a_script() -> None:
    models = Models.build([EMBEDDED], {})
    await models.discover()

    upstream, info = models.default(None)

    assert [model.name for model in models.list] == ["scripted/demo"]
    assert (upstream.name, info.model_id, info.context_window_tokens, info.image_input) == (
        "scripted", "demo", 131_072, True,
    )  # fmt: skip


async def test_models_of_a_script_come_in_its_order_and_split_at_the_first_slash(tmp_path: Path) -> None:
    config = UpstreamConfig(name="s", type="scripted", script=script_file(tmp_path), image_input=False)
    models = Models.build([config, EMBEDDED], {})
    await models.discover()

    assert [model.name for model in models.list] == ["s/a/b", "s/c", "scripted/demo"]
    upstream, info = models.resolve("s/a/b")
    assert (upstream.name, info.connection_name, info.model_id) == ("s", "s", "a/b")
    assert (info.context_window_tokens, info.image_input) == (100, False)


async def test_the_upstream_called_scripted_keeps_its_demo_beside_a_script(tmp_path: Path) -> None:
    models = Models.build([UpstreamConfig(name="scripted", type="scripted", script=script_file(tmp_path))], {})
    await models.discover()

    assert [model.name for model in models.list] == ["scripted/a/b", "scripted/c", "scripted/demo"]


@pytest.mark.parametrize(
    ("config", "environ", "problem"),
    [
        (
            UpstreamConfig(name="x", type="openia"),
            {},
            "upstream 'x': type 'openia' is not part of this release; known: anthropic, openai, scripted",
        ),
        (
            UpstreamConfig(name="x", type="scripted", api_key_env="X_KEY"),
            {},
            "apiKeyEnv names X_KEY, which is not set or empty",
        ),
        (
            UpstreamConfig(name="x", type="scripted", api_key_env="X_KEY"),
            {"X_KEY": ""},
            "X_KEY, which is not set or empty",
        ),
        (
            UpstreamConfig(name="x", type="scripted", script="/absent.yaml"),
            {},
            "upstream 'x': /absent.yaml: cannot be read",
        ),
    ],
)
def test_a_wrong_upstream_is_refused_by_name(config: UpstreamConfig, environ: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        Models.build([config], environ)

    assert problem in caught.value.problem
    assert caught.value.variable == "PEEN_UPSTREAMS"


OPENAI = UpstreamConfig(name="o", type="openai", base_url="http://127.0.0.1:9/v1", image_input=False)


@pytest.mark.parametrize("kind", ["anthropic", "openai", "zai-coding"])
@pytest.mark.parametrize("key", ["line\nend", "größe", "   "])
def test_a_key_that_no_header_can_hold_is_refused_and_not_repeated(kind: str, key: str) -> None:
    config = UpstreamConfig(name="x", type=kind, api_key_env="X_KEY")

    with pytest.raises(ConfigurationInvalid, match="the key in X_KEY holds characters") as caught:
        Models.build([config], {"X_KEY": key})

    assert key not in str(caught.value)


@asynccontextmanager
async def silent_listener() -> AsyncIterator[tuple[str, list[bytes]]]:
    """Its URL, and the head of every request that came; it hangs up on each."""
    heads: list[bytes] = []

    async def hear(stream: trio.SocketStream) -> None:
        async with stream:
            heads.append(await stream.receive_some())

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, hear, listeners)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", heads
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("kind", "host"), [("anthropic", "api.anthropic.com"), ("openai", "api.openai.com"), ("zai-coding", "api.z.ai")]
)
async def test_a_provider_of_each_type_is_reached_at_its_own_address_through_the_proxy(
    kind: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with silent_listener() as (url, heads):
        monkeypatch.setenv("HTTPS_PROXY", url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        models = Models.build([UpstreamConfig(name="x", type=kind, api_key_env="X_KEY")], {"X_KEY": "k", **os.environ})
        await models.discover()

    assert heads[0].startswith(f"CONNECT {host}:443 ".encode())
    assert host in models.failures["x"]


@pytest.mark.parametrize(
    ("kind", "path", "key"),
    [
        ("anthropic", b"/p/v1/models?", b"x-api-key: k"),
        ("openai", b"/p/models ", b"authorization: bearer k"),
        ("zai-coding", b"/p/models ", b"authorization: bearer k"),
    ],
)
async def test_a_provider_of_each_type_is_reached_straight_at_another_address(
    kind: str, path: bytes, key: bytes
) -> None:
    async with silent_listener() as (url, heads):
        config = UpstreamConfig(name="x", type=kind, base_url=f"{url}/p", api_key_env="X_KEY")
        models = Models.build([config], {"X_KEY": "k"})
        await models.discover()

    head = heads[0].lower()
    assert head.startswith(b"get " + path)
    assert key in head


async def test_a_worker_serves_the_models_of_a_provider_by_name_and_asks_nobody() -> None:
    models = Models.build([OPENAI, EMBEDDED], {})

    await models.discover(ask_providers=False)

    upstream, info = models.resolve("o/any/model")
    assert (upstream.name, info.name, info.model_id) == ("o", "o/any/model", "any/model")
    assert (info.context_window_tokens, info.image_input) == (None, False)
    assert [model.name for model in models.list] == ["scripted/demo"]
    for name in ("o/", "p/model", "scripted/other"):
        with pytest.raises(ValidationFailed, match="does not exist"):
            models.resolve(name)


async def test_a_model_of_an_upstream_that_was_down_says_so() -> None:
    models = Models([FakeUpstream("down", "a", fails=True), FakeUpstream("up", "b")])
    await models.discover()

    with pytest.raises(ValidationFailed, match=r"model 'down/a' cannot be used: .*\(no such host\)"):
        models.resolve("down/a")


async def test_when_every_upstream_is_down_the_refusal_names_each_with_its_reason() -> None:
    models = Models([FakeUpstream("a", fails=True), FakeUpstream("b", fails=True)])
    await models.discover()

    with pytest.raises(ConfigurationInvalid) as caught:
        models.default(None)

    assert caught.value.problem == "no upstream offers a model ('a': no such host; 'b': no such host)"


def test_a_key_that_is_set_is_enough() -> None:
    Models.build([UpstreamConfig(name="x", type="scripted", api_key_env="X_KEY")], {"X_KEY": "secret"})


def test_a_wrong_script_names_its_place_and_a_taken_name_is_refused(tmp_path: Path) -> None:
    wrong = script_file(tmp_path, "turns: [{rounds: [{txt: hi}]}]")
    with pytest.raises(ConfigurationInvalid, match=r"script\.yaml: turns\[0\]\.rounds\[0\]: .*unknown field `txt`"):
        Models.build([UpstreamConfig(name="x", type="scripted", script=wrong)], {})
    taken = script_file(tmp_path, "models: {demo: {turns: [{rounds: [{text: hi}]}]}}")
    with pytest.raises(ConfigurationInvalid, match="'demo' is taken by the built-in demo; rename it"):
        Models.build([UpstreamConfig(name="scripted", type="scripted", script=taken)], {})


async def test_an_unknown_model_is_named_with_the_nearest_five() -> None:
    models = Models([FakeUpstream("u", *(f"model-{number}" for number in range(9)))])
    await models.discover()

    with pytest.raises(ValidationFailed) as caught:
        models.resolve("u/model-77")

    assert caught.value.message.startswith("model 'u/model-77' does not exist; known models: u/model-7, ")
    assert caught.value.message.count("u/model-") == 6


async def test_the_default_is_the_named_model_or_a_clear_refusal() -> None:
    models = Models([FakeUpstream("u", "a", "b")])
    await models.discover()

    assert models.default("u/b")[1].model_id == "b"
    with pytest.raises(ConfigurationInvalid, match="PEEN_DEFAULT_MODEL: model 'u/c' does not exist") as caught:
        models.default("u/c")
    assert caught.value.example == "u/a"


async def test_an_upstream_that_fails_or_hangs_is_logged_and_skipped(autojump_clock: MockClock) -> None:
    models = Models(
        [
            FakeUpstream("down", "a", fails=True),
            FakeUpstream("hangs", "b", delay_s=DISCOVERY_S * 10),
            FakeUpstream("slow", "c", delay_s=1.0),
            FakeUpstream("up", "d"),
        ]
    )

    with capture_logs() as logs:
        await models.discover()

    assert [model.name for model in models.list] == ["slow/c", "up/d"]  # the order of the configuration, not of answers
    assert sorted((entry["event"], entry["upstream"], entry["error"]) for entry in logs) == [
        ("provider_discovery_failed", "down", "no such host"),
        ("provider_discovery_failed", "hangs", "no answer within 30 s"),
    ]
    assert trio.current_time() == DISCOVERY_S


async def test_without_any_model_there_is_no_default_and_nothing_resolves() -> None:
    models = Models([])
    await models.discover()

    with pytest.raises(ConfigurationInvalid, match="PEEN_UPSTREAMS: no upstream offers a model"):
        models.default(None)
    with pytest.raises(ValidationFailed, match="known models: none, since no upstream answered"):
        models.resolve("a/b")


async def test_an_upstream_that_failed_is_asked_again_alone_and_its_models_come_in_their_place(
    autojump_clock: MockClock,
) -> None:
    down, up = FakeUpstream("down", "a", fails=True), FakeUpstream("up", "b")
    models = Models([down, up])
    await models.discover()
    assert (models.is_missing("down/a"), models.is_missing("up/x"), models.is_missing(None)) == (True, False, False)
    down.recover()
    await trio.sleep(REDISCOVERY_PAUSE_S)

    await models.rediscover()

    assert [model.name for model in models.list] == ["down/a", "up/b"]
    assert models.resolve("down/a")[0].name == "down"
    assert not models.failures
    assert (down.asked, up.asked) == (2, 1)
    await trio.sleep(REDISCOVERY_PAUSE_S)
    await models.rediscover()
    assert (down.asked, up.asked) == (2, 1)  # nobody is missing


async def test_callers_at_once_share_one_look_and_the_next_is_seconds_later(autojump_clock: MockClock) -> None:
    down = FakeUpstream("down", "a", fails=True, delay_s=1.0)
    models = Models([down])
    await models.discover()
    await trio.sleep(REDISCOVERY_PAUSE_S - 0.5)
    await models.rediscover()
    assert down.asked == 1
    await trio.sleep(0.5)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(models.rediscover)

    assert (down.asked, trio.current_time() - began) == (2, 1.0)
    assert models.is_missing(None)


async def test_a_look_for_a_message_is_over_within_seconds(autojump_clock: MockClock) -> None:
    slow = FakeUpstream("slow", "a", delay_s=DISCOVERY_S + 1)
    models = Models([slow])
    await models.discover()
    await trio.sleep(REDISCOVERY_PAUSE_S)

    began = trio.current_time()
    await models.rediscover()

    assert trio.current_time() - began == REDISCOVERY_S
    assert models.failures == {"slow": "no answer within 3 s"}


async def test_a_caller_that_is_cancelled_leaves_the_next_one_to_ask(autojump_clock: MockClock) -> None:
    down = FakeUpstream("down", "a", fails=True, delay_s=1.0)
    models = Models([down])
    await models.discover()
    down.recover()
    await trio.sleep(REDISCOVERY_PAUSE_S)

    with trio.move_on_after(0.5):
        await models.rediscover()
    await models.rediscover()

    assert [model.name for model in models.list] == ["down/a"]


def with_replies(*replies: FakeReply, kind: str = "openai", **fields: Any) -> tuple[Models, FakeTransport]:
    transport = FakeTransport(*replies)
    config = UpstreamConfig(name="o", type=kind, **{"base_url": "http://service/v1", **fields})
    make = AnthropicUpstream if kind == "anthropic" else OpenAiUpstream
    return Models([make(config, None, transport, SeededEntropy(1))]), transport


@pytest.mark.parametrize("kind", ["openai", "zai-coding", "anthropic"])
async def test_models_that_are_configured_are_offered_and_nobody_is_asked(kind: str) -> None:
    models, transport = with_replies(kind=kind, models=["small", "org/large"])
    await models.discover()

    assert [info.name for info in models.list] == ["o/small", "o/org/large"]
    assert models.default(None)[1].model_id == "small"
    assert transport.asked == []
    with pytest.raises(ValidationFailed, match="does not exist"):
        models.resolve("o/other")


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize("status", [404, 405, 501])
async def test_models_of_a_service_without_a_list_are_taken_by_their_names(kind: str, status: int) -> None:
    models, _ = with_replies(FakeReply(b"no such page", status=status), kind=kind)
    await models.discover()

    assert models.list == ()
    assert not models.is_missing("o/any")
    assert models.default("o/any")[1].model_id == "any"
    with pytest.raises(ConfigurationInvalid, match='"models" of the upstream, or o/MODEL'):
        models.default(None)


@pytest.mark.parametrize("status", [401, 429, 500])
async def test_what_another_failure_hides_is_not_taken_for_a_model(status: int) -> None:
    models, _ = with_replies(FakeReply(b"{}", status=status))
    await models.discover()

    assert models.is_missing("o/any")
    with pytest.raises(ValidationFailed, match="offered no models"):
        models.resolve("o/any")


@pytest.mark.parametrize(("url", "hint"), [("http://service", True), ("http://service/v1", False)])
async def test_a_list_that_is_not_there_may_be_below_a_version(url: str, hint: bool) -> None:
    models, _ = with_replies(FakeReply(b"nothing", status=404), base_url=url)
    await models.discover()

    assert ("ends with /v1" in models.failures["o"]) == hint
