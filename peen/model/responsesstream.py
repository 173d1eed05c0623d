"""From the events of a Responses answer to stream events. Pure: bytes are read elsewhere."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from peen.errors import ModelError
from peen.model.chatstream import Hide, error_in
from peen.model.chatwire import ErrorObject
from peen.model.fold import LENGTH
from peen.model.refusal import stream_error
from peen.model.responsesbody import CALLED, SPOKEN
from peen.model.responseswire import Event, OutputItem, Piece, Response, decode_event, decode_item, decode_response
from peen.model.sse import SseEvent
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
from peen.model.surrogates import decode_with_halves, without_halves
from peen.wire.records import NOTHING

_TEXT: Final = frozenset({"response.output_text.delta", "response.refusal.delta"})
_THINKING: Final = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})
_WHOLE: Final = frozenset({"response.output_item.added", "response.output_item.done"})
_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


class _Item:
    """One part of the output. `said` is whether anything of it has been passed on, `is_done` whether it is whole."""

    __slots__ = ("call", "is_broken", "is_done", "kept", "kind", "said")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.call: int | None = None
        self.kept: Raw | None = None
        self.said = self.is_done = self.is_broken = False


class ResponsesTranslator:
    """Reads the events of one answer in their order."""

    def __init__(self, model_id: str, *, hide: Hide = lambda error: error) -> None:
        self._model, self._hide = model_id, hide
        self._items: dict[int, _Item] = {}
        self._calls = 0
        self._summary: tuple[int | None, int | None] | None = None
        self.ended = False
        self.has_halves = False

    def read(self, event: SseEvent, out: list[StreamEvent]) -> None:
        """Append to `out` what `event` says. Raises: ModelError if it is an error, msgspec.DecodeError."""
        if event.name == "error":
            raise stream_error(self._hide(error_in(event.data)))
        try:
            found = decode_event(event.data)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeError):
            found = self._with_halves(event.data)
        self.take(found, out)

    def _with_halves(self, data: bytes) -> Event:
        """Only what goes on in the next event may end in the middle of a character."""
        piece = decode_with_halves(data, Piece)
        if not piece.type.endswith(".delta"):
            return decode_event(without_halves(data))
        self.has_halves = True
        return Event(piece.type, piece.delta, piece.output_index, piece.summary_index)

    def read_whole(self, body: bytes, out: list[StreamEvent]) -> None:
        """The same of a document in the place of a stream."""
        response = decode_response(body)
        if response.object != "response" and response.output is None and response.error is None:
            return
        self._end(response, out)

    def done(self, out: list[StreamEvent]) -> None:
        """`[DONE]` is no end here: an answer that ended well has said so in an event of its own."""

    def finish(self, out: list[StreamEvent]) -> None:
        """Nor is the end of the stream."""

    @property
    def over(self) -> bool:
        """The event that ends an answer is its last one."""
        return self.ended

    def take(self, event: Event, out: list[StreamEvent]) -> None:
        """Append to `out` what `event` says. Raises: ModelError if it is an error."""
        kind = event.type
        if kind in _TEXT:
            self._text(event, out)
        elif kind in _THINKING:
            self._thinking(event, out)
        elif kind == "response.function_call_arguments.delta":
            self._arguments(self._item(event.output_index, "function_call"), event.delta, out)
        elif kind == "response.function_call_arguments.done":
            item = self._item(event.output_index, "function_call")
            if not item.said:
                self._arguments(item, event.arguments, out)
        elif kind in _WHOLE and event.item != NOTHING:
            self._whole_item(event.output_index, event.item, out, is_done=kind.endswith("done"))
        elif kind in _ENDS:
            self._end(decode_response(event.response), out, kind)
        elif event.error is not None:
            raise stream_error(self._hide(event.error))
        elif kind == "error":
            raise stream_error(self._hide(ErrorObject(message=event.message, code=event.code)))

    def _text(self, event: Event, out: list[StreamEvent]) -> None:
        self._item(event.output_index, "message").said = True
        if isinstance(event.delta, str) and event.delta:
            out.append(TextDelta(event.delta))

    def _thinking(self, event: Event, out: list[StreamEvent]) -> None:
        self._item(event.output_index, "reasoning").said = True
        if not isinstance(event.delta, str) or not event.delta:
            return
        part = (event.output_index, event.summary_index)
        between = "" if self._summary in (None, part) else "\n\n"
        self._summary = part
        out.append(ThinkingDelta(between + event.delta))

    def _arguments(self, item: _Item, text: Any, out: list[StreamEvent]) -> None:
        if item.call is None:
            raise ModelError(
                "the provider's stream makes no sense: a piece of a call that was not started",
                kind="bad_stream",
                retryable=True,
            )
        if isinstance(text, str) and text:
            item.said = True
            out.append(CallDelta(item.call, text))

    def _item(self, output_index: int | None, kind: str) -> _Item:
        """The part number `output_index`; without a number, the last of its kind."""
        if output_index is None:
            known = [item for item in self._items.values() if item.kind == kind]
            return known[-1] if known else self._items.setdefault(len(self._items), _Item(kind))
        found = self._items.get(output_index)
        if found is None:
            found = self._items[output_index] = _Item(kind)
        return found

    def _whole_item(self, output_index: int | None, raw: Raw, out: list[StreamEvent], *, is_done: bool) -> None:
        """A part begins, or is there as a whole; what of it did not come in pieces is passed on now."""
        item = decode_item(raw)
        if output_index is None and not is_done:
            output_index = len(self._items)
        part = self._item(output_index, item.type)
        if item.type == "function_call":
            self._call(part, item, out)
        if not is_done:
            return
        part.is_broken = item.status == "incomplete"
        if item.type == "message" and not part.said:
            out.extend(TextDelta(text) for text in _texts(item.content, ("text", "refusal")))
        elif item.type == "reasoning":
            if not part.said and (text := "\n\n".join(_texts(item.summary, ("text",)))):
                out.append(ThinkingDelta(text))
            # Without its encrypted form it means nothing to a provider that stored nothing: that is for display only.
            part.kept = Raw(bytes(raw)) if item.encrypted_content else None
        part.said = part.is_done = True

    def _call(self, part: _Item, item: OutputItem, out: list[StreamEvent]) -> None:
        if part.call is None:
            part.call = self._calls
            self._calls += 1
            out.append(CallStarted(part.call, item.call_id or "", item.name or ""))
        if item.arguments and not part.said:
            self._arguments(part, item.arguments, out)

    def _end(self, response: Response, out: list[StreamEvent], kind: str = "") -> None:
        if self.ended:
            return
        status = response.status or kind.removeprefix("response.") or "completed"
        if response.error is not None or status in ("failed", "cancelled"):
            raise stream_error(self._hide(response.error or f"the response is {status}"))
        if status not in ("completed", "incomplete"):
            return
        for number, raw in enumerate(response.output or ()):
            if number not in self._items or not self._items[number].is_done:
                self._whole_item(number, raw, out, is_done=True)
        cut = status == "incomplete"
        why = (response.incomplete_details.reason if response.incomplete_details is not None else None) or status
        if not cut:
            calls = (item.call for item in self._items.values() if not item.is_broken)
            out.extend(CallStopped(call) for call in calls if call is not None)
        out.extend(map(ReasoningKept, self._layout()))
        if response.usage is not None:
            out.append(UsageReported(response.usage.usage()))
        self.ended = True
        reason = LENGTH if cut and why in ("max_output_tokens", "max_tokens") else why if cut else status
        out.append(Finished(reason=reason, response_model=response.model or self._model))

    def _layout(self) -> list[Raw]:
        """The output in its order, if any reasoning in it is to be kept."""
        found: list[Raw] = []
        for _number, item in sorted(self._items.items()):
            if item.kept is not None:
                found.append(item.kept)
            elif item.kind == "message":
                found.append(SPOKEN)
            elif item.call is not None:
                found.append(CALLED)
        return found if any(item not in (SPOKEN, CALLED) for item in found) else []


def _texts(parts: list[dict[str, Any]] | None, fields: tuple[str, ...]) -> list[str]:
    """What the parts of a message, or of a summary, say."""
    found = (part.get(field) for part in parts or () for field in fields)
    return [text for text in found if isinstance(text, str) and text]
