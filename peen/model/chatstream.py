"""From the pieces of a chat completions answer to stream events. Pure: bytes are read elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from peen.errors import ModelError
from peen.model.chatlenient import odd_chunk
from peen.model.chatthought import Thought
from peen.model.chatwire import CallPiece, Choice, Chunk, Delta, ErrorObject, FunctionDelta, Part, decode_chunk
from peen.model.fold import LENGTH
from peen.model.refusal import stream_error
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
from peen.model.surrogates import decode_with_halves

Hide = Callable[[ErrorObject | str], ErrorObject | str]
"""Takes secrets out of a provider's error."""

_LENGTH_WORDS: Final = frozenset({LENGTH, "max_tokens", "model_length"})
# A call that was open when one of these came is not whole, whatever its JSON looks like.
_BROKEN_OFF: Final = frozenset({LENGTH, "content_filter"})
_decode_any: Final = msgspec.json.Decoder(Any).decode
_decode_error: Final = msgspec.json.Decoder(ErrorObject).decode


class _Call:
    __slots__ = ("id", "index", "name", "pieces", "started")

    def __init__(self, index: int, call_id: str) -> None:
        self.index, self.id, self.name = index, call_id, ""
        self.pieces: list[str] = []
        self.started = False

    def is_whole(self) -> bool:
        """Whether its arguments are JSON already, so that more of them cannot follow."""
        return self._value() is not None

    def is_object(self) -> bool:
        """The same, and they are an object: text that was cut in its middle never is."""
        return isinstance(self._value(), dict)

    def _value(self) -> Any:
        try:
            return _decode_any("".join(self.pieces))
        except (msgspec.DecodeError, RecursionError, UnicodeError):  # the last of a half that waits for its other one
            return None


