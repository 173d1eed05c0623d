"""Request bodies of the chat completions API, built so that a round pays only for the messages that are new in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from peen.model.images import filled, mark
from peen.model.stream import ModelRequest
from peen.model.strict import StrictCheck
from peen.wire.model import ToolDefinition
from peen.wire.worker import ImageRef, MessageRecord, ToolCallRecord

KEPT: Final = 16
"""Conversations whose encoded messages are kept: a root and its children at work. The one used longest ago goes."""
KEPT_BYTES: Final = 32 * 1024 * 1024
"""How much they may be together; the newest one is always kept."""

_encode: Final = msgspec.json.encode


class ChatBodies:
    """Encodes requests. Remembers, for a few conversations, what it has encoded and checked already."""

    def __init__(self, *, output_limit_field: str = "max_tokens") -> None:
        """`output_limit_field` is the name under which the provider takes the limit on output tokens."""
        self._limit_field = output_limit_field
        self._kept: list[_Encoded] = []
        self._tools: tuple[Sequence[ToolDefinition], bytes] = ((), b"")

    def body(self, request: ModelRequest, effort: str | None) -> bytes:
        """The JSON of a streaming request, images in it.

        Raises: ModelError `invalid_request` as `strict_request_check` does.
        """
        encoded = self._advance(request)
        head: dict[str, Any] = {"model": request.model_id, "stream": True, "stream_options": {"include_usage": True}}
        if effort is not None:
            head["reasoning_effort"] = effort
        if request.max_output_tokens is not None:
            head[self._limit_field] = request.max_output_tokens
        parts: list[bytes | bytearray] = [_encode(head)[:-1]]
        if request.tools:
            parts += (b',"tools":', self._encoded_tools(request.tools))
        parts.append(b',"messages":[')
        if request.system:
            parts += (_encode({"role": "system", "content": request.system}), b",")
        parts += (encoded.json, b"]}")
        return filled(b"".join(parts), request.images)

    def _advance(self, request: ModelRequest) -> _Encoded:
        """What is encoded of this conversation, brought up to its newest message."""
        messages = request.messages if isinstance(request.messages, list) else list(request.messages)
        found = next((kept for kept in self._kept if kept.is_prefix_of(messages)), None)
        if found is None:
            found = _Encoded()
        else:
            self._kept.remove(found)
        found.advance(request, messages)
        self._kept = [found, *self._kept[: KEPT - 1]]
        while len(self._kept) > 1 and sum(len(kept.json) for kept in self._kept) > KEPT_BYTES:
            self._kept.pop()
        return found

    def _encoded_tools(self, tools: Sequence[ToolDefinition]) -> bytes:
        if self._tools[0] is not tools:
            self._tools = (tools, _encode([{"type": "function", "function": tool} for tool in tools]))
        return self._tools[1]


class _Encoded:
    """The messages of one conversation so far, checked, as JSON objects with commas between."""

    def __init__(self) -> None:
        self.json = bytearray()
        self._messages: list[MessageRecord] = []
        self._check = StrictCheck()

    def is_prefix_of(self, messages: list[MessageRecord]) -> bool:
        # Within a turn these are the same objects, which the comparison sees without looking into them.
        return messages[: len(self._messages)] == self._messages

    def advance(self, request: ModelRequest, messages: list[MessageRecord]) -> None:
        new = messages[len(self._messages) :]
        self._check.take(request, new)
        for message in new:
            if self.json:
                self.json += b","
            self.json += _message(message)
        self._messages += new


def _message(message: MessageRecord) -> bytes:
    if message.role == "tool":
        return _encode({"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content})
    if message.role == "assistant" and message.tool_calls:
        calls = [_call(call) for call in message.tool_calls]
        return _encode({"role": "assistant", "content": message.content or None, "tool_calls": calls})
    if message.images:
        parts = [_encode({"type": "text", "text": message.content}), *map(_image, message.images)]
        return b'{"role":"%b","content":[%b]}' % (message.role.encode(), b",".join(parts))
    return _encode({"role": message.role, "content": message.content})


def _image(image: ImageRef) -> bytes:
    url = b"data:%b;base64,%b" % (image.media_type.encode(), mark(image))
    return b'{"type":"image_url","image_url":{"url":"%b"}}' % url


def _call(call: ToolCallRecord) -> dict[str, Any]:
    text = bytes(call.arguments).decode()
    if not text.startswith("{"):
        # The model sent no object; it has an error result for that. Servers that read the text want one all the same.
        text = f'{{"invalid":{text}}}'
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": text}}
