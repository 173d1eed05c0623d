"""Requests of the Responses API, read as strictly as the provider reads them.

These structs are written from the provider's documentation and share nothing with the adapter that is tested
against them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from peen.model.stream import ModelRequest
from peen.model.strict import strict_request_check
from peen.testing.upstream.openaiwire import INJECTED, NAME, note_of, refused
from peen.testing.upstream.pictures import seen_data_url
from peen.testing.upstream.wire import Asked
from peen.wire.model import ToolDefinition
from peen.wire.records import ImageRef, MessageRecord, ToolCallRecord

INCLUDE: Final = "reasoning.encrypted_content"
_EMPTY_SCHEMA: Final = Raw(b'{"type":"object","properties":{}}')
_SPLIT: Final = "."


class Part(Struct, frozen=True):
    type: Literal["input_text", "output_text", "text", "input_image"]
    text: str | None = None
    image_url: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


class Item(Struct, frozen=True):
    """One item of the input; which fields it must have depends on its type."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    encrypted_content: str | None = None


class Tool(Struct, frozen=True):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Reasoning(Struct, frozen=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesRequest(Struct, frozen=True):
    model: str
    input: str | list[Raw]
    stream: bool | None = None
    store: bool | None = None
    include: list[str] | None = None
    instructions: str | None = None
    tools: list[Tool] | None = None
    max_output_tokens: int | None = None
    reasoning: Reasoning | None = None
    previous_response_id: str | None = None


_decode: Final = msgspec.json.Decoder(ResponsesRequest).decode
_decode_item: Final = msgspec.json.Decoder(Item).decode
_decode_any: Final = msgspec.json.Decoder(Any).decode


class Sealed(Struct, frozen=True):
    """A reasoning item: its bytes, as they were given out and must come back."""

    model: str
    id: str
    thinking: str

    def item(self, *, sealed: bool) -> bytes:
        """The JSON of the item, with its encrypted content if that was asked for."""
        digest = hashlib.sha256(f"{self.model}\0{self.id}\0{self.thinking}".encode()).hexdigest()
        item: dict[str, Any] = {"id": self.id, "type": "reasoning"}
        if sealed:
            item["encrypted_content"] = f"{base64.b64encode(msgspec.json.encode(self)).decode()}{_SPLIT}{digest}"
        # Neither the order of the fields nor the spaces are what an encoder would make of it again.
        summary = msgspec.json.encode([{"type": "summary_text", "text": self.thinking}])
        return msgspec.json.encode(item)[:-1] + b', "summary" : ' + summary + b"}"


def parse_responses(body: bytes, *, name: str, created_s: int, strict: bool) -> Asked:
    """The request in `body`; with `strict`, refused where its conversation would be.

    Raises: ModelError `invalid_request` with status 400.
    """
    try:
        asked = _decode(body)
        given = [(raw, _decode_item(raw)) for raw in asked.input] if isinstance(asked.input, list) else []
    except (msgspec.DecodeError, RecursionError) as exc:
        raise refused(str(exc)) from exc
    if asked.previous_response_id is not None:
        raise refused(f"Previous response with id '{asked.previous_response_id}' not found.")
    reading = _Reading(asked.model)
    if isinstance(asked.input, str):
        reading.messages.append(MessageRecord(role="user", content=asked.input))
    for index, (raw, item) in enumerate(given):
        reading.take(f"input[{index}]", bytes(raw), item, strict=strict)
    reading.close()
    request = ModelRequest(
        model_id=asked.model,
        system=asked.instructions or "",
        messages=reading.messages,
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(asked.tools or ())],
        max_output_tokens=asked.max_output_tokens,
        reasoning_effort=asked.reasoning.effort if asked.reasoning is not None else None,
    )
    if strict:
        strict_request_check(request)
    keeps = INCLUDE in (asked.include or ())
    return Asked(
        request=request, stream=bool(asked.stream), include_usage=True, name=name, created_s=created_s, seals=keeps,
        reasoning=reading.exact,
    )  # fmt: skip


