"""Request bodies of the Responses API: nothing is stored there, so every request holds the whole conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from peen.model.chatbody import arguments_text, said_by_system
from peen.model.encoded import EncodedConversations
from peen.model.images import data_url, filled
from peen.model.reasoning import items_for, type_of
from peen.model.stream import ModelRequest
from peen.wire.model import ToolDefinition
from peen.wire.records import ImageRef, MessageRecord

SPOKEN: Final = Raw(b'"message"')
"""Stands for the answer's text among the kept items of its output."""
CALLED: Final = Raw(b'"call"')
"""Stands for the next of its calls."""

_encode: Final = msgspec.json.encode


class ResponsesBodies:
    """Encodes requests. Remembers, for a few conversations, what it has encoded and checked already."""

    def __init__(
        self,
        upstream: str,
        *,
        stream: bool = True,
        keeps: Callable[[str], bool] = lambda _model: True,
        summarizes: Callable[[str], bool] = lambda _model: False,
    ) -> None:
        """`upstream` is the name under which reasoning is kept.

        `keeps` and `summarizes` say whether a model may be asked for reasoning to be sent back, and to be shown.
        """
        self._upstream, self._stream = upstream, stream
        self._keeps, self._summarizes = keeps, summarizes
        self._conversations = EncodedConversations(self._message)
        self._tools: tuple[Sequence[ToolDefinition], bytes] = ((), b"")

    def body(self, request: ModelRequest, effort: str | None) -> bytes:
        """The JSON of a request, images in it. Raises: ModelError `invalid_request` as `strict_request_check` does."""
        encoded = self._conversations.messages(request)
        head: dict[str, Any] = {"model": request.model_id, "stream": self._stream, "store": False}
        if self._keeps(request.model_id):
            # Without this a reasoning model starts every round from nothing: the provider keeps none of it.
            head["include"] = ["reasoning.encrypted_content"]
        reasoning = {"effort": effort} if effort is not None else {}
        if self._summarizes(request.model_id):
            reasoning["summary"] = "auto"
        if reasoning:
            head["reasoning"] = reasoning
        if request.max_output_tokens is not None:
            head["max_output_tokens"] = request.max_output_tokens
        if request.system:
            head["instructions"] = request.system
        parts: list[bytes | bytearray] = [_encode(head)[:-1]]
        if request.tools:
            parts += (b',"tools":', self._encoded_tools(request.tools))
        parts += (b',"input":[', encoded, b"]}")
        return filled(b"".join(parts), request.images)

    def _encoded_tools(self, tools: Sequence[ToolDefinition]) -> bytes:
        if self._tools[0] is not tools:
            written = [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "strict": False,  # else the provider wants every field of a schema to be required
                }
                for tool in tools
            ]
            self._tools = (tools, _encode(written))
        return self._tools[1]

    def _message(self, message: MessageRecord, model_id: str) -> bytes:
        if message.role == "tool":
            result = {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}
            return _encode(result)
        if message.images:
            parts = [_encode({"type": "input_text", "text": message.content}), *map(_image, message.images)]
            return b'{"type":"message","role":"%b","content":[%b]}' % (message.role.encode(), b",".join(parts))
        if message.role == "system":
            return _encode({"type": "message", "role": "user", "content": said_by_system(message)})
        spoken = _encode({"type": "message", "role": message.role, "content": message.content})
        if message.role != "assistant":
            return spoken
        said = [spoken] if message.content.strip() else []
        calls = [
            _encode({
                "type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments_text(call),
            })
            for call in message.tool_calls or ()
        ]  # fmt: skip
        kept = items_for(message, upstream=self._upstream, model=model_id)
        laid_out = _lay_out(kept, said, calls) if kept else None
        return b",".join(laid_out or [*said, *calls])


def _image(image: ImageRef) -> bytes:
    return b'{"type":"input_image","image_url":"%b"}' % data_url(image)


def _lay_out(layout: list[Raw], said: list[bytes], calls: list[bytes]) -> list[bytes] | None:
    """The answer in the order of its output, reasoning included; None if what is left of it no longer fits.

    A provider refuses reasoning without what followed from it, and a call may be left out of the history.
    """
    if layout.count(CALLED) != len(calls) or layout.count(SPOKEN) < len(said):
        return None
    if not all(item in (SPOKEN, CALLED) or type_of(item) == "reasoning" for item in layout):
        return None
    spoken, called = iter(said), iter(calls)
    found: list[bytes] = []
    for item in layout:
        if item == SPOKEN:
            found += [text for text in (next(spoken, None),) if text is not None]
        elif item == CALLED:
            found.append(next(called))
        else:
            found.append(bytes(item))
    return found