class ChatTranslator:
    """Reads the chunks of one answer in their order."""

    def __init__(self, model_id: str, *, hide: Hide = lambda error: error, keeps: bool = True) -> None:
        """`keeps`: the reasoning of the answer may go back to its model, so it is kept under the name of its field."""
        self._model, self._hide = model_id, hide
        self._thought = Thought() if keeps else None
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[tuple[int | None, str], _Call] = {}
        self._held: _Call | None = None
        self._has_begun = False
        self.ended = False
        """The provider has given its finish reason: the answer is whole."""
        self.over = False  # but for `[DONE]`, which is no event of this dialect
        self.has_halves = False
        """Some text was cut inside a character; see `peen.model.surrogates`."""

    def read(self, event: SseEvent, out: list[StreamEvent]) -> None:
        """Append to `out` what `event` says. Raises: ModelError if it is an error, msgspec.DecodeError."""
        if event.name == "error":
            raise stream_error(self._hide(error_in(event.data)))
        self.take(self._chunk(event.data), out)

    def read_whole(self, body: bytes, out: list[StreamEvent]) -> None:
        """The same of a document in the place of a stream."""
        self.take(self._chunk(body), out)
        self.done(out)

    def done(self, out: list[StreamEvent]) -> None:
        """The provider said that its stream ends.

        That is an end also for an answer without a finish reason. Of its calls those are whole whose arguments are an
        object from its first to its last brace; any other may have been cut, and stays open.
        """
        if self.ended or not self._has_begun:
            return
        self._start_held(out)
        out.extend(CallStopped(call.index) for call in self._calls if call.is_object())
        self._end("", out)

    def finish(self, out: list[StreamEvent]) -> None:
        """An answer that has no end by now was cut."""

    def take(self, chunk: Chunk, out: list[StreamEvent]) -> None:
        """Append to `out` what `chunk` says. Raises: ModelError if it is an error in the place of a chunk."""
        if chunk.error is not None:
            raise stream_error(self._hide(chunk.error))
        if chunk.model:
            self._model = chunk.model
        for choice in chunk.choices or ():
            if not choice.index:
                self._choice(choice, out)
        if chunk.usage is not None:
            out.append(UsageReported(chunk.usage.usage()))

    def _chunk(self, data: bytes) -> Chunk:
        try:
            return decode_chunk(data)
        except msgspec.ValidationError:
            return odd_chunk(data)
        except (msgspec.DecodeError, UnicodeError):
            chunk = decode_with_halves(data, Chunk)
            self.has_halves = True
            return chunk

    def _choice(self, choice: Choice, out: list[StreamEvent]) -> None:
        self._has_begun = True
        delta = choice.delta or choice.message
        if delta is not None:
            self._delta(delta, out)
        reason = choice.finish_reason
        if not reason or self.ended:
            return
        if reason == "error":
            raise stream_error("the model ended with an error")
        if reason in _LENGTH_WORDS:
            reason = LENGTH
        if reason == "function_call" and not self._calls:
            raise _old_call()
        self._start_held(out)
        if reason not in _BROKEN_OFF:
            out.extend(CallStopped(call.index) for call in self._calls)
        self._end(reason, out)

    def _end(self, reason: str, out: list[StreamEvent]) -> None:
        self.ended = True
        item = None if self._thought is None else self._thought.item()
        if item is not None:
            out.append(ReasoningKept(item))
        out.append(Finished(reason=reason, response_model=self._model))

    def _delta(self, delta: Delta, out: list[StreamEvent]) -> None:
        # Some servers send the same reasoning under several names.
        thinking = delta.reasoning_content or delta.reasoning or delta.thinking
        thinks = delta.reasoning_content is not None or delta.reasoning is not None or delta.reasoning_details
        if thinks and self._thought is not None:
            self._thought.take(delta)
        if thinking and (text := thinking if isinstance(thinking, str) else _said(thinking)):
            out.append(ThinkingDelta(text))
        if delta.content:
            if isinstance(delta.content, str):
                out.append(TextDelta(delta.content))
            else:
                _parts(delta.content, out)
        if delta.refusal:
            out.append(TextDelta(delta.refusal))
        if delta.tool_calls:
            touched: list[_Call] = []
            for piece in delta.tool_calls:
                touched.append(self._call_piece(piece, touched, out))
        elif isinstance(delta.function_call, dict) and delta.function_call.get("name"):
            raise _old_call()

    def _call_piece(self, piece: CallPiece, touched: list[_Call], out: list[StreamEvent]) -> _Call:
        function = piece.function or FunctionDelta(piece.name, piece.arguments)
        name = function.name or ""
        given = function.arguments
        # An object comes whole, but an empty one is what some servers begin with before they send text.
        arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode() if given else ""
        call = self._known(piece, name, arguments, touched)
        if call is None:
            if not name:
                raise ModelError(
                    "the provider's stream makes no sense: a piece of a call that was not started",
                    kind="bad_stream",
                    retryable=True,
                )
            call = self._begin(piece, out)
        if name and not call.started:
            # A name may come in pieces, or once more with every piece.
            call.name = name if name.startswith(call.name) else call.name + name
            self._held = call
        if arguments or not name:
            if not call.started:
                self._start_held(out)
            if arguments:
                call.pieces.append(arguments)
                out.append(CallDelta(index=call.index, json=arguments))
        return call

    def _begin(self, piece: CallPiece, out: list[StreamEvent]) -> _Call:
        self._start_held(out)
        call = _Call(len(self._calls), piece.id or "")
        self._calls.append(call)
        if piece.index is not None:
            self._by_index[piece.index] = call
        if piece.id:
            self._by_id[piece.index, piece.id] = call
        return call

    def _start_held(self, out: list[StreamEvent]) -> None:
        """The call whose name may have gone on has its whole name."""
        call, self._held = self._held, None
        if call is not None:
            call.started = True
            out.append(CallStarted(index=call.index, id=call.id, name=call.name))

    def _known(self, piece: CallPiece, name: str, arguments: str, touched: list[_Call]) -> _Call | None:
        """The call that `piece` goes on with, or None if it begins one.

        Most servers number their calls; some give every call the number 0, and some none at all. So another id
        under the same number is another call, and so is a name with arguments behind a call that was whole, or a
        name beside a piece of the call that came in the same event.
        """
        call = self._by_id.get((piece.index, piece.id)) if piece.id else None
        if call is None:
            call = self._by_index.get(piece.index) if piece.index is not None else self._last()
        if call is None or not name:
            return call
        if piece.id and piece.id != call.id:
            return None
        if call in touched or (arguments and call.pieces and call.is_whole()):
            return None
        if piece.index is None and not piece.id and (call.started or not call.id):
            return None
        return call

    def _last(self) -> _Call | None:
        return self._calls[-1] if self._calls else None


def _old_call() -> ModelError:
    return ModelError(
        "the provider calls a tool by `function_call`, a form that was replaced by `tool_calls` and is not understood",
        kind="bad_response",
        retryable=False,
    )


def error_in(data: bytes) -> ErrorObject | str:
    """Of an event called `error`: in the usual shape, without its envelope, or as plain text."""
    try:
        return decode_chunk(data).error or _decode_error(data)
    except (msgspec.DecodeError, RecursionError):
        return data.decode("utf-8", "replace")


def _said(thinking: dict[str, Any]) -> str:
    """The text of reasoning that comes as an object."""
    found = thinking.get("content") or thinking.get("text")
    return found if isinstance(found, str) else ""


def _parts(parts: list[Part | str], out: list[StreamEvent]) -> None:
    for part in parts:
        if isinstance(part, str):
            if part:
                out.append(TextDelta(part))
            continue
        if isinstance(part.thinking, list):
            text = "".join(inner.text or "" for inner in part.thinking)
        else:
            text = part.thinking or ""
        if text:
            out.append(ThinkingDelta(text))
        if part.text:
            out.append(TextDelta(part.text))
