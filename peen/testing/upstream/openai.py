"""The dialect of OpenAI's chat completions API, from the provider's side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

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
from peen.testing.upstream.openaiwire import parse_chat
from peen.testing.upstream.wire import Asked
from peen.wire.records import Usage

_encode: Final = msgspec.json.encode
_CODES: Final = {
    "rate_limited": ("rate_limit_error", "rate_limit_exceeded"),
    "quota_exhausted": ("insufficient_quota", "insufficient_quota"),
    "unauthorized": ("invalid_request_error", "invalid_api_key"),
    "server_error": ("server_error", None),
}


class OpenAiWire:
    """`/v1/chat/completions` and `/v1/models`."""

    base_path = "/v1"
    answer_path = "/v1/chat/completions"
    models_path = "/v1/models"

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return key.strip() if scheme.lower() == "bearer" else None

    def parse(self, body: bytes, *, name: str, created_s: int, strict: bool) -> Asked:
        return parse_chat(body, name=f"chatcmpl-{name}", created_s=created_s, strict=strict)

    def writer(self, asked: Asked) -> ChunkWriter:
        return ChunkWriter(asked)

    def whole(self, asked: Asked, answer: Answer) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if answer.thinking:
            message["reasoning_content"] = answer.thinking
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": bytes(call.arguments).decode()},
                }
                for call in answer.calls
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}
        return _encode({
            "id": asked.name, "object": "chat.completion", "created": asked.created_s,
            "model": asked.request.model_id, "choices": [choice], "usage": _usage(answer.usage),
        })  # fmt: skip

    def models(self, infos: Sequence[ModelInfo], created_s: int) -> bytes:
        listed = []
        for info in infos:
            model = {"id": info.model_id, "object": "model", "created": created_s, "owned_by": "peen"}
            if info.context_window_tokens is not None:
                model["context_window"] = info.context_window_tokens
            listed.append(model)
        return _encode({"object": "list", "data": listed})

    def refusal(self, error: ModelError) -> bytes:
        kind, code = _CODES.get(error.kind, ("invalid_request_error", error.kind))
        return _encode({"error": {"message": str(error), "type": kind, "param": None, "code": code}})

    def broken(self, error: ModelError) -> SseEvent:
        return SseEvent("", self.refusal(error))


class ChunkWriter:
    """Streamed chunks. All but the choice stays the same, so it is encoded once."""

    def __init__(self, asked: Asked) -> None:
        self._head = (
            _encode({
                "id": asked.name, "object": "chat.completion.chunk", "created": asked.created_s,
                "model": asked.request.model_id, "system_fingerprint": "fp_peen",
            })[:-1]
            + b","
        )  # fmt: skip
        self._include_usage = asked.include_usage
        self._tail = b',"usage":null}' if asked.include_usage else b"}"
        self._usage = Usage()

    def begin(self) -> Iterable[SseEvent]:
        return (self._choice({"role": "assistant", "content": "", "refusal": None}),)

    def take(self, event: StreamEvent) -> Iterable[SseEvent]:
        match event:
            case TextDelta(text=text):
                return (self._choice({"content": text}),)
            case ThinkingDelta(text=text):
                return (self._choice({"reasoning_content": text}),)
            case CallStarted(index=index, id=call_id, name=name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                return (self._choice({"tool_calls": [call]}),)
            case CallDelta(index=index, json=piece):
                return (self._choice({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}),)
            case CallStopped() | ReasoningKept():
                return ()  # this dialect has no word for it: the finish reason closes all calls
            case UsageReported(usage=usage):
                self._usage = usage
                return ()
            case Finished(reason=reason):
                return (self._choice({}, reason),)

    def end(self) -> Iterable[SseEvent]:
        if self._include_usage:
            usage = _encode({"choices": [], "usage": _usage(self._usage)})
            yield SseEvent("", self._head + usage[1:])
        yield SseEvent("", b"[DONE]")

    def _choice(self, delta: dict[str, Any], reason: str | None = None) -> SseEvent:
        choice = _encode({"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason})
        return SseEvent("", b'%b"choices":[%b]%b' % (self._head, choice, self._tail))


def _usage(usage: Usage) -> dict[str, Any]:
    prompt, completion = usage.prompt or 0, usage.completion or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read or 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
    }
