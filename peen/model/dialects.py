"""Which dialect an upstream speaks: the address of an answer, how it is asked for, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from peen.model.chatbody import ChatBodies
from peen.model.chatstream import ChatTranslator, Hide
from peen.model.effort import openai_levels, zai_levels
from peen.model.reader import Translator
from peen.model.responsesbody import ResponsesBodies
from peen.model.responsesstream import ResponsesTranslator
from peen.model.stream import ModelRequest
from peen.wire.launch import UpstreamConfig
from peen.wire.records import MessageRecord

DEFAULT_BASE_URLS: Final = {
    "openai": "https://api.openai.com/v1",
    "zai-coding": "https://api.z.ai/api/coding/paas/v4",
}
CHAT: Final = "chat"
RESPONSES: Final = "responses"


class Bodies(Protocol):
    """Makes the bodies of requests."""

    def body(self, request: ModelRequest, effort: str | None) -> bytes:
        """The JSON of a request. Raises: ModelError `invalid_request` for what no provider would take."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """`path` lies below the base URL; `levels` gives the reasoning efforts that a model takes."""

    path: str
    bodies: Bodies
    translator: Callable[[str, Hide], Translator]
    levels: Callable[[str], tuple[str, ...] | None]


def dialect_of(config: UpstreamConfig, *, is_openai: bool) -> Dialect:
    """The dialect of an upstream; `is_openai` if OpenAI itself is behind its address."""
    if config.type == "zai-coding":
        return _zai(config)
    if config.api == RESPONSES:
        return _responses(config, is_openai=is_openai)
    limit = "max_completion_tokens" if is_openai else "max_tokens"
    return _chat(ChatBodies(output_limit_field=limit, stream=config.stream), openai_levels)


def _chat(bodies: ChatBodies, levels: Callable[[str], tuple[str, ...] | None]) -> Dialect:
    return Dialect("chat/completions", bodies, lambda model_id, hide: ChatTranslator(model_id, hide=hide), levels)


def _zai(config: UpstreamConfig) -> Dialect:
    """Z.ai's models think always, and want what they thought back for as long as the conversation goes on."""

    def thought(message: MessageRecord, model_id: str) -> str | None:
        return message.thinking if message.model == f"{config.name}/{model_id}" else None

    bodies = ChatBodies(
        stream=config.stream,
        more={"thinking": {"type": "enabled", "clear_thinking": False}},
        reasoning_of=thought,
    )
    return _chat(bodies, zai_levels)


def _responses(config: UpstreamConfig, *, is_openai: bool) -> Dialect:
    def reasons(model_id: str) -> bool:
        return openai_levels(model_id) is not None

    bodies = ResponsesBodies(
        config.name,
        stream=config.stream,
        keeps=lambda model_id: reasons(model_id) or not is_openai,  # OpenAI refuses the wish for any other model
        summarizes=reasons,
    )
    return Dialect(
        "responses", bodies, lambda model_id, hide: ResponsesTranslator(model_id, hide=hide), openai_levels
    )  # fmt: skip
