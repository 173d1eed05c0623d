"""Request bodies of the Messages API, built so that a round pays only for the messages that are new in it.

From round to round everything in front of the newest messages stays the same, byte for byte, but for the cache marks
that move on; so the provider's cache holds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from peen.model.anthropicstream import KEPT_TYPES, Kept
from peen.model.conversation import begins_turn
from peen.model.images import filled, mark
from peen.model.reasoning import items_for, type_of
from peen.model.stream import ModelRequest
from peen.model.strict import StrictCheck
from peen.wire.model import ToolDefinition
from peen.wire.records import ImageRef, MessageRecord, ToolCallRecord

KEPT: Final = 16
"""Conversations whose encoded messages are kept: a root and its children at work. The one used longest ago goes."""
KEPT_BYTES: Final = 32 * 1024 * 1024
"""How much they may be together; the newest one is always kept."""

MARKED: Final = 2
"""User messages with a mark: the newest, and the one before it, so that the place of the last mark is found again.

With tools and prompt that makes four marks, and the provider takes no more.
"""

_MARK: Final = b',"cache_control":{"type":"ephemeral"}}'
_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_NOT_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_MOST_NAME: Final = 128
_BEGIN: Final = "(The conversation begins with an answer.)"
_GO_ON: Final = "(Go on.)"
_encode: Final = msgspec.json.encode
_decode_item: Final = msgspec.json.Decoder(Kept).decode


class MessageBodies:
    """Encodes requests of one upstream. Remembers, for a few conversations, what it has encoded and checked already."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._kept: list[EncodedConversation] = []
        self._tools: tuple[Sequence[ToolDefinition], bytes] = ((), b"")

    def body(self, request: ModelRequest, conversation: EncodedConversation, head: dict[str, Any]) -> bytes:
        """The JSON of a request that begins with `head`, images in it; `conversation` is its own."""
        parts: list[bytes | bytearray] = [_encode(head)[:-1]]
        if request.tools:
            parts += (b',"tools":', self._encoded_tools(request.tools))
        if request.system.strip():
            parts += (b',"system":[', _marked(_text(request.system)), b"]")
        parts += (b',"messages":[', *conversation.parts(), b"]}")
        return filled(b"".join(parts), request.images)

    def conversation(self, request: ModelRequest) -> EncodedConversation:
        """What is encoded of this conversation, brought up to its newest message.

        Raises: ModelError `invalid_request` as `strict_request_check` does.
        """
        messages = request.messages if isinstance(request.messages, list) else list(request.messages)
        found = next((kept for kept in self._kept if kept.is_prefix_of(request.model_id, messages)), None)
        if found is None:
            found = EncodedConversation(self._upstream, request.model_id)
        else:
            self._kept.remove(found)
        found.advance(request, messages)
        self._kept = [found, *self._kept[: KEPT - 1]]
        while len(self._kept) > 1 and sum(kept.size for kept in self._kept) > KEPT_BYTES:
            self._kept.pop()
        return found

    def _encoded_tools(self, tools: Sequence[ToolDefinition]) -> bytes:
        if self._tools[0] is not tools:
            encoded = [_tool(tool) for tool in tools]
            encoded[-1] = _marked(encoded[-1])
            self._tools = (tools, b"[%b]" % b",".join(encoded))
        return self._tools[1]


