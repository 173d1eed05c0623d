"""Requests of the chat completions API, read as strictly as the provider reads them.

These structs are written from the provider's documentation and share nothing with the adapter that is tested
against them.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from peen.errors import ModelError
from peen.model.stream import ModelRequest
from peen.model.strict import strict_request_check
from peen.testing.upstream.pictures import seen_data_url
from peen.testing.upstream.wire import Asked
from peen.wire.model import ToolDefinition
from peen.wire.records import ImageRef, MessageRecord, ToolCallRecord

NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# What Peen itself puts into a conversation belongs to the turn that it arrives in.
INJECTED: Final = re.compile(r"<(events|handler|hook|image|omitted|rule|skill|summary)\b")
_SYSTEM: Final = re.compile(r"<system>\n(.*)\n</system>", re.DOTALL)
_EMPTY_SCHEMA: Final = Raw(b'{"type":"object","properties":{}}')


class ImageUrl(Struct, frozen=True):
    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ContentPart(Struct, frozen=True):
    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageUrl | None = None


class FunctionCall(Struct, frozen=True):
    name: str
    arguments: str


class ToolCall(Struct, frozen=True):
    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class Function(Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Struct, frozen=True):
    type: Literal["function"]
    function: Function


class StreamOptions(Struct, frozen=True):
    include_usage: bool = False


class ChatRequest(Struct, frozen=True):
    model: str
    messages: list[Message]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[Tool] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


_decode: Final = msgspec.json.Decoder(ChatRequest).decode
_decode_any: Final = msgspec.json.Decoder(Any).decode


def parse_chat(body: bytes, *, name: str, created_s: int, strict: bool) -> Asked:
    """The request in `body`; with `strict`, refused where its conversation would be.

    Raises: ModelError `invalid_request` with status 400.
    """
    try:
        chat = _decode(body)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise refused(str(exc)) from exc
    if chat.stream_options is not None and not chat.stream:
        raise refused("The 'stream_options' parameter is only allowed when 'stream' is enabled.")
    system = ""
    messages: list[MessageRecord] = []
    for index, message in enumerate(chat.messages):
        if not messages and not system and message.role in ("system", "developer"):
            system = _text(message, f"messages[{index}]", strict=strict)
        else:
            if strict and message.role in ("system", "developer"):
                raise refused("System message must be at the beginning.")  # so say templates of many open models
            messages.append(_record(message, f"messages[{index}]", strict=strict))
    request = ModelRequest(
        model_id=chat.model,
        system=system,
        messages=messages,
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(chat.tools or ())],
        max_output_tokens=chat.max_completion_tokens or chat.max_tokens,
        reasoning_effort=chat.reasoning_effort,
    )
    if strict:
        strict_request_check(request)
    include_usage = chat.stream_options is not None and chat.stream_options.include_usage
    reasoning = sum(message.reasoning_content is not None for message in chat.messages)
    answers = sum(message.role == "assistant" for message in chat.messages)
    return Asked(
        request=request, stream=bool(chat.stream), include_usage=include_usage, name=name, created_s=created_s,
        reasoning=reasoning, misses_reasoning=bool(chat.tools) and answers > reasoning,
    )  # fmt: skip


def note_of(text: str) -> MessageRecord | None:
    """What the service itself says in the middle of a conversation, which comes as text of the user."""
    found = _SYSTEM.fullmatch(text)
    return None if found is None else MessageRecord(role="system", content=found[1])


def refused(problem: str) -> ModelError:
    """A request that the provider does not accept."""
    return ModelError(problem, kind="invalid_request", retryable=False, status=400)


def _record(message: Message, place: str, *, strict: bool) -> MessageRecord:
    text = _text(message, place, strict=strict)
    match message.role:
        case "tool":
            if not message.tool_call_id:
                raise refused(f"Missing required parameter: '{place}.tool_call_id'.")
            return MessageRecord(role="tool", content=text, tool_call_id=message.tool_call_id)
        case "assistant":
            if message.tool_calls == [] and strict:
                raise refused(f"Invalid '{place}.tool_calls': empty array.")
            calls = [_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls or ())]
            return MessageRecord(role="assistant", content=text, tool_calls=calls or None)
        case "user":
            if (note := note_of(text)) is not None:
                return note
            tag = INJECTED.match(text)
            return MessageRecord(
                role="user",
                content=text,
                injected=tag is not None,
                injected_kind=tag[1] if tag else None,
                images=_images(message, place),
            )
        case _:
            return MessageRecord(role="system", content=text)


def _images(message: Message, place: str) -> list[ImageRef]:
    parts = message.content if isinstance(message.content, list) else []
    return [
        _image(part, f"{place}.content[{at}].image_url") for at, part in enumerate(parts) if part.type == "image_url"
    ]


def _image(part: ContentPart, place: str) -> ImageRef:
    if part.image_url is None:
        raise refused(f"Missing required parameter: '{place}'.")
    try:
        return seen_data_url(part.image_url.url)
    except ValueError as problem:
        raise refused(f"Invalid '{place}.url': {problem}") from problem


def _call(call: ToolCall, place: str) -> ToolCallRecord:
    if not NAME.fullmatch(call.function.name):
        raise refused(f"Invalid '{place}.function.name': {call.function.name!r}.")
    arguments = call.function.arguments.encode()
    try:
        _decode_any(arguments)
    except (msgspec.DecodeError, RecursionError):
        arguments = msgspec.json.encode(call.function.arguments)  # the provider takes any text here
    return ToolCallRecord(id=call.id, name=call.function.name, arguments=Raw(arguments))


def _tool(tool: Tool, place: str) -> ToolDefinition:
    function = tool.function
    if not NAME.fullmatch(function.name):
        raise refused(f"Invalid '{place}.function.name': {function.name!r}.")
    if function.parameters is None:
        return ToolDefinition(function.name, function.description or "", _EMPTY_SCHEMA)
    if function.parameters.get("type") != "object":
        raise refused(f"Invalid schema for function {function.name!r}: schema must be of 'type: \"object\"'.")
    return ToolDefinition(function.name, function.description or "", Raw(msgspec.json.encode(function.parameters)))


def _text(message: Message, place: str, *, strict: bool) -> str:
    if message.content is None:
        if message.role != "assistant":
            raise refused(f"Invalid value for '{place}.content': expected a string, got null.")
        return ""
    if isinstance(message.content, str):
        return message.content
    if message.role != "user" and any(part.type == "image_url" for part in message.content):
        raise refused(f"Invalid '{place}.content': images are only allowed in messages with role 'user'.")
    if strict and any(part.type == "text" and not (part.text or "").strip() for part in message.content):
        raise refused(f"Invalid '{place}.content': a text part must not be empty.")
    return "\n".join(part.text or "" for part in message.content if part.type == "text")
