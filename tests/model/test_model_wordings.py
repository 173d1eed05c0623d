"""Refusals in the words of real providers, and texts that look like them and are not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from peen.errors import ModelError
from peen.model.anthropicerrors import status_failure, stream_failure
from peen.model.chatwire import ErrorObject
from peen.model.refusal import TOO_LONG, status_error, stream_error

NOW_MS = 1_700_000_000_000
NO_QUOTA = ("quota_exhausted", False)
RATE = ("rate_limited", True)
GEMINI = "You exceeded your current quota, please check your plan and billing details. {}Please retry in 17.30897372s."


def refused(status: int, body: Any) -> ModelError:
    return status_error(status, {}, msgspec.json.encode(body), now_ms=NOW_MS, place="http://p:1")


def said(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


TOO_LONGS: dict[str, tuple[int, Any]] = {
    "openai": (400, said("Your input exceeds the context window of this model.")),
    "openrouter": (400, said("This endpoint's maximum context length is 131072 tokens.")),
    "vllm": (
        400,
        {
            "object": "error",
            "message": "The decoder prompt (length 17772) is longer than the maximum model length of 16384.",
            "type": "BadRequestError",
            "code": 400,
        },
    ),
    "vllm, images": (
        400,
        said("The prompt (total length 25938) is too long to fit into the model (context length 4096)."),
    ),
    "sglang": (400, {"message": "The input (40000 tokens) is longer than the model's context length (32768 tokens)."}),
    "llama.cpp": (
        400,
        said(
            "the request exceeds the available context size, try increasing it",
            type="exceed_context_size_error",
            code=400,
        ),
    ),
    "llama.cpp, name alone": (400, said("no room", type="exceed_context_size_error")),
    "ollama": (400, said("prompt too long; exceeded max context length by 812 tokens")),
    "lm studio": (
        400,
        said("The number of tokens to keep from the initial prompt is greater than the context length."),
    ),
    "gemini": (
        400,
        [
            said(
                "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
                code=400,
                status="INVALID_ARGUMENT",
            )
        ],
    ),
    "z.ai": (400, said("Prompt exceeds max length", code="1261")),
    "z.ai, code alone": (400, said("提示词过长", code=1261)),
    "xai": (
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 537812.",
        },
    ),
    "anthropic": (400, said("prompt is too long: 213462 tokens > 200000 maximum")),
    "anthropic, gateway": (400, said("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000")),
    "bedrock": (400, said("Input is too long for requested model.")),
    "groq": (400, said("Please reduce the length of the messages or completion.")),
    "copilot": (400, said("prompt token count of 130000 exceeds the limit of 128000")),
    "kimi": (
        400,
        said(
            "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)",
            type="invalid_request_error",
        ),
    ),
    "qwen": (400, said("Range of input length should be [1, 129024]", code="invalid_parameter_error")),
    "qianfan": (400, said("Prompt tokens too long", code="tokens_too_long")),
    "together": (
        403,
        said("Input token count + max_tokens parameter must be less than the context length of the model"),
    ),
    "tgi": (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096."}),
    "gateway's 500": (
        500,
        said("litellm.ContextWindowExceededError: This model's maximum context length is 8192 tokens"),
    ),
    "openai, tokens of a minute": (
        429,
        said(
            "Request too large for gpt-4o on tokens per min (TPM): Limit 30000",
            type="tokens",
            code="rate_limit_exceeded",
        ),
    ),
    "groq, tokens of a minute": (
        413,
        said(
            "Request too large for model `m` on tokens per minute (TPM): Limit 6000",
            type="tokens",
            code="rate_limit_exceeded",
        ),
    ),
    "a proxy's 413": (413, "<html>413 Request Entity Too Large</html>"),
}


@pytest.mark.parametrize("name", TOO_LONGS)
def test_a_request_that_is_too_long_is_recognised_in_the_words_of(name: str) -> None:
    status, body = TOO_LONGS[name]

    found = refused(status, body)

    assert (found.kind, found.retryable, found.http_status) == (TOO_LONG, False, status)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens"),
        (400, "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64"),
        (400, "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40"),
        (400, "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum"),
        (400, "Tool description is too long"),
        (400, "System message must be at the beginning."),
        (400, "The `stop` list is too long for this model: at most 4"),
        (404, "The model `long-context` does not exist"),
        (422, "Input should be a valid string"),
    ],
)
def test_what_no_shorter_conversation_mends_is_not_taken_for_too_long(status: int, message: str) -> None:
    found = refused(status, said(message))

    assert (found.kind, found.retryable) == ("invalid_request", False)


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (429, said("Insufficient balance or no resource package. Please recharge.", code="1113"), NO_QUOTA),
        (429, said("账户已欠费", code=1113), NO_QUOTA),
        (
            429,
            said("Usage limit reached for 5 hour. Your limit will reset at 2026-12-01 03:00:00", code="1308"),
            NO_QUOTA,
        ),
        (429, said("Weekly/Monthly Limit Exhausted.", code="1310"), NO_QUOTA),
        (402, said("Insufficient Balance", type="unknown_error", code="invalid_request_error"), NO_QUOTA),
        (402, said("This request requires more credits, or fewer max_tokens.", code=402), NO_QUOTA),
        (403, said("You've reached your usage limit for this billing cycle."), NO_QUOTA),
        (429, said("You've reached your usage limit for this period."), NO_QUOTA),
        (
            429,
            said("Your account is suspended due to insufficient balance", type="exceeded_current_quota_error"),
            NO_QUOTA,
        ),
        (429, said("You exceeded your current quota, please check your plan and billing details."), NO_QUOTA),
        (429, [said(GEMINI.format("* Quota exceeded for metric: x, limit: 0, model: gemini-3-pro "))], NO_QUOTA),
        (429, [said(GEMINI.format("* Quota exceeded for metric: x, limit: 1000000, model: gemini-3-pro "))], RATE),
        (
            429,
            said("Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000 requests per day"),
            NO_QUOTA,
        ),
        (429, said("Your credit balance is too low to access the API."), NO_QUOTA),
        (429, said("Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000. Try again in 1.2s."), RATE),
        (429, said("Rate limit reached for requests", code="1302"), RATE),
        (429, said("Usage limit reached: 60 requests per minute"), RATE),
        (429, said("The engine is currently overloaded, please try again later", type="engine_overloaded_error"), RATE),
    ],
)
def test_a_quota_that_is_used_up_is_told_from_a_rate_that_is_waited_for(
    status: int, body: Any, outcome: tuple[str, bool]
) -> None:
    found = refused(status, body)

    assert (found.kind, found.retryable) == outcome


def test_a_wait_in_words_is_waited_for_where_no_header_names_one() -> None:
    body = msgspec.json.encode([said(GEMINI.format("limit: 10, model: m "))])

    assert status_error(429, {}, body, now_ms=NOW_MS, place="p").retry_after_ms == 17_309
    assert status_error(429, {"retry-after": "2"}, body, now_ms=NOW_MS, place="p").retry_after_ms == 2_000


def test_the_messages_api_tells_the_same_by_its_type() -> None:
    body = msgspec.json.encode({"type": "error", "error": {"type": "1113", "message": "Insufficient balance"}})

    found = status_failure(429, {}, body, now_ms=NOW_MS, place="p")
    streamed = stream_failure(ErrorObject(type="1308", message="Usage limit reached for 5 hour."))

    assert (found.kind, found.retryable) == NO_QUOTA
    assert (streamed.kind, streamed.retryable) == NO_QUOTA


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ErrorObject(message="Prompt exceeds max length", code="1261"), (TOO_LONG, False)),
        (ErrorObject(message="Input is too long for requested model."), (TOO_LONG, False)),
        (ErrorObject(message="Insufficient credits", code=402), NO_QUOTA),
        (ErrorObject(message="Insufficient balance", code=1113), NO_QUOTA),
        (ErrorObject(message="slow down", code="rate_limit_exceeded"), RATE),
        (ErrorObject(message="upstream died", code=502), ("server_error", True)),
    ],
)
def test_an_error_inside_a_stream_is_told_by_the_same_words(error: ErrorObject, outcome: tuple[str, bool]) -> None:
    found = stream_error(error)

    assert (found.kind, found.retryable, found.http_status) == (*outcome, None)


def test_googles_list_around_an_error_is_taken_off() -> None:
    found = refused(400, [said("Google says no", code=400, status="INVALID_ARGUMENT")])

    assert str(found) == "the provider answered with status 400: Google says no"
