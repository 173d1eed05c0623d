"""What an answer that is no answer means: statuses, error objects and pages, as the one ModelError. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from peen.errors import ModelError
from peen.model.chatwire import ErrorObject, decode_failure, decode_failures
from peen.model.wordings import (
    QUOTA_NAMES,
    TOO_LONG_NAMES,
    says_no_quota,
    says_too_long,
    says_too_much_at_once,
    told_wait_ms,
)

MAX_TEXT: Final = 500
"""Characters of a provider's own words; the rest is cut."""

TOO_LONG: Final = "context_length_exceeded"
"""Kind of the error when a request is longer than the model's context window."""
_JUDGED: Final = (400, 403, 422, 500)
"""Statuses of a request that is too long; some gateways pass the words on with their own 500."""
_RATE: Final = frozenset({"rate_limit_exceeded", "rate_limit_error", "rate_limited", "too_many_requests"})
_OUR_FAULT: Final = frozenset({
    "invalid_request_error", "invalid_api_key", "authentication_error", "permission_error", "not_found_error",
    "model_not_found", "content_policy_violation", "content_filter",
})  # fmt: skip
_HTML: Final = re.compile(rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype html|html)", re.IGNORECASE | re.DOTALL)
_TITLE: Final = re.compile(r"<title[^>]*>(.{1,300}?)</title>", re.IGNORECASE | re.DOTALL)


def status_error(status: int, headers: Mapping[str, str], body: bytes, *, now_ms: int, place: str) -> ModelError:
    """The error of an answer with a status other than 200. `place` is the provider's address, for the text.

    Worth another attempt: 408, 409, 429 and 5xx, unless the provider says that a quota is used up.
    """
    if 300 <= status < 400:
        text = f"{place} redirects elsewhere (status {status}), which is not followed; set baseUrl to the final address"
        return ModelError(text, kind="invalid_request", retryable=False, status=status)
    error = _failure_of(body)
    words = _words(error, body) or "no reason given"
    text = error.message or words
    kind, retryable = _by_status(status, error, text)
    if isinstance(error.param, str) and error.param.startswith("messages") and error.param not in words:
        words = f"{words} ({_cut(error.param)})"
    return ModelError(
        f"the provider answered with status {status}: {words}",
        kind=kind,
        retryable=retryable,
        status=status,
        retry_after_ms=_wait_ms(headers, text, now_ms=now_ms) if retryable else None,
    )


def stream_error(error: ErrorObject | str) -> ModelError:
    """The error that a provider put into a stream which had begun with status 200.

    A number in it may be that of a status, which says what the error is; the answer itself had another one.
    """
    given = error if isinstance(error, ErrorObject) else ErrorObject(message=error)
    words = _cut(given.message or "") or str(given.code or given.type or "no reason given")
    names = _names(given)
    code = given.code
    status = int(code) if code is not None and re.fullmatch(r"[45]\d\d", str(code)) else None
    if status is not None:
        kind, retryable = _by_status(status, given, given.message or words)
    elif names & QUOTA_NAMES:
        kind, retryable = "quota_exhausted", False
    elif names & _RATE:
        kind, retryable = _by_status(429, given, given.message or words)
    elif _is_too_long(given, words):
        kind, retryable = TOO_LONG, False
    elif says_no_quota(words):
        kind, retryable = "quota_exhausted", False
    else:
        ours = bool(names & _OUR_FAULT)
        kind, retryable = ("invalid_request", False) if ours else ("server_error", True)
    return ModelError(f"the provider broke off its answer: {words}", kind=kind, retryable=retryable)


def is_too_long(words: str) -> bool:
    """Whether a provider's words say that a request is longer than the model's context window."""
    return says_too_long(words)


def unexpected_page(content_type: str, body: bytes, *, place: str) -> ModelError:
    """Status 200, but neither a stream nor JSON: most likely the address of something else."""
    what = "a web page" if looks_like_html(body) else f"content of type {_cut(content_type) or 'unknown'}"
    title = _title(body)
    text = f"{place} answered with {what}{f' ({title!r})' if title else ''} in place of a model's answer; check baseUrl"
    return ModelError(text, kind="bad_response", retryable=False, status=200)


