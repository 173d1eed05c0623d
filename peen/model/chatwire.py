"""The chat completions dialect as it comes in: every field that some server leaves out, or gets wrong, is optional."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from peen.wire.records import Usage


class Part(Struct, frozen=True):
    """A piece of content from servers that send content as a list."""

    type: str = ""
    text: str | None = None
    thinking: str | list[Part] | None = None


class FunctionDelta(Struct, frozen=True):
    """`arguments` is text that goes on from delta to delta; some servers send the finished object instead."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallPiece(Struct, frozen=True):
    """`name` and `arguments` are those of a function that some servers leave the envelope out of."""

    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class Delta(Struct, frozen=True):
    """What is new in an answer, or all of it where a server does not stream."""

    content: str | list[Part | str] | None = None
    reasoning_content: str | None = None
    reasoning: str | dict[str, Any] | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    thinking: str | dict[str, Any] | None = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None
    function_call: Any = None
    """A call in the form that came before `tool_calls`."""


class Choice(Struct, frozen=True):
    index: int | None = 0
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None


class PromptDetails(Struct, frozen=True):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class CompletionDetails(Struct, frozen=True):
    reasoning_tokens: int | None = None


class UsageReport(Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None

    def usage(self) -> Usage:
        """What is known stays known, and nothing else becomes zero: a negative number says nothing."""
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        cached = _known(None if prompt is None else prompt.cached_tokens)
        return Usage(
            prompt=_known(self.prompt_tokens),
            completion=_known(self.completion_tokens),
            reasoning=_known(None if completion is None else completion.reasoning_tokens),
            cache_read=_known(self.prompt_cache_hit_tokens) if cached is None else cached,
            cache_write=_known(None if prompt is None else prompt.cache_write_tokens),
        )


def _known(tokens: int | None) -> int | None:
    return None if tokens is None or tokens < 0 else tokens


class ErrorObject(Struct, frozen=True):
    message: str | None = None
    type: str | None = None
    code: str | int | None = None
    param: Any = None
    """Which part of the request it is about; by some a path in it."""


class Chunk(Struct, frozen=True):
    """One event of a stream, a whole answer, or an error in the place of either."""

    model: str | None = None
    choices: list[Choice] | None = None
    usage: UsageReport | None = None
    error: ErrorObject | str | None = None


class Failure(Struct, frozen=True):
    """The body of an answer with an error status, in the shapes that servers give it."""

    error: ErrorObject | str | None = None
    message: str | None = None
    detail: Any = None
    type: str | None = None
    code: str | int | None = None


class ListedModel(Struct, frozen=True):
    """One model of `GET /models`; each server publishes its window under a name of its own, most none at all."""

    id: str
    created: float | None = None
    context_window: int | None = None
    context_length: int | None = None
    max_model_len: int | None = None

    @property
    def window(self) -> int | None:
        """Tokens of the context window, if it is published and means something."""
        published = (self.context_window, self.context_length, self.max_model_len)
        return next((size for size in published if size is not None and size > 0), None)


class ModelPage(Struct, frozen=True):
    data: list[ListedModel]


decode_chunk: Final = msgspec.json.Decoder(Chunk).decode
decode_failure: Final = msgspec.json.Decoder(Failure).decode
decode_failures: Final = msgspec.json.Decoder(list[Failure]).decode
decode_models: Final = msgspec.json.Decoder(ModelPage).decode
