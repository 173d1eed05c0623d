"""The dialect of Anthropic's Messages API, from the provider's side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from peen.errors import ModelError
from peen.model.fold import Answer
from peen.model.sse import SseEvent
from peen.model.stream import (
    CallDelta,
    CallStarted,
    CallStopped,
    Finished,
    ModelInfo,
    ReasoningKept,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    UsageReported,
)
from peen.testing.upstream.anthropicwire import parse_messages, signature_of
from peen.testing.upstream.wire import Asked
from peen.wire.records import Usage

OUTPUT_TOKENS: Final = 32_000
"""What it publishes as the longest answer of every model."""
_REASONS: Final = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_ERRORS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_encode: Final = msgspec.json.encode


class AnthropicWire:
    """`/v1/messages` and `/v1/models`."""

    base_path = ""
    answer_path = "/v1/messages"
    models_path = "/v1/models"

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else None)

    def parse(self, body: bytes, *, name: str, created_s: int, strict: bool) -> Asked:
        return parse_messages(body, name=f"msg_{name}", created_s=created_s, strict=strict)

    def writer(self, asked: Asked) -> BlockWriter:
        return BlockWriter(asked)

    def whole(self, asked: Asked, answer: Answer) -> bytes:
        content: list[dict[str, Any]] = []
        if answer.thinking:
            signature = signature_of(answer.thinking)
            content.append({"type": "thinking", "thinking": answer.thinking, "signature": signature})
        if answer.text:
            content.append({"type": "text", "text": answer.text})
        content += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in answer.calls
        ]
        reason = _REASONS.get(answer.finish_reason, answer.finish_reason)
        return _encode(_message(asked, content, reason, _usage(answer.usage)))

    def models(self, infos: Sequence[ModelInfo], created_s: int) -> bytes:
        listed = [
            {
                "type": "model",
                "id": info.model_id,
                "display_name": info.model_id,
                "created_at": "2026-01-01T00:00:00Z",
                "lifecycle": "active",
                "max_input_tokens": info.context_window_tokens,
                "max_tokens": OUTPUT_TOKENS,
            }
            for info in infos
        ]
        ids: list[str | None] = [info.model_id for info in infos] or [None]
        return _encode({"data": listed, "has_more": False, "first_id": ids[0], "last_id": ids[-1]})

    def refusal(self, error: ModelError) -> bytes:
        # A provider that is overloaded says so in the middle of a stream, too, where there is no status.
        status = error.http_status or (529 if error.retryable else 400)
        kind = _ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return _encode({"type": "error", "error": {"type": kind, "message": str(error)}, "request_id": "req_peen"})

    def broken(self, error: ModelError) -> SseEvent:
        return SseEvent("error", self.refusal(error))


class BlockWriter:
    """Streamed events. Blocks count up from 0; text and thinking end where something else begins."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._index = -1
        self._open: Literal["text", "thinking"] | None = None
        self._thought: list[str] = []
        self._calls: dict[int, int] = {}
        self._usage = Usage()
        self._reason = "end_turn"

    def begin(self) -> Iterable[SseEvent]:
        # The script says what was used only at the end; counts are cumulative, so they may come there.
        yield _event({"type": "message_start", "message": _message(self._asked, [], None, _usage(Usage()))})
        yield _event({"type": "ping"})

    def take(self, event: StreamEvent) -> Iterable[SseEvent]:
        match event:
            case TextDelta(text=text):
                yield from self._plain("text", {"type": "text", "text": ""})
                yield self._delta(self._index, {"type": "text_delta", "text": text})
            case ThinkingDelta(text=text):
                yield from self._plain("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                self._thought.append(text)
                yield self._delta(self._index, {"type": "thinking_delta", "thinking": text})
            case CallStarted(index=call, id=call_id, name=name):
                yield from self._close()
                block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                yield self._start(block)
                self._calls[call] = self._index
                yield self._delta(self._index, {"type": "input_json_delta", "partial_json": ""})
            case CallDelta(index=call, json=piece):
                yield self._delta(self._calls[call], {"type": "input_json_delta", "partial_json": piece})
            case CallStopped(index=call):
                yield _event({"type": "content_block_stop", "index": self._calls[call]})
            case UsageReported(usage=usage):
                self._usage = usage
            case Finished(reason=reason):
                yield from self._close()
                self._reason = _REASONS.get(reason, reason)
            case ReasoningKept():
                pass  # reasoning that is to come back is signed here, and nowhere else

    def end(self) -> Iterable[SseEvent]:
        delta = {"stop_reason": self._reason, "stop_sequence": None}
        yield _event({"type": "message_delta", "delta": delta, "usage": _usage(self._usage)})
        yield _event({"type": "message_stop"})

    def _plain(self, kind: Literal["text", "thinking"], block: dict[str, Any]) -> Iterator[SseEvent]:
        if self._open != kind:
            yield from self._close()
            yield self._start(block)
            self._open = kind

    def _start(self, block: dict[str, Any]) -> SseEvent:
        self._index += 1
        return _event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _close(self) -> Iterator[SseEvent]:
        if self._open == "thinking":
            signature = signature_of("".join(self._thought))
            self._thought.clear()
            yield self._delta(self._index, {"type": "signature_delta", "signature": signature})
        if self._open is not None:
            yield _event({"type": "content_block_stop", "index": self._index})
        self._open = None

    def _delta(self, index: int, delta: dict[str, Any]) -> SseEvent:
        return _event({"type": "content_block_delta", "index": index, "delta": delta})


def _event(event: dict[str, Any]) -> SseEvent:
    return SseEvent(event["type"], _encode(event))


def _message(asked: Asked, content: list[dict[str, Any]], reason: str | None, usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": asked.name, "type": "message", "role": "assistant", "model": asked.request.model_id, "content": content,
        "stop_reason": reason, "stop_sequence": None, "usage": usage,
    }  # fmt: skip


def _usage(usage: Usage) -> dict[str, Any]:
    read, written = usage.cache_read or 0, usage.cache_write or 0
    found: dict[str, Any] = {
        "input_tokens": max(0, (usage.prompt or 0) - read - written),
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": usage.completion or 0,
    }
    if usage.reasoning is not None:
        found["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return found
