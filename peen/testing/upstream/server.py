"""The server: connections, keys, the faults of a script over the wire, and a log that tests can read."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from typing import Final

import h11
import msgspec
import trio
from msgspec import Struct

from peen.entropy import Entropy
from peen.errors import ModelError
from peen.model.fold import Fold
from peen.model.script import Fault, RawResponse
from peen.model.scripted import Performance, ScriptedUpstream
from peen.model.sse import SseEvent
from peen.testing.upstream.http import HttpConnection, HttpRequest
from peen.testing.upstream.wire import Asked, Wire

LOG_PATH: Final = "/dev/requests"
LOGGED: Final = 10_000
"""Requests that are remembered."""
_JSON: Final = {"content-type": "application/json"}
_STREAM: Final = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


@dataclass(frozen=True, slots=True)
class Options:
    """`strict` refuses conversations that a strict provider refuses; the last two test a client's parser.

    `wants_reasoning` refuses, as DeepSeek does, a request with tools in which an answer stands without its reasoning.
    """

    strict: bool = True
    api_key: str | None = None
    wants_reasoning: bool = False
    byte_by_byte: bool = False
    crlf: bool = False


class Logged(Struct, kw_only=True, rename="camel"):
    """One request. `status` is 0 until it is answered; `closed_early`: the client left before the answer's end.

    `reasoning` counts the earlier answers of the conversation that came back with their reasoning, byte for byte where
    that is sealed.
    """

    path: str
    received_at: int
    connection: int
    status: int = 0
    closed_early: bool = False
    reasoning: int = 0


class Log(Struct, frozen=True, rename="camel"):
    """What `GET /dev/requests` answers with."""

    requests: list[Logged]
    open_streams: int


class UpstreamServer:
    """Serves one scripted upstream in one dialect.

    Borrows: the connections that `serve` is given. Remembers nothing of a conversation but how often its faults
    have played.
    """

    def __init__(
        self,
        upstream: ScriptedUpstream,
        wire: Wire,
        entropy: Entropy,
        options: Options | None = None,
        *,
        also: Sequence[Wire] = (),
    ) -> None:
        """`also` are further dialects, each under a path of its own; keys and models are those of `wire`."""
        self._upstream, self._wire, self._entropy = upstream, wire, entropy
        self._wires = {each.answer_path: each for each in (wire, *also)}
        self._options = options or Options()
        self._log: deque[Logged] = deque(maxlen=LOGGED)
        self._open = 0
        self._connections = 0
        self._answers = 0
        self._line_end = b"\r\n" if self._options.crlf else b"\n"

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, until either side closes it."""
        self._connections += 1
        number = self._connections
        connection = HttpConnection(stream)
        async with stream:
            try:
                while (request := await connection.request()) is not None:
                    logged = Logged(path=request.path, received_at=self._entropy.now_ms(), connection=number)
                    if request.path != LOG_PATH:
                        self._log.append(logged)
                    if not await self._respond(connection, request, logged):
                        return
            except (h11.RemoteProtocolError, trio.BrokenResourceError):
                return  # the client spoke something else, or has gone

    async def _respond(self, connection: HttpConnection, request: HttpRequest, logged: Logged) -> bool:
        """Answer; whether the connection may serve another request."""
        send = partial(_document, connection, logged)
        if (request.method, request.path) == ("GET", LOG_PATH):
            return await send(200, msgspec.json.encode(Log(list(self._log), self._open)))
        try:
            self._check_key(request)
            if (request.method, request.path) == ("GET", self._wire.models_path):
                models = await self._upstream.discover()
                return await send(200, self._wire.models(models, self._entropy.now_ms() // 1000))
            if request.method == "POST" and (wire := self._wires.get(request.path)) is not None:
                return await self._answer(connection, request, logged, wire)
            raise ModelError(
                f"Unknown request URL: {request.method} {request.path}.",
                kind="unknown_url",
                retryable=False,
                status=404,
            )
        except ModelError as refused:
            return await self._refuse(connection, logged, refused)

    async def _refuse(
        self, connection: HttpConnection, logged: Logged, refused: ModelError, fault: Fault | None = None
    ) -> bool:
        waits_ms, form = refused.retry_after_ms, "seconds" if fault is None else fault.retry_after_as
        headers: dict[str, str] = {}
        if waits_ms is not None and form == "date":
            # Whole seconds: rounded up, so that nobody comes too early.
            until_s = -(-(self._entropy.now_ms() + waits_ms) // 1000)
            headers["retry-after"] = formatdate(until_s, usegmt=True)
        elif waits_ms is not None and form == "milliseconds":
            headers["retry-after-ms"] = str(waits_ms)
        elif waits_ms is not None:
            headers["retry-after"] = f"{waits_ms / 1000:g}"
        status = refused.http_status or (500 if refused.retryable else 400)
        return await _document(connection, logged, status, self._wire.refusal(refused), headers)

    def _check_key(self, request: HttpRequest) -> None:
        if self._options.api_key is not None and self._wire.key_of(request.headers) != self._options.api_key:
            raise ModelError("Incorrect API key provided.", kind="unauthorized", retryable=False, status=401)

    async def _answer(self, connection: HttpConnection, request: HttpRequest, logged: Logged, wire: Wire) -> bool:
        self._answers += 1
        asked = wire.parse(
            request.body,
            name=str(self._answers),
            created_s=self._entropy.now_ms() // 1000,
            strict=self._options.strict,
        )
        logged.reasoning = asked.reasoning
        if self._options.wants_reasoning and asked.misses_reasoning:
            raise ModelError(
                "The `reasoning_content` in the thinking mode must be passed back to the API.",
                kind="invalid_request", retryable=False, status=400,
            )  # fmt: skip
        performance = self._upstream.perform(asked.request)
        self._open += 1
        try:
            work = partial(self._play(asked, performance), connection, asked, performance, logged, wire)
            if performance.pauses or self._options.byte_by_byte:
                return await _watched(connection, logged, work)
            try:
                return await work()
            except trio.BrokenResourceError:
                logged.closed_early = True
                return False
        except ModelError as refused:
            return await self._refuse(connection, logged, refused, performance.fault)
        finally:
            self._open -= 1

    def _play(self, asked: Asked, performance: Performance) -> Callable[..., Awaitable[bool]]:
        if performance.answer.raw is not None:
            return self._raw
        return self._stream if asked.stream else self._whole

    async def _raw(
        self, connection: HttpConnection, _asked: Asked, performance: Performance, logged: Logged, _wire: Wire
    ) -> bool:
        """The bytes that the script has written down."""
        await performance.answer_status()
        response = performance.answer.response or RawResponse()
        logged.status = response.status
        named = {name.lower(): value for name, value in response.headers.items()}
        connection.begin(response.status, {**_STREAM, **named})
        for piece in performance.answer.raw or ():
            if piece.pause_ms is not None:
                await connection.flush()
                await trio.sleep(piece.pause_ms / 1000)
            elif piece.stop is not None:
                await connection.flush()
                if piece.stop == "silence":
                    await trio.sleep_forever()
                if piece.stop == "reset":
                    connection.reset()
                return False
            else:
                data = piece.encoded()
                # Bytes in hex, and text that has line ends of its own, are meant as they are.
                if piece.hex is None and b"\r" not in data:
                    data = data.replace(b"\n", self._line_end)
                await self._write(connection, data, at_once=True)
        return await connection.finish()

    async def _stream(
        self, connection: HttpConnection, asked: Asked, performance: Performance, logged: Logged, wire: Wire
    ) -> bool:
        await performance.answer_status()
        writer = wire.writer(asked)
        at_once = performance.pauses
        has_begun = performance.fault is not None and performance.fault.after_head
        if has_begun:
            self._begin(connection, logged)
            await connection.flush()
        try:
            async with aclosing(performance.play()) as events:
                async for event in events:
                    if not has_begun:
                        # Only now, so that a provider which is silent from the first sends nothing at all.
                        self._begin(connection, logged)
                        has_begun = True
                        for frame in writer.begin():
                            await self._send(connection, frame, at_once=False)
                    for frame in writer.take(event):
                        await self._send(connection, frame, at_once=at_once)
        except ModelError as broken:
            if not has_begun:
                self._begin(connection, logged)
            await self._send(connection, wire.broken(broken), at_once=False)
            return await connection.finish()
        if performance.fault is not None:  # the stream was cut: what was written goes out, and then nothing more
            await connection.flush()
            if performance.fault.kind == "reset":
                connection.reset()
            return False
        for frame in writer.end():
            await self._send(connection, frame, at_once=False)
        return await connection.finish()

    def _begin(self, connection: HttpConnection, logged: Logged) -> None:
        logged.status = 200
        connection.begin(200, _STREAM)

    async def _whole(
        self, connection: HttpConnection, asked: Asked, performance: Performance, logged: Logged, wire: Wire
    ) -> bool:
        await performance.answer_status()
        fold = Fold("call")
        async with aclosing(performance.play()) as events:
            async for event in events:
                fold.add(event)
        if performance.fault is not None:
            return False
        return await _document(connection, logged, 200, wire.whole(asked, fold.finish()))

    async def _send(self, connection: HttpConnection, frame: SseEvent, *, at_once: bool) -> None:
        end = self._line_end
        name = b"event: %b%b" % (frame.name.encode(), end) if frame.name else b""
        await self._write(connection, b"%bdata: %b%b%b" % (name, frame.data, end, end), at_once=at_once)

    async def _write(self, connection: HttpConnection, data: bytes, *, at_once: bool) -> None:
        if not self._options.byte_by_byte:
            await connection.write(data, at_once=at_once)
            return
        for at in range(len(data)):
            await connection.write(data[at : at + 1], at_once=True)


async def _document(
    connection: HttpConnection, logged: Logged, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> bool:
    logged.status = status
    connection.begin(status, {**_JSON, "content-length": str(len(body)), **(headers or {})})
    await connection.write(body, at_once=False)
    return await connection.finish()


async def _watched(connection: HttpConnection, logged: Logged, work: Callable[[], Awaitable[bool]]) -> bool:
    """Do `work`, but only for as long as the client stays."""

    async def watch() -> None:
        await connection.gone()
        logged.closed_early = True
        nursery.cancel_scope.cancel()

    keep = False
    refused: ModelError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            keep = await work()
        except ModelError as error:
            refused = error  # to be answered as such, and not as a group
        except trio.BrokenResourceError:
            logged.closed_early = True
        nursery.cancel_scope.cancel()
    if refused is not None:
        raise refused
    return keep
