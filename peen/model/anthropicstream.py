"""From the events of a Messages answer to stream events. Pure: bytes are read elsewhere."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from peen.errors import ModelError
from peen.model.anthropicerrors import stream_failure
from peen.model.anthropicwire import (
    Block,
    Delta,
    Event,
    Mender,
    Message,
    StopDetails,
    UsageReport,
    decode_event,
    decode_message,
)
from peen.model.chatstream import Hide, error_in
from peen.model.fold import LENGTH
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

_LENGTH_WORDS: Final = frozenset({LENGTH, "max_tokens", "model_context_window_exceeded"})
_REFUSAL: Final = "refusal"
KEPT_TYPES: Final = frozenset({"thinking", "redacted_thinking", "text", "tool_use"})
_encode: Final = msgspec.json.encode


class Kept(Struct, frozen=True, omit_defaults=True):
    """An item of kept reasoning, as it is stored and sent again.

    Besides the provider's own `thinking` and `redacted_thinking` there are placeholders, for what stood before a later
    one of these: `text` for the next `characters` of the answer's text, `tool_use` for the call `id`. What follows the
    last thinking has none.
    """

    type: str
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    characters: int | None = None
    id: str | None = None


class _Open:
    """A block that has started. `kind` is empty for one that means nothing to us."""

    __slots__ = ("call", "given", "has_pieces", "kind", "mend", "said", "signature", "thinking")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.mend = Mender()
        self.call = -1
        self.given: Any = None  # input that came with the start
        self.has_pieces = False
        self.said = 0  # characters
        self.thinking: list[str] = []
        self.signature: list[str] = []


class MessageTranslator:
    """Reads the events of one answer in their order; `finish` comes last."""

    has_halves = False  # each block mends its own text

    def __init__(self, model_id: str, *, hide: Hide = lambda error: error) -> None:
        self._model, self._hide = model_id, hide
        self._open: dict[int, _Open] = {}
        self._calls = 0
        self._has_text = False
        self._before: list[tuple[Kept, int | None]] = []  # placeholders since the last kept thinking, with their calls
        self._usage = UsageReport()
        self._reason: str | None = None
        self._details: StopDetails | None = None
        self._finished = False
        self.over = False
        """The provider has ended the message."""

    @property
    def ended(self) -> bool:
        """Whether the reason why the answer ends is known: it is whole."""
        return self.over or self._reason is not None

    def read(self, event: SseEvent, out: list[StreamEvent]) -> None:
        """Append to `out` what `event` says.

        Raises: ModelError if it is an error, or makes no sense; msgspec.DecodeError.
        """
        if event.name == "error":
            raise stream_failure(self._hide(error_in(event.data)))
        found = decode_event(event.data)
        self.take(found if found.type else msgspec.structs.replace(found, type=event.name), out)

    def read_whole(self, body: bytes, out: list[StreamEvent]) -> None:
        """The same of a document in the place of a stream."""
        self.take_whole(decode_message(body), out)

    def done(self, out: list[StreamEvent]) -> None:
        """`[DONE]` belongs to other dialects, and says nothing about the answer."""

    def take(self, event: Event, out: list[StreamEvent]) -> None:
        """Append to `out` what `event` says. Raises: ModelError if it is an error, or makes no sense."""
        if event.error is not None or event.type == "error":
            raise stream_failure(self._hide(event.error if event.error is not None else "no reason given"))
        match event.type:
            case "message_start" if event.message is not None:
                self._model = event.message.model or self._model
                self._report(event.message.usage, out)
            case "content_block_start" if event.content_block is not None:
                self._start(event.index or 0, event.content_block, out)
            case "content_block_delta" if event.delta is not None:
                self._delta(event.index or 0, event.delta, out)
            case "content_block_stop":
                self._stop(event.index or 0, out)
            case "message_delta":
                if event.delta is not None:
                    self._reason = event.delta.stop_reason or self._reason
                    self._details = event.delta.stop_details or self._details
                self._report(event.usage, out)
            case "message_stop":
                self.over = True
                self.finish(out)
            case _:
                pass  # `ping`, and whatever comes to be

    def take_whole(self, message: Message, out: list[StreamEvent]) -> None:
        """An answer that is not streamed. Raises: ModelError as `take` does."""
        if message.error is not None or message.type == "error":
            raise stream_failure(self._hide(message.error if message.error is not None else "no reason given"))
        if message.content is None:
            raise ModelError("the provider answered with JSON that is no answer", kind="bad_response", retryable=True)
        self._model = message.model or self._model
        for index, block in enumerate(message.content):
            self._start(index, block, out)
            self._stop(index, out)
        self._report(message.usage, out)
        self._reason, self._details = message.stop_reason, message.stop_details
        self.over = True
        self.finish(out)

    def finish(self, out: list[StreamEvent]) -> None:
        """The stream is over. Without a reason and without its last event it was cut, and `out` gets no end."""
        if self._finished or not self.ended:
            return
        self._finished = True
        reason = self._reason or ("tool_use" if self._calls else "end_turn")
        if reason == _REFUSAL:
            if any(block.kind == "tool_use" for block in self._open.values()):
                raise ModelError("the provider refused to go on inside a call", kind="refused", retryable=False)
            if not self._has_text and self._details is not None and self._details.explanation:
                out.append(TextDelta(self._details.explanation))
        out.append(Finished(reason=LENGTH if reason in _LENGTH_WORDS else reason, response_model=self._model))

    def _start(self, index: int, block: Block, out: list[StreamEvent]) -> None:
        if index in self._open:
            if self._open[index].kind == "tool_use":
                raise _bad_stream(f"it started block {index} inside a call")
            self._stop(index, out)
        known = block.type in ("text", "thinking", "redacted_thinking", "tool_use")
        opened = self._open[index] = _Open(block.type if known else "")
        match block.type:
            case "text":
                self._text(opened, block.text, out)
            case "thinking":
                self._thinking(opened, block.thinking, block.signature, out)
            case "redacted_thinking" if block.data:
                self._keep(Kept(type="redacted_thinking", data=block.data), out)
            case "tool_use":
                opened.call, opened.given = self._calls, block.input
                self._calls += 1
                self._before.append((Kept(type="tool_use"), opened.call))
                out.append(CallStarted(index=opened.call, id=block.id or "", name=block.name or ""))

    def _delta(self, index: int, delta: Delta, out: list[StreamEvent]) -> None:
        block = self._open.get(index)
        if delta.partial_json is not None:
            if block is None:
                raise _bad_stream(f"it sent a piece of block {index}, which is not open")
            if block.kind == "tool_use":
                self._json(block, delta.partial_json, out)
            return
        if block is None:
            # Some servers leave out the start of the only block they have; one of text needs none.
            block = self._open[index] = _Open("text" if delta.text is not None else "thinking")
        if block.kind == "text":
            self._text(block, delta.text, out)
        elif block.kind == "thinking":
            self._thinking(block, delta.thinking, delta.signature, out)

    def _stop(self, index: int, out: list[StreamEvent]) -> None:
        block = self._open.pop(index, None)
        if block is None:
            return
        rest = block.mend.rest()
        match block.kind:
            case "text":
                if rest:
                    self._say(block, rest, out)
                if block.said:
                    self._before.append((Kept(type="text", characters=block.said), None))
            case "thinking":
                if rest:
                    block.thinking.append(rest)
                    out.append(ThinkingDelta(rest))
                if block.signature:
                    thought, signature = "".join(block.thinking), "".join(block.signature)
                    self._keep(Kept(type="thinking", thinking=thought, signature=signature), out)
            case "tool_use":
                if rest:
                    out.append(CallDelta(index=block.call, json=rest))
                elif not block.has_pieces and block.given:
                    given = block.given if isinstance(block.given, str) else _encode(block.given).decode()
                    out.append(CallDelta(index=block.call, json=given))
                out.append(CallStopped(index=block.call))

    def _text(self, block: _Open, piece: str | None, out: list[StreamEvent]) -> None:
        if piece and (text := block.mend(piece)):
            self._say(block, text, out)

    def _say(self, block: _Open, text: str, out: list[StreamEvent]) -> None:
        block.said += len(text)
        self._has_text = True
        out.append(TextDelta(text))

    def _thinking(self, block: _Open, piece: str | None, signature: str | None, out: list[StreamEvent]) -> None:
        if signature:
            block.signature.append(signature)
        if piece and (text := block.mend(piece)):
            block.thinking.append(text)
            out.append(ThinkingDelta(text))

    def _json(self, block: _Open, piece: str, out: list[StreamEvent]) -> None:
        if piece:
            block.has_pieces = True
            if text := block.mend(piece):
                out.append(CallDelta(index=block.call, json=text))

    def _keep(self, item: Kept, out: list[StreamEvent]) -> None:
        out.extend(ReasoningKept(Raw(_encode(one)), call) for one, call in (*self._before, (item, None)))
        self._before.clear()

    def _report(self, report: UsageReport | None, out: list[StreamEvent]) -> None:
        if report is None:
            return
        # Counts only grow: a zero that comes late is one that the server did not know.
        merged = {}
        for name in UsageReport.__struct_fields__:
            before, now = getattr(self._usage, name), getattr(report, name)
            is_larger = now is not None and (before is None or not isinstance(now, int) or now > before)
            merged[name] = now if is_larger else before
        self._usage = UsageReport(**merged)
        out.append(UsageReported(self._usage.usage()))


def _bad_stream(problem: str) -> ModelError:
    return ModelError(f"the provider's stream makes no sense: {problem}", kind="bad_stream", retryable=True)