def unexpected_text(*, place: str) -> ModelError:
    """Status 200 and some text, but neither a stream nor JSON."""
    text = f"{place} answered with text that is neither a stream nor JSON in place of a model's answer; check baseUrl"
    return ModelError(text, kind="bad_response", retryable=False, status=200)


def looks_like_html(body: bytes) -> bool:
    """Whether a body begins like a web page."""
    return _HTML.match(body) is not None


def retry_after_ms(headers: Mapping[str, str], *, now_ms: int) -> int | None:
    """The wait that `retry-after-ms` or `retry-after` (seconds or an HTTP date) asks for; None without a usable one."""
    exact = _number(headers.get("retry-after-ms"))
    if exact is not None:
        return exact
    text = headers.get("retry-after")
    seconds = _number(text, scale=1000)
    if seconds is not None or text is None:
        return seconds
    try:
        moment = parsedate_to_datetime(text)
        if moment.tzinfo is None:  # "-0000" means UTC in an HTTP date
            moment = moment.replace(tzinfo=UTC)
        return max(0, round(moment.timestamp() * 1000) - now_ms)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _number(text: str | None, *, scale: int = 1) -> int | None:
    try:
        value = float(text) * scale if text is not None else math.nan
    except ValueError:
        return None
    return round(value) if math.isfinite(value) and value >= 0 else None


def _by_status(status: int, error: ErrorObject, words: str) -> tuple[str, bool]:
    """Kind, and whether another attempt may help. `words` are all that the provider says."""
    names = _names(error)
    if names & QUOTA_NAMES or status == 402 or (status in (400, 403, 429) and says_no_quota(words)):
        return "quota_exhausted", False
    if status == 413 or (status in _JUDGED and _is_too_long(error, words)):
        # A limit on bytes is met by what meets one on tokens.
        return TOO_LONG, False
    if status == 429:
        # More than a whole minute's tokens at once: no wait helps.
        if says_too_much_at_once(words):
            return TOO_LONG, False
        return "rate_limited", True
    if status == 408:
        return "timeout", True
    if status == 409 or status >= 500:
        return "server_error", True
    if status in (401, 403):
        return "unauthorized", False
    return "invalid_request", False


def _is_too_long(error: ErrorObject, words: str) -> bool:
    return bool(_names(error) & TOO_LONG_NAMES) or says_too_long(words)


def _wait_ms(headers: Mapping[str, str], words: str, *, now_ms: int) -> int | None:
    """The wait that is asked for by a header, or else in words."""
    asked_ms = retry_after_ms(headers, now_ms=now_ms)
    return told_wait_ms(words) if asked_ms is None else asked_ms


def _names(error: ErrorObject) -> set[str]:
    return {str(name).lower() for name in (error.type, error.code) if name is not None}


def _failure_of(body: bytes) -> ErrorObject:
    try:
        # Google puts its error into a list of one.
        found = decode_failures(body)[0] if body.lstrip().startswith(b"[") else decode_failure(body)
    except (msgspec.DecodeError, RecursionError, IndexError):
        return ErrorObject()
    if isinstance(found.error, ErrorObject):
        return found.error
    detail = found.detail if found.detail is None or isinstance(found.detail, str) else str(found.detail)
    return ErrorObject(message=found.error or found.message or detail, type=found.type, code=found.code)


def _words(error: ErrorObject, body: bytes) -> str:
    if error.message:
        return _cut(error.message)
    if error.code or error.type:
        return _cut(str(error.code or error.type))
    if looks_like_html(body):
        return _title(body) or "a web page"
    return _cut(body[: 4 * MAX_TEXT].decode("utf-8", "replace"))


def _title(body: bytes) -> str:
    found = _TITLE.search(body[:65_536].decode("utf-8", "replace"))
    return _cut(found[1]) if found else ""


def _cut(text: str) -> str:
    """One line of at most `MAX_TEXT` characters."""
    line = " ".join(text[: 8 * MAX_TEXT].split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"
