"""The upstream type `openai`: chat completions, as OpenAI and most servers of open models speak them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Self
from urllib.parse import urlsplit, urlunsplit

import msgspec
import structlog
import trio

from peen import __version__
from peen.entropy import Entropy
from peen.errors import ModelError
from peen.model.chatbody import ChatBodies
from peen.model.chatreader import ChatReader
from peen.model.chatstream import ChatTranslator
from peen.model.chatwire import Chunk, decode_chunk, decode_models
from peen.model.effort import fit, openai_levels
from peen.model.images import named
from peen.model.openaimodels import by_preference
from peen.model.refusal import status_error, unexpected_page
from peen.model.stream import ModelInfo, ModelRequest, StreamEvent
from peen.model.transport import Reply, Transport, origin
from peen.wire.worker import UpstreamConfig

DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"
MAX_BODY_BYTES: Final = 8 * 1024 * 1024
MAX_ERROR_BYTES: Final = 64 * 1024
CLOSE_S: Final = 2.0
ERROR_BODY_S: Final = 10.0
"""How long the rest of an answer with an error status may take; what has come by then must do."""

log = structlog.get_logger(__name__)


class OpenAiUpstream:
    """One provider behind one base URL.

    Borrows: the transport, which holds the connections. `key` is sent as a bearer token and shown to nobody.
    """

    def __init__(self, config: UpstreamConfig, key: str | None, transport: Transport, entropy: Entropy) -> None:
        base_url = config.base_url or DEFAULT_BASE_URL
        self._config, self._key = config, key
        self._transport, self._entropy = transport, entropy
        self._chat_url = _below(base_url, "chat/completions")
        self._models_url = _below(base_url, "models")
        self._place = origin(base_url)
        self._is_openai = urlsplit(base_url).hostname == "api.openai.com"
        self._headers = {
            "accept": "application/json",
            "accept-encoding": "identity",  # a compressed stream comes in lumps
            "content-type": "application/json",
            "user-agent": f"peen/{__version__}",
            **({} if key is None else {"authorization": f"Bearer {key}"}),
        }
        self._bodies = ChatBodies(output_limit_field="max_completion_tokens" if self._is_openai else "max_tokens")
        self._efforts: dict[tuple[str, str], str | None] = {}

    @property
    def name(self) -> str:
        return self._config.name

    async def discover(self) -> list[ModelInfo]:
        """`GET /models`, in the order of the provider; OpenAI's own list is sorted and rid of what cannot chat.

        Whoever only lists models keeps no connection for it.
        """
        try:
            return await self._list_models()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
                await self._transport.aclose()

    async def _list_models(self) -> list[ModelInfo]:
        async with self._transport.send("GET", self._models_url, self._headers) as reply:
            if reply.status != 200:
                raise await self._status_error(reply)
            body = await _read(reply, MAX_BODY_BYTES)
            try:
                listed = decode_models(body).data
            except (msgspec.DecodeError, RecursionError) as exc:
                raise unexpected_page(reply.headers.get("content-type", ""), body, place=self._models_url) from exc
        if self._is_openai:
            listed = by_preference(listed)
        return [self.describe(model.id, model.window) for model in listed if model.id]

    def describe(self, model_id: str, window: int | None = None) -> ModelInfo:
        """A model of this upstream, whether the provider lists it or not."""
        return ModelInfo(
            name=f"{self.name}/{model_id}",
            connection_name=self.name,
            model_id=model_id,
            context_window_tokens=window,
            image_input=self._config.image_input,
        )

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[StreamEvent]]:
        body = self._bodies.body(request, self._effort(request))
        async with self._transport.send("POST", self._chat_url, self._headers, body) as reply:
            if reply.status != 200:
                raise named(await self._status_error(reply), body)
            content_type = reply.headers.get("content-type", "").lower()
            if "json" in content_type:
                yield _Answer(await self._whole_answer(reply, request))
            elif "html" in content_type:
                raise unexpected_page(content_type, await _read_error(reply), place=self._place)
            else:
                yield ChatReader(reply, ChatTranslator(request.model_id), self._hide, self._place)

    async def aclose(self) -> None:
        """Close the connections that are kept open."""
        await self._transport.aclose()

    def _effort(self, request: ModelRequest) -> str | None:
        requested = request.reasoning_effort
        if requested is None:
            return None
        key = (request.model_id, requested)
        if key not in self._efforts:
            used, reason = fit(requested, openai_levels(request.model_id))
            self._efforts[key] = used
            log.info("reasoning effort", model=request.model_id, requested=requested, used=used, reason=reason)
        return self._efforts[key]

    async def _status_error(self, reply: Reply) -> ModelError:
        body = await _read_error(reply)
        if self._key is not None:
            body = body.replace(self._key.encode(), b"[key]")
        return status_error(reply.status, reply.headers, body, now_ms=self._entropy.now_ms(), place=self._place)

    async def _whole_answer(self, reply: Reply, request: ModelRequest) -> list[StreamEvent]:
        """From a server that does not stream, or that has only an error to tell."""
        body = await _read(reply, MAX_BODY_BYTES)
        try:
            chunk = decode_chunk(body)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise ModelError(
                f"{self._place} answered with JSON that is no answer", kind="bad_response", retryable=True
            ) from exc
        events: list[StreamEvent] = []
        ChatTranslator(request.model_id).take(self._hide(chunk), events)
        return events

    def _hide(self, chunk: Chunk) -> Chunk:
        """The same without the key, which some servers repeat when they refuse it."""
        error = chunk.error
        if error is None or self._key is None:
            return chunk
        if isinstance(error, str):
            return msgspec.structs.replace(chunk, error=error.replace(self._key, "[key]"))
        hidden = msgspec.structs.replace(error, message=(error.message or "").replace(self._key, "[key]") or None)
        return msgspec.structs.replace(chunk, error=hidden)


class _Answer:
    """Events that are all there."""

    def __init__(self, events: list[StreamEvent]) -> None:
        self._events = iter(events)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        await trio.lowlevel.checkpoint()
        for event in self._events:
            return event
        raise StopAsyncIteration


async def _read(reply: Reply, most: int) -> bytes:
    """The body, cut at `most` bytes. Raises: ModelError `transport`."""
    body = bytearray()
    await _read_into(body, reply, most)
    return bytes(body[:most])


async def _read_error(reply: Reply) -> bytes:
    """The body of an error: what of it came in time and before it broke off, since the status alone is enough."""
    body = bytearray()
    with trio.move_on_after(ERROR_BODY_S), suppress(ModelError):
        await _read_into(body, reply, MAX_ERROR_BYTES)
    return bytes(body[:MAX_ERROR_BYTES])


async def _read_into(body: bytearray, reply: Reply, most: int) -> None:
    while len(body) < most and (piece := await reply.receive()):
        body += piece


def _below(base_url: str, path: str) -> str:
    """`path` below the base, whose query (some gateways want an `api-version` there) is kept."""
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/{path}", parts.query, ""))
