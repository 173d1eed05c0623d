"""Requests of the Messages API, read as strictly as the provider reads them.

These structs are written from the provider's documentation and share nothing with the adapter that is tested
against them.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from peen.errors import ModelError
from peen.model.stream import ModelRequest
from peen.model.strict import strict_request_check
from peen.testing.upstream.openaiwire import INJECTED
from peen.testing.upstream.pictures import seen_image
from peen.testing.upstream.wire import Asked
from peen.wire.model import ToolDefinition
from peen.wire.records import ImageRef, MessageRecord, ToolCallRecord

MOST_MARKS: Final = 4
LEAST_BUDGET: Final = 1024
_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_SYSTEM: Final = re.compile(r"<system>\n(.*)\n</system>", re.DOTALL)


class CacheControl(Struct, frozen=True):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Text(Struct, frozen=True, tag_field="type", tag="text"):
    text: str
    cache_control: CacheControl | None = None


class Base64Source(Struct, frozen=True, tag_field="type", tag="base64"):
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str

    @property
    def seen(self) -> ImageRef:
        """Raises: ValueError as `seen_image` does."""
        return seen_image(self.data, declared=self.media_type)


class Image(Struct, frozen=True, tag_field="type", tag="image"):
    source: Base64Source
    cache_control: CacheControl | None = None


class ToolUse(Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None


class ToolResult(Struct, frozen=True, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[Text | Image] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


class Thinking(Struct, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class RedactedThinking(Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    data: str


Block = Text | Image | ToolUse | ToolResult | Thinking | RedactedThinking


class Message(Struct, frozen=True):
    role: Literal["user", "assistant"]
    content: str | list[Block]

    @property
    def blocks(self) -> list[Block]:
        return [Text(self.content)] if isinstance(self.content, str) else self.content


class Tool(Struct, frozen=True):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    cache_control: CacheControl | None = None


class ThinkingConfig(Struct, frozen=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(Struct, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class MessagesRequest(Struct, frozen=True):
    model: str
    max_tokens: int
    messages: list[Message]
    system: str | list[Text] | None = None
    stream: bool | None = None
    tools: list[Tool] | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None


_decode: Final = msgspec.json.Decoder(MessagesRequest).decode


def parse_messages(body: bytes, *, name: str, created_s: int, strict: bool) -> Asked:
    """The request in `body`; with `strict`, refused where the provider refuses it.

    Raises: ModelError `invalid_request` with status 400.
    """
    try:
        asked = _decode(body)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise refused(str(exc)) from exc
    if strict:
        for problem in _problems(asked):
            raise refused(problem)
    system = asked.system if isinstance(asked.system, str) else "\n".join(part.text for part in asked.system or ())
    request = ModelRequest(
        model_id=asked.model,
        system=system,
        messages=[record for message in asked.messages for record in _records(message)],
        tools=[
            ToolDefinition(tool.name, tool.description or "", Raw(msgspec.json.encode(tool.input_schema)))
            for tool in asked.tools or ()
        ],
        max_output_tokens=asked.max_tokens,
        reasoning_effort=asked.output_config.effort if asked.output_config is not None else None,
    )
    if strict:
        strict_request_check(request)
    return Asked(
        request=request, stream=bool(asked.stream), include_usage=True, name=name, created_s=created_s,
        reasoning=sum(_has_reasoning(message) for message in asked.messages),
    )  # fmt: skip


def _has_reasoning(message: Message) -> bool:
    return any(isinstance(block, Thinking | RedactedThinking) for block in message.blocks)


def refused(problem: str) -> ModelError:
    """A request that the provider does not accept."""
    return ModelError(problem, kind="invalid_request", retryable=False, status=400)


def signature_of(thinking: str) -> str:
    """How this provider signs what it thought."""
    return base64.b64encode(hashlib.sha256(thinking.encode()).digest()).decode()


def _problems(asked: MessagesRequest) -> Iterator[str]:
    if asked.max_tokens < 1:
        yield "max_tokens: must be greater than or equal to 1"
    if not asked.messages:
        yield "messages: at least one message is required"
    yield from _marks(asked)
    names = [tool.name for tool in asked.tools or ()]
    if len(set(names)) != len(names):
        yield "tools: Tool names must be unique."
    for index, tool in enumerate(asked.tools or ()):
        if not _NAME.fullmatch(tool.name):
            yield f"tools.{index}.name: String should match pattern '{_NAME.pattern}'"
        if tool.input_schema.get("type") != "object":
            yield f"tools.{index}.input_schema.type: Field required"
    if isinstance(asked.system, list):
        yield from _blank("system", asked.system)
    used: set[str] = set()
    before: Message | None = None
    for index, message in enumerate(asked.messages):
        yield from _message(index, message, before, used)
        before = message
    if before is not None and before.role == "assistant":
        yield "This model does not support assistant message prefill. The conversation must end with a user message."
    yield from _thinking(asked)


def _marks(asked: MessagesRequest) -> Iterator[str]:
    marked = [tool.cache_control for tool in asked.tools or ()]
    marked += [part.cache_control for part in asked.system or () if isinstance(part, Text)]
    for message in asked.messages:
        marked += [getattr(block, "cache_control", None) for block in message.blocks]
    found = sum(mark is not None for mark in marked)
    if found > MOST_MARKS:
        yield f"A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {found}."


def _message(index: int, message: Message, before: Message | None, used: set[str]) -> Iterator[str]:
    place = f"messages.{index}"
    if message.role == ("assistant" if before is None else before.role):
        yield f"{place}: roles must alternate between 'user' and 'assistant', beginning with 'user'"
    if not message.blocks:
        yield f"{place}: content must not be empty"
    yield from _blank(f"{place}.content", message.blocks)
    calls = [block.id for block in before.blocks if isinstance(block, ToolUse)] if before is not None else []
    results = [block.tool_use_id for block in message.blocks if isinstance(block, ToolResult)]
    if missing := [call for call in calls if call not in results]:
        yield (
            f"{place}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}. "
            "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
        )
    if len(set(results)) != len(results):
        yield f"{place}: each tool_use must have a single result"
    if unknown := [result for result in results if result not in calls]:
        yield f"{place}: unexpected `tool_use_id` found in `tool_result` blocks: {', '.join(unknown)}"
    if results and not all(isinstance(block, ToolResult) for block in message.blocks[: len(results)]):
        yield f"{place}: `tool_result` blocks must come first"
    for at, block in enumerate(message.blocks):
        yield from _block(f"{place}.content.{at}", message.role, block, used)


def _block(place: str, role: str, block: Block, used: set[str]) -> Iterator[str]:
    if isinstance(block, ToolResult | Image) != (role == "user") and not isinstance(block, Text):
        yield f"{place}: a block of this type does not belong into a message of role {role!r}"
    match block:
        case ToolUse():
            if not _ID.fullmatch(block.id):
                yield f"{place}.id: String should match pattern '{_ID.pattern}'"
            if not _NAME.fullmatch(block.name):
                yield f"{place}.name: String should match pattern '{_NAME.pattern}'"
            if block.id in used:
                yield f"{place}: `tool_use` ids must be unique: {block.id}"
            used.add(block.id)
        case ToolResult() if isinstance(block.content, list):
            yield from _blank(f"{place}.content", block.content)
            for at, part in enumerate(block.content):
                yield from _block(f"{place}.content.{at}", role, part, used)
        case Image():
            try:
                _ = block.source.seen
            except ValueError as problem:
                yield f"{place}.image.source.base64.data: {problem}"
        case Thinking() if block.signature != signature_of(block.thinking):
            yield f"{place}: Invalid `signature` in `thinking` block"
        case RedactedThinking() if not block.data:
            yield f"{place}: Invalid `data` in `redacted_thinking` block"


def _blank(place: str, blocks: Sequence[Block]) -> Iterator[str]:
    for at, block in enumerate(blocks):
        if isinstance(block, Text) and not block.text.strip():
            yield f"{place}.{at}: text content blocks must contain non-whitespace text"


def _thinking(asked: MessagesRequest) -> Iterator[str]:
    thinking = asked.thinking
    if thinking is None or thinking.type != "enabled":
        return
    if thinking.budget_tokens is None or thinking.budget_tokens < LEAST_BUDGET:
        yield f"thinking.enabled.budget_tokens: Input should be greater than or equal to {LEAST_BUDGET}"
    elif thinking.budget_tokens >= asked.max_tokens:
        yield "`max_tokens` must be greater than `thinking.budget_tokens`"
    first: Block | None = None
    for message in reversed(asked.messages):
        if message.role == "assistant":
            first = message.blocks[0]
        elif not isinstance(message.blocks[0], ToolResult):
            break
    if first is not None and not isinstance(first, Thinking | RedactedThinking):
        yield "Expected `thinking` or `redacted_thinking` at the beginning of the turn, since `thinking` is enabled"


def _records(message: Message) -> Iterator[MessageRecord]:
    if message.role == "assistant":
        texts = [block.text for block in message.blocks if isinstance(block, Text)]
        calls = [
            ToolCallRecord(id=block.id, name=block.name, arguments=Raw(msgspec.json.encode(block.input)))
            for block in message.blocks
            if isinstance(block, ToolUse)
        ]
        yield MessageRecord(role="assistant", content="\n".join(texts), tool_calls=calls or None)
        return
    images: list[ImageRef] = []
    typed: MessageRecord | None = None
    for block in message.blocks:
        if isinstance(block, Image):
            images.append(block.source.seen)  # it belongs to the text before it
            continue
        if typed is not None or images:
            yield _with_images(typed, images)
        typed, images = None, []
        if isinstance(block, ToolResult):
            parts = [Text(block.content)] if isinstance(block.content, str) else block.content or ()
            content = "\n".join(part.text for part in parts if isinstance(part, Text))
            yield MessageRecord(
                role="tool", content=content, tool_call_id=block.tool_use_id, is_error=bool(block.is_error)
            )
        elif isinstance(block, Text):
            typed = _user(block.text)
    if typed is not None or images:
        yield _with_images(typed, images)


def _with_images(typed: MessageRecord | None, images: list[ImageRef]) -> MessageRecord:
    if typed is None:
        return MessageRecord(role="user", content="(images)", images=images)
    return msgspec.structs.replace(typed, images=images) if images else typed


def _user(text: str) -> MessageRecord:
    note = _SYSTEM.fullmatch(text)
    if note is not None:
        return MessageRecord(role="system", content=note[1])
    tag = INJECTED.match(text)
    return MessageRecord(role="user", content=text, injected=tag is not None, injected_kind=tag[1] if tag else None)