class _Reading:
    """Puts items together to messages: an answer is several items here, and one message to a model."""

    def __init__(self, model: str) -> None:
        self.messages: list[MessageRecord] = []
        self.exact = 0
        self._model = model
        self._text = ""
        self._calls: list[ToolCallRecord] = []
        self._is_open = False
        self._reasoned = ""

    def take(self, place: str, raw: bytes, item: Item, *, strict: bool) -> None:
        match item.type:
            case "reasoning":
                if self._calls or self._text:
                    self.close()
                self.exact += _check_sealed(item, raw, self._model, place)
                self._is_open, self._reasoned = True, place
            case "function_call":
                self._calls.append(_call(item, place))
                self._is_open, self._reasoned = True, ""
            case "function_call_output":
                self.close()
                if not item.call_id or item.output is None:
                    raise refused(f"Missing required parameter: '{place}.call_id'.")
                self.messages.append(
                    MessageRecord(role="tool", content=_text(item.output, f"{place}.output"), tool_call_id=item.call_id)
                )  # fmt: skip
            case _ if item.role == "assistant":
                if self._calls or self._text:
                    self.close()
                text = _text(item.content, f"{place}.content")
                self._text, self._is_open, self._reasoned = text, True, ""
                if strict and not self._text.strip():
                    raise refused(f"Invalid '{place}.content': empty.")
            case _:
                self.close()
                self.messages.append(_message(item, place))

    def close(self) -> None:
        """The answer that was open is whole."""
        if not self._is_open:
            return
        if self._reasoned:
            raise refused(
                f"Item '{self._reasoned}' of type 'reasoning' was provided without its required following item."
            )
        self.messages.append(MessageRecord(role="assistant", content=self._text, tool_calls=self._calls or None))
        self._text, self._calls, self._is_open = "", [], False


def _check_sealed(item: Item, raw: bytes, model: str, place: str) -> bool:
    """Refuse what this provider did not give out for this model; whether it came in the very same bytes."""
    content, _, _ = (item.encrypted_content or "").partition(_SPLIT)
    try:
        sealed = msgspec.json.decode(base64.b64decode(content, validate=True), type=Sealed)
    except (msgspec.DecodeError, binascii.Error, ValueError):
        raise refused(f"The encrypted content of '{place}' could not be verified.") from None
    given_out = sealed.item(sealed=True)
    if sealed.model != model or item != _decode_item(given_out):
        raise refused(f"The encrypted content of '{place}' could not be verified: it was not made for {model!r}.")
    return raw == given_out


def _message(item: Item, place: str) -> MessageRecord:
    if item.content is None or item.role is None:
        raise refused(f"Missing required parameter: '{place}.content'.")
    if item.role != "user":
        return MessageRecord(role="system", content=_text(item.content, f"{place}.content"))
    parts = item.content if isinstance(item.content, list) else [Part(type="input_text", text=item.content)]
    text = _text([part for part in parts if part.type != "input_image"], f"{place}.content")
    if (note := note_of(text)) is not None:
        return note
    tag = INJECTED.match(text)
    return MessageRecord(
        role="user",
        content=text,
        injected=tag is not None,
        injected_kind=tag[1] if tag else None,
        images=[
            _image(part, f"{place}.content[{at}].image_url")
            for at, part in enumerate(parts)
            if part.type == "input_image"
        ],
    )


def _image(part: Part, place: str) -> ImageRef:
    if part.image_url is None:
        raise refused(f"Missing required parameter: '{place}'.")
    try:
        return seen_data_url(part.image_url)
    except ValueError as problem:
        raise refused(f"Invalid '{place}': {problem}") from problem


def _call(item: Item, place: str) -> ToolCallRecord:
    if not item.call_id or item.arguments is None:
        raise refused(f"Missing required parameter: '{place}.call_id'.")
    if not NAME.fullmatch(item.name or ""):
        raise refused(f"Invalid '{place}.name': {item.name!r}.")
    arguments = item.arguments.encode()
    try:
        _decode_any(arguments)
    except (msgspec.DecodeError, RecursionError):
        arguments = msgspec.json.encode(item.arguments)  # the provider takes any text here
    return ToolCallRecord(id=item.call_id, name=item.name or "", arguments=Raw(arguments))


def _tool(tool: Tool, place: str) -> ToolDefinition:
    if not re.fullmatch(NAME, tool.name):
        raise refused(f"Invalid '{place}.name': {tool.name!r}.")
    if tool.parameters is None:
        return ToolDefinition(tool.name, tool.description or "", _EMPTY_SCHEMA)
    if tool.parameters.get("type") != "object":
        raise refused(f"Invalid schema for function {tool.name!r}: schema must be of 'type: \"object\"'.")
    if tool.strict is not False:
        raise refused(f"Invalid schema for function {tool.name!r}: 'additionalProperties' is required to be false.")
    return ToolDefinition(tool.name, tool.description or "", Raw(msgspec.json.encode(tool.parameters)))


def _text(content: str | list[Part] | None, place: str) -> str:
    if isinstance(content, list):
        if any(part.type == "input_image" for part in content):
            raise refused(f"Invalid '{place}': images are only allowed in messages with role 'user'.")
        return "\n".join(part.text or "" for part in content)
    return content or ""
