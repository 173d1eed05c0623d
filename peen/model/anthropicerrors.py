"""What the Messages API's errors mean, where they differ from what `peen.model.refusal` knows. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from peen.errors import ModelError
from peen.model.chatwire import ErrorObject
from peen.model.reasoning import REASONING_REFUSED
from peen.model.refusal import TOO_LONG, status_error, stream_error

_TOO_LONG: Final = re.compile(
    r"exceed(s|ed)? (the )?(context|maximum) |too many tokens|request_too_large", re.IGNORECASE
)
_NO_CREDIT: Final = re.compile(r"credit balance is too low", re.IGNORECASE)
_REASONING: Final = re.compile(r"thinking|signature", re.IGNORECASE)


def status_failure(status: int, headers: Mapping[str, str], body: bytes, *, now_ms: int, place: str) -> ModelError:
    """The error of an answer with a status other than 200; see `status_error`."""
    error = status_error(status, headers, body, now_ms=now_ms, place=place)
    if status == 413:
        # The limit is on the request's bytes; what helps is the same as with too many tokens.
        return _as(TOO_LONG, error)
    return _sharpened(error) if status == 400 else error


def stream_failure(error: ErrorObject | str) -> ModelError:
    """The error that the provider put into a stream which had begun with status 200; see `stream_error`."""
    kind = error.type if isinstance(error, ErrorObject) else None
    found = stream_error(error)
    match kind:
        case "billing_error":
            return _as("quota_exhausted", found)
        case "timeout_error":
            return _as("timeout", found)
        case "request_too_large":
            return _as(TOO_LONG, found)
        case _:
            return _sharpened(found)


def reasoning_refused(error: ModelError) -> ModelError:
    """The same error of a request with reasoning in it; as `REASONING_REFUSED` if that is what it is about.

    Then the reasoning was changed, or it belongs to something else.
    """
    judges = error.http_status == 400 and error.kind == "invalid_request"
    return _as(REASONING_REFUSED, error) if judges and _REASONING.search(str(error)) else error


def _sharpened(error: ModelError) -> ModelError:
    if error.retryable or error.kind != "invalid_request":
        return error
    if _NO_CREDIT.search(str(error)):
        return _as("quota_exhausted", error)
    return _as(TOO_LONG, error) if _TOO_LONG.search(str(error)) else error


def _as(kind: str, error: ModelError) -> ModelError:
    return ModelError(str(error), kind=kind, retryable=kind == "timeout", status=error.http_status)
