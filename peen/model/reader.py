"""Reads a model's answer off the wire as it comes, whatever of a stream it is, and knows when it may stop reading."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, Self

import msgspec
import trio

from peen.errors import ModelError
from peen.model.refusal import looks_like_html, unexpected_page, unexpected_text
from peen.model.sse import SseEvent, SseParser
from peen.model.stream import StreamEvent
from peen.model.surrogates import Mender
from peen.model.transport import Reply

USAGE_S: Final = 2.0
"""How long an answer that has its finish reason waits for the usage and the end of the stream."""
CLOSE_S: Final = 0.1
"""How long it waits behind the last event, when only the connection's further use is at stake."""
MAX_BODY_BYTES: Final = 8 * 1024 * 1024
"""The longest document that is read in the place of a stream."""
_SSE_LINE: Final = re.compile(rb":|(?:data|event|id|retry)\s*(?::|$)")
_DONE: Final = b"[DONE]"
_BOM: Final = b"\xef\xbb\xbf"


class Translator(Protocol):
    """Reads the events of one answer in a provider's dialect."""

    @property
    def ended(self) -> bool:
        """The answer has its end; what may follow is usage."""

    @property
    def over(self) -> bool:
        """That was the last event of the answer: what follows is not read."""

    @property
    def has_halves(self) -> bool:
        """Some text was cut inside a character, and is to be mended; see `peen.model.surrogates`."""

    def read(self, event: SseEvent, out: list[StreamEvent]) -> None:
        """Append to `out` what `event` says. Raises: ModelError if it is an error, msgspec.DecodeError."""

    def read_whole(self, body: bytes, out: list[StreamEvent]) -> None:
        """The same of a document in the place of a stream."""

    def done(self, out: list[StreamEvent]) -> None:
        """`[DONE]` came."""

    def finish(self, out: list[StreamEvent]) -> None:
        """The stream is over."""


class AnswerReader:
    """The events of one answer; an iterator.

    It reads on to the end of the body, since only then the connection serves the next round, but a server that
    keeps silent or breaks off after the finish reason takes nothing away from an answer that is whole. A body that
    holds no event at all is read as a document, if it can be one.
    """

    def __init__(self, reply: Reply, translator: Translator, place: str) -> None:
        """`place` is the provider's address, for messages."""
        self._reply, self._translator, self._place = reply, translator, place
        self._parser = SseParser()
        self._events: deque[StreamEvent] = deque()
        self._mender = Mender()
        self._begin = bytearray()
        self._failure: ModelError | None = None
        self._understood = False
        self._done = False  # nothing more can come
        self._over = False

    @property
    def status(self) -> int:
        """The HTTP status of the answer."""
        return self._reply.status

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        while not self._events:
            if self._failure is not None:
                raise self._failure
            if self._over:
                raise StopAsyncIteration
            await self._read()
        return self._events.popleft()

    async def _read(self) -> None:
        piece = await self._receive()
        try:
            for event in self._parser.feed(piece) if piece else self._parser.finish():
                self._take(event)
        except ModelError as error:
            self._failure = error  # what came before it is passed on first, in whatever pieces both came
            return
        except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
            if piece:
                self._failure = ModelError(
                    f"the provider's stream holds an event that is not valid: {exc}", kind="bad_stream", retryable=True
                )
                return
            # The last event is whole only if its line was: this one was cut, and whoever folds the events will say so.
        if not piece:
            self._over = True
            if self._understood:
                self._pass_on(self._translator.finish)
            else:
                self._read_document()
        elif not self._understood and len(self._begin) < MAX_BODY_BYTES:
            self._begin += piece

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
            self._done = True
            self._pass_on(self._translator.done)
        else:
            self._pass_on(partial(self._translator.read, event))
            self._done = self._translator.over
        self._understood = True

    def _pass_on(self, read: Callable[[list[StreamEvent]], None]) -> None:
        out: list[StreamEvent] = []
        read(out)
        self._events.extend(self._mender.mend(out) if self._translator.has_halves else out)

    def _read_document(self) -> None:
        """What came was no stream: the answer of a server that does not stream, its error, or something else."""
        body = bytes(self._begin.removeprefix(_BOM).strip())
        if looks_like_html(body):
            raise unexpected_page(self._reply.headers.get("content-type", ""), body, place=self._place)
        if not body.startswith((b"{", b"[")):
            if body and _SSE_LINE.match(body) is None:
                raise unexpected_text(place=self._place)
            return  # a stream that was cut in its first event
        try:
            self._pass_on(partial(self._translator.read_whole, body))
        except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
            raise ModelError(
                f"{self._place} answered with JSON that is no answer", kind="bad_response", retryable=True
            ) from exc
