"""Which dialect an upstream speaks: the address of an answer, how it is asked for, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec import Raw

from peen.model.chatbody import ChatBodies
from peen.model.chatstream import ChatTranslator, Hide
from peen.model.effort import openai_levels, zai_levels
from peen.model.reader import Translator
from peen.model.reasoning import chat_field, items_for
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
ALWAYS: Final = "always"
CALLS: Final = "calls"
NEVER: Final = "never"


class Bodies(Protocol):
    """Makes the bodies of requests."""

    def body(self, request: ModelRequest, effort: str | None) -> bytes:
        """The JSON of a request. Raises: ModelError `invalid_request` for what no provider would take."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """`path` lies below the base URL; `levels` gives the reasoning efforts that a model takes.

    `fill` has answers without reasoning sent to a model with an empty one; whether that changes anything.
    """

    path: str
    bodies: Bodies
    translator: Callable[[str, Hide], Translator]
    levels: Callable[[str], tuple[str, ...] | None]
    fill: Callable[[str], bool] = lambda _model: False


def dialect_of(config: UpstreamConfig, *, is_openai: bool) -> Dialect:
    """The dialect of an upstream; `is_openai` if OpenAI itself is behind its address."""
    if config.type == "zai-coding":
        return _zai(config)
    if config.api == RESPONSES:
        return _responses(config, is_openai=is_openai)
    returns = config.reasoning or ALWAYS

    def kept(message: MessageRecord, model_id: str) -> tuple[str, Raw] | None:
        if returns == CALLS and not message.tool_calls:
            return None
        return chat_field(items_for(message, upstream=config.name, model=model_id))

    bodies = ChatBodies(
        output_limit_field="max_completion_tokens" if is_openai else "max_tokens",
        stream=config.stream,
        reasoning_of=None if returns == NEVER else kept,
    )
    return _chat(bodies, openai_levels, keeps=returns != NEVER, fill=returns == ALWAYS)


def _chat(
    bodies: ChatBodies, levels: Callable[[str], tuple[str, ...] | None], *, keeps: bool, fill: bool = False
) -> Dialect:
    def translator(model_id: str, hide: Hide) -> Translator:
        return ChatTranslator(model_id, hide=hide, keeps=keeps)

    return Dialect("chat/completions", bodies, translator, levels, bodies.fill if fill else lambda _model: False)


def _zai(config: UpstreamConfig) -> Dialect:
    """Z.ai's models think always, and want what they thought back for as long as the conversation goes on."""

    def thought(message: MessageRecord, model_id: str) -> tuple[str, str] | None:
        is_own = message.model == f"{config.name}/{model_id}"
        return ("reasoning_content", message.thinking) if is_own and message.thinking else None

    bodies = ChatBodies(
        stream=config.stream,
        more={"thinking": {"type": "enabled", "clear_thinking": False}},
        reasoning_of=thought,
    )
    return _chat(bodies, zai_levels, keeps=False)  # it is stored as text already


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