class EncodedConversation:
    """The messages of one conversation so far, checked: roles that alternate, each with its blocks as JSON objects."""

    def __init__(self, upstream: str, model_id: str) -> None:
        self._upstream, self._model_id = upstream, model_id
        self._messages: list[MessageRecord] = []
        self._check = StrictCheck()
        self._closed = bytearray()  # messages that cannot change any more, nor be marked
        self._open: list[tuple[Literal["user", "assistant"], list[bytes]]] = []
        self._thinks: list[bool] = []  # of each message of the current turn by the assistant: it begins with reasoning
        self.has_reasoning = False
        """Whether any reasoning goes back to the provider."""

    @property
    def size(self) -> int:
        return len(self._closed) + sum(len(block) for _, blocks in self._open for block in blocks)

    @property
    def may_think(self) -> bool:
        """Whether thinking may be asked for by budget: a turn that runs must have begun with it."""
        return not self._thinks or self._thinks[0]

    def is_prefix_of(self, model_id: str, messages: list[MessageRecord]) -> bool:
        # Within a turn these are the same objects, which the comparison sees without looking into them.
        return self._model_id == model_id and messages[: len(self._messages)] == self._messages

    def advance(self, request: ModelRequest, messages: list[MessageRecord]) -> None:
        new = messages[len(self._messages) :]
        self._check.take(request, new)
        for message in new:
            self._add(message)
            self._messages.append(message)

    def parts(self) -> Iterator[bytes | bytearray]:
        """The messages as JSON objects with commas between. The newest user messages are marked."""
        yield self._closed
        left = [(role, list(blocks)) for role, blocks in self._open]
        if not left or left[-1][0] == "assistant":
            left.append(("user", [_text(_GO_ON)]))
        for blocks in [blocks for role, blocks in left if role == "user"][-MARKED:]:
            blocks[-1] = _marked(blocks[-1])
        has_before = bool(self._closed)
        for role, blocks in left:
            yield (b"," if has_before else b"") + _message(role, blocks)
            has_before = True

    def _add(self, message: MessageRecord) -> None:
        match message.role:
            case "assistant":
                blocks = self._answer(message)
                if blocks:
                    if not self._closed and not self._open:
                        self._extend("user", [_text(_BEGIN)])
                    self._extend("assistant", blocks)
            case "tool":
                self._extend("user", [_result(message)])
            case "system":
                self._extend("user", [_text(f"<system>\n{message.content}\n</system>")])
            case "user":
                if begins_turn(message):
                    self._thinks = []
                self._extend("user", [_text(message.content), *map(_image, message.images)])

    def _extend(self, role: Literal["user", "assistant"], blocks: list[bytes]) -> None:
        if self._open and self._open[-1][0] == role:
            self._open[-1][1].extend(blocks)
            return
        self._open.append((role, blocks))
        while sum(role == "user" for role, _ in self._open) > MARKED:
            first = self._open.pop(0)
            self._closed += (b"," if self._closed else b"") + _message(*first)

    def _answer(self, message: MessageRecord) -> list[bytes]:
        blocks = _answer(message, self._items(message))
        self._thinks.append(bool(blocks) and blocks[0].startswith((b'{"type":"thinking"', b'{"type":"redacted')))
        return blocks

    def _items(self, message: MessageRecord) -> list[Raw]:
        items = items_for(message, upstream=self._upstream, model=self._model_id)
        if not all(type_of(item) in KEPT_TYPES for item in items):
            return []
        self.has_reasoning |= bool(items)
        return items


def _answer(message: MessageRecord, items: list[Raw]) -> list[bytes]:
    """Reasoning, text and calls of an answer, in the order in which they came."""
    blocks: list[bytes] = []
    text, calls = message.content, list(message.tool_calls or ())
    for raw in items:
        item = _decode_item(raw)
        if item.type == "text":
            part, text = text[: item.characters or 0], text[item.characters or 0 :]
            if part.strip():
                blocks.append(_text(part))
        elif item.type == "tool_use":
            call = next((call for call in calls if call.id == item.id), None)
            if call is None:
                break  # it never returned, and what was thought after it stands on its own no longer
            calls.remove(call)
            blocks.append(_call(call))
        else:
            blocks.append(bytes(raw))
    if text.strip():
        blocks.append(_text(text))
    blocks += map(_call, calls)
    return blocks


def _message(role: str, blocks: list[bytes]) -> bytes:
    return b'{"role":"%b","content":[%b]}' % (role.encode(), b",".join(blocks))


def _marked(block: bytes) -> bytes:
    return block[:-1] + _MARK


def _text(text: str) -> bytes:
    return _encode({"type": "text", "text": text})


def _image(image: ImageRef) -> bytes:
    source = b'{"type":"base64","media_type":"%b","data":"%b"}' % (image.media_type.encode(), mark(image))
    return b'{"type":"image","source":%b}' % source


def _call(call: ToolCallRecord) -> bytes:
    given = call.arguments
    if not bytes(given).startswith(b"{"):
        # The model sent no object; it has an error result for that. The provider wants one all the same.
        given = Raw(b'{"invalid":%b}' % bytes(given))
    return _encode({"type": "tool_use", "id": _call_id(call.id), "name": _name(call.name), "input": given})


def _result(message: MessageRecord) -> bytes:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": _call_id(message.tool_call_id or "")}
    if message.content.strip():
        block["content"] = message.content
    if message.is_error:
        block["is_error"] = True
    return _encode(block)


def _tool(tool: ToolDefinition) -> bytes:
    return _encode({"name": tool.name, "description": tool.description, "input_schema": tool.parameters})


def _call_id(call_id: str) -> str:
    """Other providers use characters in their ids that this one refuses."""
    if _ID.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _name(name: str) -> str:
    """A name that the model made up may be none that the provider takes back."""
    return _NOT_NAME.sub("_", name)[:_MOST_NAME]
