from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.errors import ModelError
from peen.model.chatwire import ErrorObject
from peen.model.refusal import MAX_TEXT, retry_after_ms, status_error, stream_error, unexpected_page

NOW_MS = 1_700_000_000_000  # Tue, 14 Nov 2023 22:13:20 GMT


def body(**error: object) -> bytes:
    return msgspec.json.encode({"error": error})


def error(status: int, content: bytes = b"", **headers: str) -> ModelError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status_error(status, named, content, now_ms=NOW_MS, place="http://p:1")


@pytest.mark.parametrize(
    ("status", "content", "kind", "retryable"),
    [
        (429, body(message="slow", code="rate_limit_exceeded"), "rate_limited", True),
        (429, body(message="pay", type="insufficient_quota"), "quota_exhausted", False),
        (429, body(message="pay", code="insufficient_quota"), "quota_exhausted", False),
        (402, b"", "quota_exhausted", False),
        (408, b"", "timeout", True),
        (409, b"", "server_error", True),
        (500, body(message="oops"), "server_error", True),
        (503, b"<html><title>Busy</title>", "server_error", True),
        (529, b"", "server_error", True),
        (400, body(message="bad"), "invalid_request", False),
        (400, body(message="x", code="context_length_exceeded"), "context_length_exceeded", False),
        (400, body(message="This model's maximum context length is 8192 tokens"), "context_length_exceeded", False),
        (401, body(message="who"), "unauthorized", False),
        (403, b"", "unauthorized", False),
        (404, body(message="no such model"), "invalid_request", False),
        (422, b"", "invalid_request", False),
        (302, b"", "invalid_request", False),
    ],
)
def test_a_status_says_whether_another_attempt_can_help(
    status: int, content: bytes, kind: str, retryable: bool
) -> None:
    found = error(status, content)

    assert (found.kind, found.retryable, found.http_status) == (kind, retryable, status)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (body(message="slow  down\n please"), "slow down please"),
        (b'{"error":"just text"}', "just text"),
        (b'{"message":"at the top","code":7}', "at the top"),
        (b'{"detail":"not found"}', "not found"),
        (b'{"detail":[{"loc":["body"]}]}', "[{'loc': ['body']}]"),
        (body(code="server_busy"), "server_busy"),
        (b"plain words", "plain words"),
        (b"<!DOCTYPE html><html><head><title>502 Bad\nGateway</title>", "502 Bad Gateway"),
        (b"  <html>nothing to see", "a web page"),
        (b"", "no reason given"),
        (b'{"error":{"message":"' + b"x" * 9000 + b'"}}', "x" * (MAX_TEXT - 1) + "…"),
        (b"[" * 100_000, "[" * (MAX_TEXT - 1) + "…"),
    ],
)
def test_the_providers_own_words_are_found_and_cut(content: bytes, words: str) -> None:
    assert str(error(500, content)) == f"the provider answered with status 500: {words}"


@pytest.mark.parametrize(
    ("headers", "wait_ms"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2_000),
        ({"retry-after": "0.25"}, 250),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, 30_000),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:50 -0000"}, 30_000),
        ({"retry-after": "Tue, 14 Nov 2023 22:00:00 GMT"}, 0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1_500),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9_000),
    ],
)
def test_the_wait_that_is_asked_for_may_be_seconds_or_a_date(headers: dict[str, str], wait_ms: int | None) -> None:
    assert retry_after_ms(headers, now_ms=NOW_MS) == wait_ms
    assert status_error(429, headers, b"", now_ms=NOW_MS, place="p").retry_after_ms == wait_ms


@given(st.text(max_size=40))
def test_no_header_is_too_odd(text: str) -> None:
    wait_ms = retry_after_ms({"retry-after": text}, now_ms=NOW_MS)

    assert wait_ms is None or wait_ms >= 0


def test_a_wait_is_not_taken_from_an_error_that_nobody_repeats() -> None:
    assert error(400, retry_after="5").retry_after_ms is None


@pytest.mark.parametrize(
    ("given_error", "kind", "retryable", "status"),
    [
        (ErrorObject(message="busy", type="overloaded_error"), "server_error", True, None),
        (ErrorObject(message="busy", type="api_error"), "server_error", True, None),
        (ErrorObject(message="busy", code="rate_limit_exceeded"), "rate_limited", True, None),
        (ErrorObject(message="pay", code="insufficient_quota"), "quota_exhausted", False, None),
        (ErrorObject(message="bad", type="invalid_request_error"), "invalid_request", False, None),
        (ErrorObject(message="the prompt is too long"), "context_length_exceeded", False, None),
        (ErrorObject(message="upstream", code=502), "server_error", True, None),
        (ErrorObject(message="upstream", code="429"), "rate_limited", True, None),
        (ErrorObject(message="upstream", code=7), "server_error", True, None),
        ("something broke", "server_error", True, None),
    ],
)
def test_an_error_in_the_stream_is_classified_like_a_status(
    given_error: ErrorObject | str, kind: str, retryable: bool, status: int | None
) -> None:
    found = stream_error(given_error)

    assert (found.kind, found.retryable, found.http_status) == (kind, retryable, status)
    words = given_error if isinstance(given_error, str) else given_error.message
    assert str(found) == f"the provider broke off its answer: {words}"


def test_a_web_page_with_status_200_points_at_the_address() -> None:
    found = unexpected_page("text/html", b"<html><title>Welcome to nginx!</title>", place="http://p:1")

    assert str(found) == (
        "http://p:1 answered with a web page ('Welcome to nginx!') in place of a model's answer; check baseUrl"
    )
    assert (found.kind, found.retryable) == ("bad_response", False)
