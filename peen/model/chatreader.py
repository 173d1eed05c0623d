"""Reads a chat completions answer off the wire as it comes, and knows when it may stop reading."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Self

import msgspec
import trio

from peen.errors import ModelError
from peen.model.chatstream import ChatTranslator
from peen.model.chatwire import Chunk, ErrorObject, decode_chunk
from peen.model.refusal import looks_like_html, stream_error, unexpected_page
from peen.model.sse import SseEvent, SseParser
from peen.model.stream import StreamEvent
from peen.model.transport import Reply

USAGE_S: Final = 2.0
"""How long an answer that has its finish reason waits for the usage and the end of the stream."""
CLOSE_S: Final = 0.1
"""How long it waits after `[DONE]`, when only the connection's further use is at stake."""
_DONE: Final = b"[DONE]"
_decode_error: Final = msgspec.json.Decoder(ErrorObject).decode


class ChatReader:
    """The events of one streamed answer; an iterator.

    It reads on to the end of the body, since only then the connection serves the next round, but a server that
    keeps silent or breaks off after the finish reason takes nothing away from an answer that is whole.
    """

    def __init__(self, reply: Reply, translator: ChatTranslator, hide: Callable[[Chunk], Chunk], place: str) -> None:
        """`hide` takes secrets out of a chunk; `place` is the provider's address, for messages."""
        self._reply, self._translator, self._hide, self._place = reply, translator, hide, place
        self._parser = SseParser()
        self._events: deque[StreamEvent] = deque()
        self._begin = b""
        self._understood = False
        self._done = False
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
        if not piece:
            self._over = True
            if not self._understood and looks_like_html(self._begin):
                raise unexpected_page(self._reply.headers.get("content-type", ""), self._begin, place=self._place)
        elif not self._understood:
            self._begin = piece

    async def _receive(self) -> bytes:
        if not (self._translator.ended or self._done):
            # No deadline: how long to wait in silence is the caller's business.
            return await self._reply.receive()
        piece = b""
        with trio.move_on_after(CLOSE_S if self._done else USAGE_S):
            try:
                piece = await self._reply.receive()
            except ModelError:
                self._done = True  # the connection broke, but behind the end of the answer
        return piece

    def _take(self, event: SseEvent) -> None:
        if self._done:
            return
        if event.data == _DONE:
            self._done = self._understood = True
            return
        if event.name == "error":
            raise stream_error(self._error_in(event.data))
        chunk = decode_chunk(event.data)
        self._understood = True
        if chunk.error is not None:
            chunk = self._hide(chunk)
        out: list[StreamEvent] = []
        self._translator.take(chunk, out)
        self._events.extend(out)

    def _error_in(self, data: bytes) -> ErrorObject | str:
        """Of an event called `error`: in the usual shape, without its envelope, or as plain text."""
        try:
            error = decode_chunk(data).error or _decode_error(data)
        except (msgspec.DecodeError, RecursionError):
            error = data.decode("utf-8", "replace")
        return self._hide(Chunk(error=error)).error or error
