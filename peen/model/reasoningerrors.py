"""Refusals of chat completions that are about reasoning in the messages, or the lack of it. Pure."""

from __future__ import annotations

import re
from typing import Final

from peen.errors import ModelError
from peen.model.reasoning import REASONING_MISSED

_FIELD: Final = re.compile(
    r"reasoning_content|reasoning_details|(?:messages|assistant)\S{0,20}\breasoning\b", re.IGNORECASE
)
_MISSED: Final = re.compile(
    r"passed back|pass back|missing|required|must be (?:provided|included|present)", re.IGNORECASE
)


def misses_reasoning(error: ModelError) -> bool:
    """Whether a request was refused since an answer in it came without its reasoning."""
    return _is_about_field(error) and _MISSED.search(str(error)) is not None


def as_missed(error: ModelError) -> ModelError:
    """The same error as `REASONING_MISSED`: the next request has an empty text in its place."""
    return ModelError(str(error), kind=REASONING_MISSED, retryable=False, status=error.http_status)


def with_remedy(error: ModelError) -> ModelError:
    """The same error; one about reasoning in the messages says which setting of the upstream helps."""
    if not _is_about_field(error):
        return error
    setting = "always" if _MISSED.search(str(error)) else "never"
    text = f'{error} (what of its reasoning a model gets back is set by "reasoning" of its upstream: try "{setting}")'
    told = ModelError(text, kind=error.kind, retryable=error.retryable, status=error.http_status)
    told.images = error.images
    return told


def _is_about_field(error: ModelError) -> bool:
    return error.kind == "invalid_request" and _FIELD.search(str(error)) is not None
