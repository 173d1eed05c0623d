"""From the pieces of a chat completions answer to stream events. Pure: bytes are read elsewhere."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from peen.errors import ModelError
from peen.model.chatwire import CallPiece, Choice, Chunk, Delta, Part
from peen.model.fold import LENGTH
from peen.model.refusal import stream_error
from peen.model.stream import (
    CallDelta,
    CallStarted,
    CallStopped,
    Finished,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    UsageReported,
)

_LENGTH_WORDS: Final = frozenset({LENGTH, "max_tokens", "model_length"})
# A call that was open when one of these came is not whole, whatever its JSON looks like.
_BROKEN_OFF: Final = frozenset({LENGTH, "content_filter"})
_decode_any: Final = msgspec.json.Decoder(Any).decode


class _Call:
    __slots__ = ("id", "index", "pieces")

    def __init__(self, index: int, call_id: str) -> None:
        self.index, self.id = index, call_id
        self.pieces: list[str] = []

    def is_whole(self) -> bool:
        """Whether its arguments are JSON already, so that more of them cannot follow."""
        try:
            _decode_any("".join(self.pieces))
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


class ChatTranslator:
    """Reads the chunks of one answer in their order."""

    def __init__(self, model_id: str) -> None:
        self._model = model_id
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self.ended = False
        """The provider has given its finish reason: the answer is whole."""

    def take(self, chunk: Chunk, out: list[StreamEvent]) -> None:
        """Append to `out` what `chunk` says. Raises: ModelError if it is an error in the place of a chunk."""
        if chunk.error is not None:
            raise stream_error(chunk.error)
        if chunk.model:
            self._model = chunk.model
        for choice in chunk.choices or ():
            if not choice.index:
                self._choice(choice, out)
        if chunk.usage is not None:
            out.append(UsageReported(chunk.usage.usage()))

    def _choice(self, choice: Choice, out: list[StreamEvent]) -> None:
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
        if reason not in _BROKEN_OFF:
            out.extend(CallStopped(call.index) for call in self._calls)
        self.ended = True
        out.append(Finished(reason=reason, response_model=self._model))

    def _delta(self, delta: Delta, out: list[StreamEvent]) -> None:
        # Some servers send the same reasoning under both names.
        thinking = delta.reasoning_content or delta.reasoning
        if thinking:
            out.append(ThinkingDelta(thinking))
        if delta.content:
            if isinstance(delta.content, str):
                out.append(TextDelta(delta.content))
            else:
                _parts(delta.content, out)
        if delta.refusal:
            out.append(TextDelta(delta.refusal))
        for piece in delta.tool_calls or ():
            self._call_piece(piece, out)

    def _call_piece(self, piece: CallPiece, out: list[StreamEvent]) -> None:
        function = piece.function
        name = (function.name if function is not None else None) or ""
        given = function.arguments if function is not None else None
        arguments = given if isinstance(given, str) else "" if given is None else msgspec.json.encode(given).decode()
        call = self._known(piece, name, arguments)
        if call is None:
            if not name:
                raise ModelError(
                    "the provider's stream makes no sense: a piece of a call that was not started",
                    kind="bad_stream",
                    retryable=True,
                )
            call = _Call(len(self._calls), piece.id or "")
            self._calls.append(call)
            if piece.index is not None:
                self._by_index[piece.index] = call
            out.append(CallStarted(index=call.index, id=call.id, name=name))
        if arguments:
            call.pieces.append(arguments)
            out.append(CallDelta(index=call.index, json=arguments))

    def _known(self, piece: CallPiece, name: str, arguments: str) -> _Call | None:
        """The call that `piece` goes on with, or None if it begins one.

        Most servers number their calls; some give every call the number 0, and some none at all. So another id
        under the same number is another call, and so is a name with arguments behind a call that was whole.
        """
        call = self._by_index.get(piece.index) if piece.index is not None else self._last()
        if call is None:
            return None
        if name and piece.id and piece.id != call.id:
            return None
        if name and arguments and call.pieces and call.is_whole():
            return None
        if piece.index is None and name and not piece.id and call.pieces:
            return None
        return call

    def _last(self) -> _Call | None:
        return self._calls[-1] if self._calls else None


def _parts(parts: list[Part], out: list[StreamEvent]) -> None:
    for part in parts:
        if isinstance(part.thinking, list):
            text = "".join(inner.text or "" for inner in part.thinking)
        else:
            text = part.thinking or ""
        if text:
            out.append(ThinkingDelta(text))
        if part.text:
            out.append(TextDelta(part.text))
