"""Request bodies of the chat completions API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from peen.model.encoded import EncodedConversations
from peen.model.images import data_url, filled
from peen.model.stream import ModelRequest
from peen.wire.model import ToolDefinition
from peen.wire.records import ImageRef, MessageRecord, ToolCallRecord

_encode: Final = msgspec.json.encode
_NOTHING_MORE: Final[Mapping[str, Any]] = {}


class ChatBodies:
    """Encodes requests. Remembers, for a few conversations, what it has encoded and checked already."""

    def __init__(
        self,
        *,
        output_limit_field: str = "max_tokens",
        stream: bool = True,
        more: Mapping[str, Any] = _NOTHING_MORE,
        reasoning_of: Callable[[MessageRecord, str], tuple[str, Raw | str] | None] | None = None,
    ) -> None:
        """`output_limit_field` is the name under which the provider takes the limit on output tokens.

        `more` goes into every request. `reasoning_of` gives the reasoning of an answer that the model of this name
        gets back, with the name of its field; without it, none goes back.
        """
        self._limit_field, self._stream, self._more = output_limit_field, stream, more
        self._reasoning_of = reasoning_of
        self._fills: set[str] = set()
        self._conversations = EncodedConversations(self._message)
        self._tools: tuple[Sequence[ToolDefinition], bytes] = ((), b"")

    def body(self, request: ModelRequest, effort: str | None) -> bytes:
        """The JSON of a request, images in it. Raises: ModelError `invalid_request` as `strict_request_check` does."""
        encoded = self._conversations.messages(request)
        head: dict[str, Any] = {"model": request.model_id, "stream": self._stream}
        if self._stream:
            head["stream_options"] = {"include_usage": True}
        head |= self._more
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
        parts += (encoded, b"]}")
        return filled(b"".join(parts), request.images)

    def fill(self, model_id: str) -> bool:
        """From now on answers without reasoning go to this model with an empty `reasoning_content`.

        Whether that changes anything.
        """
        if self._reasoning_of is None or model_id in self._fills:
            return False
        self._fills.add(model_id)
        self._conversations = EncodedConversations(self._message)
        return True

    def _encoded_tools(self, tools: Sequence[ToolDefinition]) -> bytes:
        if self._tools[0] is not tools:
            self._tools = (tools, _encode([{"type": "function", "function": tool} for tool in tools]))
        return self._tools[1]

    def _message(self, message: MessageRecord, model_id: str) -> bytes:
        if message.role == "tool":
            return _encode({"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content})
        if message.images:
            parts = [_encode({"type": "text", "text": message.content}), *map(_image, message.images)]
            return b'{"role":"%b","content":[%b]}' % (message.role.encode(), b",".join(parts))
        if message.role == "system":
            return _encode({"role": "user", "content": said_by_system(message)})
        said: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.role == "assistant":
            reasoning = None if self._reasoning_of is None else self._reasoning_of(message, model_id)
            if reasoning is not None:
                said[reasoning[0]] = reasoning[1]
            elif model_id in self._fills:
                said["reasoning_content"] = ""
            if message.tool_calls:
                said["content"] = message.content or None
                said["tool_calls"] = [_call(call) for call in message.tool_calls]
        return _encode(said)


def said_by_system(message: MessageRecord) -> str:
    """A system message as text of the user: templates of many models take one at the very beginning only."""
    return f"<system>\n{message.content}\n</system>"


def arguments_text(call: ToolCallRecord) -> str:
    """The arguments of a call as the JSON text of an object."""
    text = bytes(call.arguments).decode()
    # The model sent no object; it has an error result for that. Servers that read the text want one all the same.
    return text if text.startswith("{") else f'{{"invalid":{text}}}'


def _image(image: ImageRef) -> bytes:
    return b'{"type":"image_url","image_url":{"url":"%b"}}' % data_url(image)


def _call(call: ToolCallRecord) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_text(call)}}
