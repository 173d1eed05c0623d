"""The upstream types `openai` and `zai-coding`: OpenAI, and the many servers that speak as it does."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import msgspec
import structlog
import trio

from peen import __version__
from peen.entropy import Entropy
from peen.errors import ModelError
from peen.model.chatwire import ErrorObject, decode_models
from peen.model.dialects import DEFAULT_BASE_URLS, RESPONSES, dialect_of
from peen.model.effort import fit
from peen.model.images import named
from peen.model.openaimodels import by_preference
from peen.model.reader import MAX_BODY_BYTES, AnswerReader
from peen.model.reasoningerrors import as_missed, misses_reasoning, with_remedy
from peen.model.refusal import status_error, unexpected_page
from peen.model.replies import error_body, whole_body, without_key
from peen.model.stream import ModelInfo, ModelRequest, StreamEvent
from peen.model.transport import Reply, Transport, origin
from peen.wire.launch import UpstreamConfig

CLOSE_S: Final = 2.0
NOT_FOUND: Final = 404
_VERSION: Final = re.compile(r"/v\d")

log = structlog.get_logger(__name__)


class OpenAiUpstream:
    """One provider behind one base URL.

    Borrows: the transport, which holds the connections. `key` is sent as a bearer token and shown to nobody.
    """

    def __init__(self, config: UpstreamConfig, key: str | None, transport: Transport, entropy: Entropy) -> None:
        base_url = base_url_of(config)
        self._config, self._key = config, key
        self._transport, self._entropy = transport, entropy
        self._place = origin(base_url)
        self._is_openai = urlsplit(base_url).hostname == "api.openai.com"
        self._dialect = dialect_of(config, is_openai=self._is_openai)
        self._answer_url = _below(base_url, self._dialect.path)
        self._models_url = _below(base_url, "models")
        self._headers = {
            "accept": "application/json",
            "accept-encoding": "identity",  # a compressed stream comes in lumps
            "content-type": "application/json",
            "user-agent": f"peen/{__version__}",
            **({} if key is None else {"authorization": f"Bearer {key}"}),
        }
        self._speaks_chat = config.type == "openai" and config.api != RESPONSES
        self._efforts: dict[tuple[str, str], str | None] = {}

    @property
    def name(self) -> str:
        return self._config.name

    async def discover(self) -> list[ModelInfo]:
        """`GET /models`, in the order of the provider; OpenAI's own list is sorted and rid of what cannot chat.

        Models that are configured are taken as they are. Whoever only lists models keeps no connection for it.
        """
        if self._config.models:
            await trio.lowlevel.checkpoint()
            return [self.describe(model) for model in self._config.models]
        try:
            return await self._list_models()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
                await self._transport.aclose()

    async def _list_models(self) -> list[ModelInfo]:
        async with self._transport.send("GET", self._models_url, self._headers) as reply:
            if reply.status != 200:
                raise _without_list(await self._status_error(reply), self._models_url)
            body = await whole_body(reply, MAX_BODY_BYTES)
            try:
                listed = decode_models(body).data
            except (msgspec.DecodeError, RecursionError) as exc:
                raise unexpected_page(reply.headers.get("content-type", ""), body, place=self._models_url) from exc
        if self._is_openai:
            listed = by_preference(listed, responses=self._config.api == RESPONSES)
        return [self.describe(model.id, model.window) for model in listed if model.id]

    def describe(self, model_id: str, window: int | None = None) -> ModelInfo:
        """A model of this upstream, whether the provider lists it or not."""
        return ModelInfo(
            name=f"{self.name}/{model_id}",
            connection_name=self.name,
            model_id=model_id,
            context_window_tokens=window,
            image_input=self._config.image_input,
            thinking_returns=self._config.type == "zai-coding",
        )

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[StreamEvent]]:
        """See `Upstream.stream`.

        Raises: ModelError `REASONING_MISSED` if the provider misses the reasoning of answers which have none: some want
        one of every answer, also of those that another model has given. From then on these get an empty one.
        """
        body = self._dialect.bodies.body(request, self._effort(request))
        async with self._transport.send("POST", self._answer_url, self._headers, body) as reply:
            if reply.status != 200:
                raise self._refused(named(await self._status_error(reply), body), request.model_id)
            yield await self._events(reply, request)

    def _refused(self, error: ModelError, model_id: str) -> ModelError:
        if misses_reasoning(error) and self._dialect.fill(model_id):
            log.info("answers without reasoning are sent with an empty one", model=model_id)
            return as_missed(error)
        return with_remedy(error) if self._speaks_chat else error

    async def _events(self, reply: Reply, request: ModelRequest) -> AnswerReader:
        content_type = reply.headers.get("content-type", "").lower()
        if "html" in content_type:
            raise unexpected_page(content_type, await error_body(reply, self._key), place=self._place)
        # What else the body is called says little: servers name streams `application/json`, and the reverse.
        return AnswerReader(reply, self._dialect.translator(request.model_id, self._hide), self._place)

    async def aclose(self) -> None:
        """Close the connections that are kept open."""
        await self._transport.aclose()

    def _effort(self, request: ModelRequest) -> str | None:
        requested = request.reasoning_effort
        if requested is None:
            return None
        key = (request.model_id, requested)
        if key not in self._efforts:
            used, reason = fit(requested, self._dialect.levels(request.model_id))
            self._efforts[key] = used
            log.info("reasoning effort", model=request.model_id, requested=requested, used=used, reason=reason)
        return self._efforts[key]

    async def _status_error(self, reply: Reply) -> ModelError:
        body = await error_body(reply, self._key)
        return status_error(reply.status, reply.headers, body, now_ms=self._entropy.now_ms(), place=self._place)

    def _hide(self, error: ErrorObject | str) -> ErrorObject | str:
        return without_key(error, self._key)


def _without_list(error: ModelError, url: str) -> ModelError:
    """The same error of listing models; a missing list may lie at another place."""
    if error.http_status != NOT_FOUND or _VERSION.search(url):
        return error
    text = f"{error} (baseUrl has no version: for most services it ends with /v1)"
    return ModelError(text, kind=error.kind, retryable=error.retryable, status=error.http_status)


def base_url_of(config: UpstreamConfig) -> str:
    """The address of the provider: the configured one, or that of its type."""
    return config.base_url or DEFAULT_BASE_URLS[config.type]


def _below(base_url: str, path: str) -> str:
    """`path` below the base, whose query (some gateways want an `api-version` there) is kept."""
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/{path}", parts.query, ""))
