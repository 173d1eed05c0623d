"""The adapter of the Messages API: models, errors, and what it keeps to itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
from anthropic_kit import KEY, Broken, FakeReply, FakeTransport, Silence, ask, failure, request, upstream, whole
from trio.testing import MockClock

from peen.errors import ModelError
from peen.model.anthropic import DEFAULT_BASE_URL, AnthropicUpstream
from peen.model.registry import Models
from peen.model.replies import ERROR_BODY_S
from peen.model.stream import ModelInfo
from peen.wire.launch import UpstreamConfig

JSON = "application/json"


def page(*models: Any, **fields: Any) -> FakeReply:
    listed = [{"id": model, "type": "model"} if isinstance(model, str) else model for model in models]
    return FakeReply(msgspec.json.encode({"data": listed, **fields}), content_type=JSON)


async def found(*pages: FakeReply, **fields: Any) -> tuple[list[ModelInfo], FakeTransport]:
    transport = FakeTransport(*pages)
    return await upstream(transport, **fields).discover(), transport


async def test_models_are_listed_page_by_page() -> None:
    models, transport = await found(
        page("a", "b", has_more=True, last_id="b/1"), page("b", "c", has_more=False, last_id="c"), key=KEY
    )

    assert [model.name for model in models] == ["up/a", "up/b", "up/c"]
    assert [url for _, url, _ in transport.asked] == [
        "http://p:1/v1/models?limit=1000",
        "http://p:1/v1/models?limit=1000&after_id=b%2F1",
    ]
    assert {headers["x-api-key"] for _, _, headers in transport.asked} == {KEY}
    assert (transport.open, transport.closed) == (0, 1)


async def test_sonnet_comes_first_and_what_is_retired_is_left_out() -> None:
    models, _ = await found(
        page("claude-fable-9", "claude-opus-9", "claude-sonnet-9", {"id": "claude-x", "lifecycle": "retired"},
             "claude-haiku-9", "claude-sonnet-8")
    )  # fmt: skip

    assert [model.model_id for model in models] == [
        "claude-sonnet-9", "claude-sonnet-8", "claude-opus-9", "claude-haiku-9", "claude-fable-9"
    ]  # fmt: skip


async def test_what_the_provider_publishes_counts_more_than_what_is_known() -> None:
    yes, no = {"supported": True}, {"supported": False}
    capabilities = {
        "image_input": no,
        "thinking": {"supported": True, "types": {"adaptive": yes, "enabled": no}},
        "effort": {"supported": True, "low": yes, "medium": no, "high": yes, "max": no, "xhigh": None},
    }
    listed = {"id": "claude-next", "max_input_tokens": 500_000, "max_tokens": 9000, "capabilities": capabilities}
    transport = FakeTransport(page(listed, "claude-haiku-4-5", "other"), FakeReply(whole()), FakeReply(whole()))
    source = upstream(transport)

    models = {model.model_id: model for model in await source.discover()}
    await ask(source, request(model_id="claude-next", reasoning_effort="xhigh"))

    assert (models["claude-next"].context_window_tokens, models["claude-next"].image_input) == (500_000, False)
    assert (models["claude-haiku-4-5"].context_window_tokens, models["claude-haiku-4-5"].image_input) == (200_000, True)
    assert models["other"].context_window_tokens is None
    body = transport.body()
    assert (body["max_tokens"], body["thinking"], body["output_config"]) == (
        9000,
        {"type": "adaptive"},
        {"effort": "high"},
    )


async def test_an_upstream_without_images_has_none_for_any_model() -> None:
    models, _ = await found(page("claude-opus-5"), image_input=False)

    assert [model.image_input for model in models] == [False]


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        (None, "https://api.anthropic.com/v1/messages"),
        ("http://p:1", "http://p:1/v1/messages"),
        ("http://p:1/", "http://p:1/v1/messages"),
        ("http://p:1/v1/", "http://p:1/v1/messages"),
        ("http://p:1/anthropic", "http://p:1/anthropic/v1/messages"),
        ("http://p:1/x?k=v", "http://p:1/x/v1/messages?k=v"),
    ],
)
async def test_requests_go_below_the_base_url_which_may_name_the_version(base_url: str | None, url: str) -> None:
    transport = FakeTransport(FakeReply(whole()))
    await ask(upstream(transport, base_url=base_url or DEFAULT_BASE_URL))

    assert transport.asked[0][1] == url


async def test_a_page_that_lists_no_models_names_the_setting() -> None:
    with pytest.raises(ModelError, match="check baseUrl"):
        await found(FakeReply(b"<html></html>", content_type="text/html"))


async def test_a_list_that_is_refused_is_refused_with_the_providers_words() -> None:
    told = (
        b'{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key ' + KEY.encode() + b'"}}'
    )

    with pytest.raises(ModelError) as refused:
        await found(FakeReply(told, status=401, content_type=JSON), key=KEY)

    assert (refused.value.kind, refused.value.retryable) == ("unauthorized", False)
    assert "invalid x-api-key [key]" in str(refused.value)


def told(kind: str, message: str = "words") -> bytes:
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"})


@pytest.mark.parametrize(
    ("status", "body", "kind", "retryable"),
    [
        (400, told("invalid_request_error"), "invalid_request", False),
        (
            400,
            told("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"),
            "context_length_exceeded",
            False,
        ),
        (
            400,
            told(
                "invalid_request_error", "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"
            ),
            "context_length_exceeded",
            False,
        ),
        (400, told("invalid_request_error", "Your credit balance is too low to access"), "quota_exhausted", False),
        (401, told("authentication_error"), "unauthorized", False),
        (402, told("billing_error"), "quota_exhausted", False),
        (403, told("permission_error"), "unauthorized", False),
        (404, told("not_found_error"), "invalid_request", False),
        (408, told("timeout_error"), "timeout", True),
        (413, told("request_too_large"), "context_length_exceeded", False),
        (413, b"<html>too large</html>", "context_length_exceeded", False),
        (429, told("rate_limit_error"), "rate_limited", True),
        (500, told("api_error"), "server_error", True),
        (503, b"", "server_error", True),
        (529, told("overloaded_error"), "server_error", True),
    ],
)
async def test_a_status_says_whether_to_try_again(status: int, body: bytes, kind: str, retryable: bool) -> None:
    error = await failure(body, status=status, content_type=JSON, retry_after="3")

    assert (error.kind, error.retryable, error.http_status) == (kind, retryable, status)
    assert error.retry_after_ms == (3000 if retryable else None)


async def test_an_error_that_does_not_end_is_told_in_time(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    error = await failure(told("overloaded_error"), Silence(), status=529, content_type=JSON)

    assert trio.current_time() - began == ERROR_BODY_S
    assert "words" in str(error)


async def test_an_error_that_breaks_off_is_told_with_what_there_is() -> None:
    error = await failure(told("api_error"), Broken(), status=500, content_type=JSON)

    assert "words" in str(error)


async def test_the_registry_builds_it_and_a_worker_takes_its_models_by_name() -> None:
    config = UpstreamConfig(name="a", type="anthropic", api_key_env="K")
    models = Models.build([config], {"K": "k"})
    await models.discover(ask_providers=False)

    source, info = models.resolve("a/claude-haiku-4-5")

    assert isinstance(source, AnthropicUpstream)
    assert info == ModelInfo(
        name="a/claude-haiku-4-5", connection_name="a", model_id="claude-haiku-4-5", context_window_tokens=200_000
    )
