"""Reads a Messages answer off the wire as it comes, and knows when it may stop reading."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

import msgspec
import trio

from peen.errors import ModelError
from peen.model.anthropicerrors import stream_failure
from peen.model.anthropicstream import MessageTranslator
from peen.model.anthropicwire import decode_event
from peen.model.chatwire import ErrorObject
from peen.model.refusal import looks_like_html, unexpected_page
from peen.model.sse import SseEvent, SseParser
from peen.model.stream import StreamEvent
from peen.model.transport import Reply

STOP_S: Final = 2.0
"""How long an answer whose reason to end is known waits for its last event."""
CLOSE_S: Final = 0.1
"""How long it waits behind that, when only the connection's further use is at stake."""
_BEGIN_BYTES: Final = 4096


class MessageReader:
    """The events of one streamed answer; an iterator.

    It reads on to the end of the body, since only then the connection serves the next round, but a server that keeps
    silent or breaks off behind the reason of the end takes nothing away from an answer that is whole.
    """

    def __init__(self, reply: Reply, translator: MessageTranslator, hide: Callable[[str], str], place: str) -> None:
        """`hide` takes secrets out of a text; `place` is the provider's address, for messages."""
        self._reply, self._translator, self._hide, self._place = reply, translator, hide, place
        self._parser = SseParser()
        self._events: deque[StreamEvent] = deque()
        self._begin = bytearray()
        self._understood = False
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        while not self._events:
            if self._over:
                raise StopAsyncIteration
            await self._read()
        return self._events.popleft()

    async def _read(self) -> None:
        piece = await self._receive()
        try:
            found = self._parser.feed(piece) if piece else self._parser.finish()
            for event in found:
                self._take(event)
        except (msgspec.DecodeError, RecursionError) as exc:
            if piece:
                raise ModelError(
                    f"the provider's stream holds an event that is not valid: {exc}", kind="bad_stream", retryable=True
                ) from exc
            # The last event is whole only if its line was: this one was cut, and whoever folds the events will say so.
        if not self._understood and len(self._begin) < _BEGIN_BYTES:
            self._begin += piece
        if not piece:
            self._over = True
            if not self._understood and looks_like_html(bytes(self._begin)):
                kind = self._reply.headers.get("content-type", "")
                raise unexpected_page(kind, bytes(self._begin), place=self._place)
            out: list[StreamEvent] = []
            self._translator.finish(out)
            self._events.extend(out)

    async def _receive(self) -> bytes:
        if not self._translator.ended:
            # No deadline: how long to wait in silence is the caller's business.
            return await self._reply.receive()
        piece = b""
        # If the connection breaks, it does so behind the end of the answer.
        with trio.move_on_after(CLOSE_S if self._translator.done else STOP_S), suppress(ModelError):
            piece = await self._reply.receive()
        return piece

    def _take(self, sent: SseEvent) -> None:
        if self._translator.done or sent.data == b"[DONE]":
            self._understood = True
            return
        if sent.name == "error":
            raise self._failure(sent.data)
        event = decode_event(sent.data)
        self._understood = True
        if not event.type:
            event = msgspec.structs.replace(event, type=sent.name)
        if event.error is not None or event.type == "error":
            raise self._failure(sent.data)
        out: list[StreamEvent] = []
        self._translator.take(event, out)
        self._events.extend(out)

    def _failure(self, data: bytes) -> ModelError:
        """Of an error in the usual shape, or of plain text."""
        try:
            error = decode_event(data).error
        except (msgspec.DecodeError, RecursionError):
            error = None
        return stream_failure(hidden(error if error is not None else data.decode("utf-8", "replace"), self._hide))


def hidden(error: ErrorObject | str, hide: Callable[[str], str]) -> ErrorObject | str:
    """The same without secrets, which some servers repeat when they refuse them."""
    if isinstance(error, str):
        return hide(error)
    return msgspec.structs.replace(error, message=None if error.message is None else hide(error.message))
