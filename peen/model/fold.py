"""From stream events to a finished answer: the only place that knows what of a stream may be believed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from peen.errors import ModelError
from peen.model.stream import (
    CallDelta,
    CallStarted,
    CallStopped,
    Finished,
    ReasoningKept,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    UsageReported,
)
from peen.wire.records import ToolCallRecord, Usage

LENGTH: Final = "length"
MAX_ANSWER_CHARACTERS: Final = 4 * 1024 * 1024
"""Text, reasoning and arguments of one answer together; far above what any model writes at once."""
_EMPTY_OBJECT: Final = Raw(b"{}")
_decode_any: Final = msgspec.json.Decoder(Any).decode


class Answer(Struct, frozen=True, kw_only=True):
    """One finished answer of a model. Text and calls may both be absent: an empty answer is a legal one.

    `truncated` says that the output limit cut the answer; its calls, whole or not, have been dropped. `reasoning` holds
    the items of its `ReasoningKept`, in their order.
    """

    text: str
    thinking: str
    calls: tuple[ToolCallRecord, ...]
    finish_reason: str
    usage: Usage
    response_model: str
    truncated: bool = False
    reasoning: tuple[Raw, ...] = ()


class _OpenCall:
    __slots__ = ("id", "name", "pieces", "stopped")

    def __init__(self, call_id: str, name: str) -> None:
        self.id, self.name = call_id, name
        self.pieces: list[str] = []
        self.stopped = False


class Fold:
    """Collects one answer.

    `call_prefix` makes ids for calls that come without one or with one that is `taken` already, by this answer or
    by an earlier one of the conversation: some servers give every call the same id, and no provider accepts that.
    """

    def __init__(self, call_prefix: str, *, taken: Collection[str] = ()) -> None:
        self._prefix, self._taken = call_prefix, taken
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: dict[int, _OpenCall] = {}
        self._ids: set[str] = set()
        self._reasoning: list[Raw] = []
        self._usage = Usage()
        self._size = 0
        self._finished: Finished | None = None

    def _grow(self, characters: int) -> None:
        self._size += characters
        if self._size > MAX_ANSWER_CHARACTERS:
            raise ModelError(
                f"the answer has more than {MAX_ANSWER_CHARACTERS} characters", kind="answer_too_large", retryable=False
            )

    def add(self, event: StreamEvent) -> StreamEvent:
        """Take one event; returns it as others may see it, which differs only in the id of a call.

        Raises: ModelError `bad_stream` when the event cannot follow what came before.
        """
        if self._finished is not None and not isinstance(event, UsageReported):
            raise _bad_stream("it went on after its end")
        match event:
            case TextDelta():
                self._grow(len(event.text))
                self._text.append(event.text)
            case ThinkingDelta():
                self._grow(len(event.text))
                self._thinking.append(event.text)
            case CallStarted():
                return self._start(event)
            case CallDelta():
                self._grow(len(event.json))
                self._open_call(event.index).pieces.append(event.json)
            case CallStopped():
                self._open_call(event.index).stopped = True
            case ReasoningKept():
                self._grow(len(bytes(event.item)))
                self._reasoning.append(event.item if event.call is None else self._named(event.item, event.call))
            case UsageReported():
                self._usage = merge_usage(self._usage, event.usage)
            case Finished():
                self._finished = event
        return event

    @property
    def has_content(self) -> bool:
        """Whether anything of the answer has come that is shown."""
        return bool(self._text or self._thinking or self._calls)

    @property
    def has_ended(self) -> bool:
        """Whether the provider has ended the answer."""
        return self._finished is not None

    @property
    def usage(self) -> Usage:
        """What was reported so far."""
        return self._usage

    def finish(self) -> Answer:
        """The whole answer.

        Raises: ModelError `stream_cut` when the provider did not end it, or left a call open.
        """
        if self._finished is None:
            raise ModelError("the provider's stream ended without an end signal", kind="stream_cut", retryable=True)
        truncated = self._finished.reason == LENGTH
        if not truncated:
            for call in self._calls.values():
                if not call.stopped:
                    raise ModelError(
                        f"the provider ended its answer inside the call of {call.name!r}",
                        kind="stream_cut",
                        retryable=True,
                    )
        return Answer(
            text="".join(self._text),
            thinking="".join(self._thinking),
            calls=() if truncated else tuple(_record(call) for call in self._calls.values()),
            finish_reason=self._finished.reason,
            usage=self._usage,
            response_model=self._finished.response_model,
            truncated=truncated,
            reasoning=tuple(self._reasoning),
        )

    def _start(self, event: CallStarted) -> CallStarted:
        if not event.name:
            raise _bad_stream(f"it started call {event.index} without a name")
        if event.index in self._calls:
            raise _bad_stream(f"it started call {event.index} twice")
        call_id = self._free_id(event.id)
        self._ids.add(call_id)
        self._calls[event.index] = _OpenCall(call_id, event.name)
        return event if call_id == event.id else CallStarted(index=event.index, id=call_id, name=event.name)

    def _named(self, item: Raw, index: int) -> Raw:
        if index not in self._calls:
            raise _bad_stream(f"it stands for call {index}, which has not begun")
        return Raw(msgspec.json.encode(_decode_any(item) | {"id": self._calls[index].id}))

    def _free_id(self, wanted: str) -> str:
        candidate, suffix = wanted, 1
        while not candidate or candidate in self._ids or candidate in self._taken:
            tail = "" if suffix == 1 else f"_{suffix}"
            candidate = f"{self._prefix}_{len(self._calls)}{tail}"
            suffix += 1
        return candidate

    def _open_call(self, index: int) -> _OpenCall:
        call = self._calls.get(index)
        if call is None or call.stopped:
            raise _bad_stream(f"it sent a piece of call {index}, which is not open")
        return call


def merge_usage(before: Usage, report: Usage) -> Usage:
    """`before` with every field that `report` knows replaced; a zero takes nothing back that was reported."""
    known = {
        name: value
        for name in Usage.__struct_fields__
        if (value := getattr(report, name)) is not None and (value > 0 or getattr(before, name) is None)
    }
    return msgspec.structs.replace(before, **known)


def normal_arguments(text: str) -> Raw:
    """The arguments of a call as valid JSON on one line.

    Nothing and `null` mean no arguments: `{}`. Other JSON stays as it was written, even if it is no object, and
    text that is not JSON becomes a JSON string; both are for the tool layer to refuse with an error result.
    """
    data = text.strip().encode("utf-8", "replace")
    if data in (b"", b"null"):
        return _EMPTY_OBJECT
    try:
        _decode_any(data)
    except (msgspec.DecodeError, RecursionError):
        return Raw(msgspec.json.encode(data.decode()))
    # A line end inside JSON is only ever white space, and stored JSON may travel in formats of one line each.
    one_line = msgspec.json.format(data, indent=-1) if b"\n" in data or b"\r" in data else data
    return Raw(one_line)


def _record(call: _OpenCall) -> ToolCallRecord:
    return ToolCallRecord(id=call.id, name=call.name, arguments=normal_arguments("".join(call.pieces)))


def _bad_stream(problem: str) -> ModelError:
    return ModelError(f"the provider's stream makes no sense: {problem}", kind="bad_stream", retryable=True)
