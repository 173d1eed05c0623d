"""The upstream type `anthropic`: the Messages API, as Anthropic and the servers that copy it speak it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
import structlog
import trio

from peen import __version__
from peen.entropy import Entropy
from peen.errors import ModelError
from peen.model.anthropicbody import MessageBodies
from peen.model.anthropicerrors import reasoning_refused, status_failure
from peen.model.anthropicmodels import Facts, by_preference, facts_of, learned, output_limit, thinking_budget
from peen.model.anthropicstream import MessageTranslator
from peen.model.anthropicwire import ListedModel, decode_models
from peen.model.chatwire import ErrorObject
from peen.model.effort import UNSUPPORTED, fit
from peen.model.images import named
from peen.model.reader import MAX_BODY_BYTES, AnswerReader
from peen.model.refusal import unexpected_page
from peen.model.replies import error_body, whole_body, without_key
from peen.model.stream import ModelInfo, ModelRequest, StreamEvent
from peen.model.transport import Reply, Transport, origin
from peen.wire.launch import UpstreamConfig

DEFAULT_BASE_URL: Final = "https://api.anthropic.com"
API_VERSION: Final = "2023-06-01"
"""The version that every server of this API knows; later ones only take parameters away that are not used here."""
MAX_PAGES: Final = 20
CLOSE_S: Final = 2.0
_PAGE: Final = 1000

log = structlog.get_logger(__name__)


class AnthropicUpstream:
    """One provider behind one base URL.

    Borrows: the transport, which holds the connections. `key` is sent as `x-api-key` and shown to nobody.
    """

    def __init__(self, config: UpstreamConfig, key: str | None, transport: Transport, entropy: Entropy) -> None:
        base_url = config.base_url or DEFAULT_BASE_URL
        self._config, self._key = config, key
        self._transport, self._entropy = transport, entropy
        self._messages_url = _below(base_url, "messages")
        self._models_url = _below(base_url, "models")
        self._place = origin(base_url)
        self._headers = {
            "accept": "application/json",
            "accept-encoding": "identity",  # a compressed stream comes in lumps
            "content-type": "application/json",
            "anthropic-version": API_VERSION,
            "user-agent": f"peen/{__version__}",
            **({} if key is None else {"x-api-key": key}),
        }
        self._bodies = MessageBodies(config.name)
        self._facts: dict[str, Facts] = {}
        self._told: dict[tuple[str, str, int], tuple[str | None, int | None]] = {}

    @property
    def name(self) -> str:
        return self._config.name

    async def discover(self) -> list[ModelInfo]:
        """`GET /v1/models`, page by page: Sonnet, Opus and Haiku first, each family with its newest in front.

        Models that are configured are taken as they are. Whoever only lists models keeps no connection for it.
        """
        if self._config.models:
            await trio.lowlevel.checkpoint()
            return [self.describe(model) for model in self._config.models]
        try:
            listed = await self._list_models()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
                await self._transport.aclose()
        self._facts = {model.id: learned(model) for model in listed}
        return [self.describe(model.id) for model in by_preference(listed)]

    async def _list_models(self) -> list[ListedModel]:
        found: list[ListedModel] = []
        after = ""
        for _page in range(MAX_PAGES):
            url = _with_query(self._models_url, f"limit={_PAGE}{after}")
            async with self._transport.send("GET", url, self._headers) as reply:
                if reply.status != 200:
                    raise await self._status_error(reply)
                body = await whole_body(reply, MAX_BODY_BYTES)
            try:
                page = decode_models(body)
            except (msgspec.DecodeError, RecursionError) as exc:
                raise unexpected_page(reply.headers.get("content-type", ""), body, place=self._models_url) from exc
            found += page.data
            if not (page.has_more and page.last_id):
                break
            after = f"&after_id={quote(page.last_id, safe='')}"
        return list({model.id: model for model in found}.values())

    def describe(self, model_id: str) -> ModelInfo:
        """A model of this upstream, whether the provider lists it or not."""
        facts = self._facts_of(model_id)
        return ModelInfo(
            name=f"{self.name}/{model_id}",
            connection_name=self.name,
            model_id=model_id,
            context_window_tokens=facts.window,
            image_input=self._config.image_input and facts.image_input,
        )

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[StreamEvent]]:
        """See `Upstream.stream`.

        Raises: ModelError `REASONING_REFUSED` if the provider refuses the reasoning in the request. That happens when
        what stands before it has changed: the provider has bound it to that.
        """
        conversation = self._bodies.conversation(request)
        body = self._bodies.body(request, conversation, self._head(request, may_think=conversation.may_think))
        async with self._transport.send("POST", self._messages_url, self._headers, body) as reply:
            if reply.status != 200:
                error = await self._status_error(reply)
                raise named(reasoning_refused(error) if conversation.has_reasoning else error, body)
            yield await self._events(reply, request)

    async def aclose(self) -> None:
        """Close the connections that are kept open."""
        await self._transport.aclose()

    def _facts_of(self, model_id: str) -> Facts:
        return self._facts.get(model_id) or facts_of(model_id)

    def _head(self, request: ModelRequest, *, may_think: bool) -> dict[str, Any]:
        """All of the request but prompt, tools and messages."""
        facts = self._facts_of(request.model_id)
        limit = output_limit(facts, request.max_output_tokens)
        head: dict[str, Any] = {"model": request.model_id, "max_tokens": limit, "stream": self._config.stream}
        level, budget = self._effort(request, facts, limit)
        if facts.thinking == "adaptive" and (level is not None or facts.shown):
            head["thinking"] = {"type": "adaptive", "display": "summarized"} if facts.shown else {"type": "adaptive"}
            if level is not None:
                head["output_config"] = {"effort": level}
        elif budget is not None and may_think:
            head["thinking"] = {"type": "enabled", "budget_tokens": budget}
        return head

    def _effort(self, request: ModelRequest, facts: Facts, limit: int) -> tuple[str | None, int | None]:
        """The level, and the budget where the model takes one; logged once for each model and level."""
        requested = request.reasoning_effort
        if requested is None:
            return None, None
        key = (request.model_id, requested, limit)
        if key not in self._told:
            level, reason = fit(requested, facts.levels)
            budget = thinking_budget(level, limit) if level is not None and facts.thinking == "budget" else None
            if level is not None and facts.thinking == "budget" and budget is None:
                level, reason = None, UNSUPPORTED  # an answer this short leaves no room for reasoning
            self._told[key] = (level, budget)
            log.info(
                "reasoning effort", model=request.model_id, requested=requested, used=level, budget_tokens=budget,
                reason=reason,
            )  # fmt: skip
        return self._told[key]

    async def _events(self, reply: Reply, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        content_type = reply.headers.get("content-type", "").lower()
        if "html" in content_type:
            raise unexpected_page(content_type, await error_body(reply, self._key), place=self._place)
        return AnswerReader(reply, MessageTranslator(request.model_id, hide=self._hide), self._place)

    async def _status_error(self, reply: Reply) -> ModelError:
        body = await error_body(reply, self._key)
        return status_failure(reply.status, reply.headers, body, now_ms=self._entropy.now_ms(), place=self._place)

    def _hide(self, error: ErrorObject | str) -> ErrorObject | str:
        return without_key(error, self._key)


def _below(base_url: str, path: str) -> str:
    """`/v1/<path>` below the base, which may name the `/v1` itself; its query is kept."""
    parts = urlsplit(base_url)
    root = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc, f"{root}/v1/{path}", parts.query, ""))


def _with_query(url: str, query: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{query}"
