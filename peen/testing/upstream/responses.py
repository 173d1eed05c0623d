"""The dialect of OpenAI's Responses API, from the provider's side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from peen.errors import ModelError
from peen.model.fold import LENGTH, Answer
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
from peen.testing.upstream.openai import OpenAiWire
from peen.testing.upstream.responseswire import Sealed, parse_responses
from peen.testing.upstream.wire import Asked
from peen.wire.records import Usage

_encode: Final = msgspec.json.encode
_PREFIXES: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


class ResponsesWire:
    """`/v1/responses`; keys, models and refusals are those of the other dialect."""

    base_path = OpenAiWire.base_path
    answer_path = "/v1/responses"
    models_path = OpenAiWire.models_path

    def __init__(self) -> None:
        self._chat = OpenAiWire()

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        return self._chat.key_of(headers)

    def parse(self, body: bytes, *, name: str, created_s: int, strict: bool) -> Asked:
        return parse_responses(body, name=name, created_s=created_s, strict=strict)

    def writer(self, asked: Asked) -> EventWriter:
        return EventWriter(asked)

    def whole(self, asked: Asked, answer: Answer) -> bytes:
        writer = EventWriter(asked)
        events: list[StreamEvent] = [ThinkingDelta(answer.thinking)] if answer.thinking else []
        events += [TextDelta(answer.text)] if answer.text else []
        for index, call in enumerate(answer.calls):
            events += [CallStarted(index, call.id, call.name), CallDelta(index, bytes(call.arguments).decode())]
        events += [UsageReported(answer.usage), Finished(answer.finish_reason, asked.request.model_id)]
        for event in events:
            for _frame in writer.take(event):
                pass
        return writer.response()

    def models(self, infos: Sequence[ModelInfo], created_s: int) -> bytes:
        return self._chat.models(infos, created_s)

    def refusal(self, error: ModelError) -> bytes:
        return self._chat.refusal(error)

    def broken(self, error: ModelError) -> SseEvent:
        named = msgspec.json.decode(self.refusal(error))["error"]
        code = named["code"] or named["type"]
        data = {"type": "error", "code": code, "message": named["message"], "param": None, "sequence_number": 0}
        return SseEvent("error", _encode(data))


class _Open:
    """The part of the output that is being written."""

    __slots__ = ("call", "index", "kind", "name", "pieces")

    def __init__(self, kind: str, index: int, call: str = "", name: str = "") -> None:
        self.kind, self.index, self.call, self.name = kind, index, call, name
        self.pieces: list[str] = []


class EventWriter:
    """Streamed events, each with its number, and at the end the whole answer once more."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._sequence = 0
        self._output: list[Raw] = []
        self._open: _Open | None = None
        self._usage = Usage()
        self._status, self._why = "in_progress", ""

    def begin(self) -> Iterable[SseEvent]:
        return [self._event(f"response.{kind}", response=Raw(self.response())) for kind in ("created", "in_progress")]

    def take(self, event: StreamEvent) -> Iterable[SseEvent]:
        match event:
            case ThinkingDelta(text=text):
                yield from self._piece("reasoning", "response.reasoning_summary_text.delta", text, summary_index=0)
            case TextDelta(text=text):
                yield from self._piece(
                    "message", "response.output_text.delta", text, content_index=0, logprobs=[]
                )  # fmt: skip
            case CallStarted(id=call_id, name=name):
                yield from self._start("function_call", call_id, name)
            case CallDelta(json=text):
                yield from self._piece("function_call", "response.function_call_arguments.delta", text)
            case CallStopped():
                yield from self._stop()
            case UsageReported(usage=usage):
                self._usage = usage
            case Finished(reason=reason):
                yield from self._stop()
                is_cut = reason in (LENGTH, "content_filter")
                self._status = "incomplete" if is_cut else "completed"
                self._why = "max_output_tokens" if reason == LENGTH else reason if is_cut else ""
            case ReasoningKept():
                pass  # scripts hold none: what is given out is sealed here

    def end(self) -> Iterable[SseEvent]:
        yield self._event(f"response.{self._status}", response=Raw(self.response()))

    def response(self) -> bytes:
        """The answer as far as it has come."""
        return _encode({
            "id": f"resp_{self._asked.name}", "object": "response", "created_at": self._asked.created_s,
            "status": self._status, "model": self._asked.request.model_id, "error": None,
            "incomplete_details": {"reason": self._why} if self._why else None, "output": self._output,
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "instructions": None, "metadata": {},
            "temperature": 1.0, "top_p": 1.0, "usage": None if self._status == "in_progress" else _usage(self._usage),
        })  # fmt: skip

    def _piece(self, kind: str, name: str, text: str, **more: Any) -> Iterable[SseEvent]:
        if self._open is None or self._open.kind != kind:
            yield from self._start(kind)
        part = self._part()
        part.pieces.append(text)
        yield self._event(name, item_id=self._id(part), output_index=part.index, delta=text, **more)

    def _start(self, kind: str, call: str = "", name: str = "") -> Iterable[SseEvent]:
        yield from self._stop()
        part = self._open = _Open(kind, len(self._output), call, name)
        item = Raw(self._item(part, "in_progress"))
        yield self._event("response.output_item.added", output_index=part.index, item=item)
        place = {"item_id": self._id(part), "output_index": part.index}
        if kind == "message":
            empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield self._event("response.content_part.added", **place, content_index=0, part=empty)
        elif kind == "reasoning":
            empty = {"type": "summary_text", "text": ""}
            yield self._event("response.reasoning_summary_part.added", **place, summary_index=0, part=empty)

    def _stop(self) -> Iterable[SseEvent]:
        if self._open is None:
            return
        part = self._part()
        text = "".join(part.pieces)
        place = {"item_id": self._id(part), "output_index": part.index}
        if part.kind == "message":
            whole = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            yield self._event("response.output_text.done", **place, content_index=0, text=text, logprobs=[])
            yield self._event("response.content_part.done", **place, content_index=0, part=whole)
        elif part.kind == "reasoning":
            whole = {"type": "summary_text", "text": text}
            yield self._event("response.reasoning_summary_text.done", **place, summary_index=0, text=text)
            yield self._event("response.reasoning_summary_part.done", **place, summary_index=0, part=whole)
        else:
            yield self._event("response.function_call_arguments.done", **place, arguments=text, name=part.name)
        item = Raw(self._item(part, "completed"))
        self._output.append(item)
        self._open = None
        yield self._event("response.output_item.done", output_index=part.index, item=item)

    def _part(self) -> _Open:
        assert self._open is not None, "a piece without its start"
        return self._open

    def _id(self, part: _Open) -> str:
        return f"{_PREFIXES[part.kind]}_{self._asked.name}_{part.index}"

    def _item(self, part: _Open, status: str) -> bytes:
        text = "".join(part.pieces)
        if part.kind == "reasoning":
            sealed = Sealed(self._asked.request.model_id, self._id(part), text)
            return sealed.item(sealed=self._asked.seals and status == "completed")
        item: dict[str, Any] = {"id": self._id(part), "type": part.kind, "status": status}
        if part.kind == "message":
            content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}] if text else []
            return _encode({**item, "role": "assistant", "content": content})
        return _encode({**item, "call_id": part.call, "name": part.name, "arguments": text})

    def _event(self, kind: str, /, **fields: Any) -> SseEvent:
        data = _encode({"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return SseEvent(kind, data)


def _usage(usage: Usage) -> dict[str, Any]:
    prompt, completion = usage.prompt or 0, usage.completion or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": usage.cache_read or 0, "cache_write_tokens": usage.cache_write or 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": prompt + completion,
    }
