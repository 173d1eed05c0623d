"""Reasoning that goes back to the provider it came from, byte for byte, and to nobody else. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from peen.wire.records import NOTHING, MessageRecord, ProviderReasoning

REASONING_REFUSED: Final = "reasoning_refused"
"""Kind of the error when a provider does not take back the reasoning in a request: without it, it may take the rest."""
REASONING_MISSED: Final = "reasoning_missed"
"""Kind of the error when a provider wants reasoning that nobody has; the next request has something in its place."""


class _Item(Struct, frozen=True):
    type: str = ""


class ChatReasoning(Struct, frozen=True, tag_field="type", tag="chat_reasoning"):
    """The reasoning of a chat completions answer: the field that it came in, and what stood there."""

    field: str
    value: Raw


_encode: Final = msgspec.json.encode
_decode: Final = msgspec.json.Decoder(ProviderReasoning).decode
_decode_item: Final = msgspec.json.Decoder(_Item).decode
_decode_chat: Final = msgspec.json.Decoder(ChatReasoning).decode


def kept_reasoning(items: Sequence[Raw], *, upstream: str, model: str) -> Raw:
    """`items` with the place they belong to, as a message keeps them; NOTHING where there are none."""
    if not items:
        return NOTHING
    return Raw(_encode(ProviderReasoning(upstream=upstream, model=model, items=list(items))))


def items_for(message: MessageRecord, *, upstream: str, model: str) -> list[Raw]:
    """What `message` keeps for this upstream and model, each item exactly as it came; empty if that is nothing."""
    if message.provider_reasoning == NOTHING:
        return []
    try:
        kept = _decode(message.provider_reasoning)
    except msgspec.DecodeError:  # of a release that keeps it in another form
        return []
    return kept.items if (kept.upstream, kept.model) == (upstream, model) else []


def without_reasoning(message: MessageRecord, *, upstream: str, model: str) -> MessageRecord:
    """`message` without what it keeps for this upstream and model; the same object if that is nothing."""
    if not items_for(message, upstream=upstream, model=model):
        return message
    return msgspec.structs.replace(message, provider_reasoning=NOTHING)


def type_of(item: Raw) -> str:
    """The `type` of an item, empty if it has none.

    An upstream that keeps its name may come to speak another dialect, which must not send what it does not know.
    """
    try:
        return _decode_item(item).type
    except msgspec.DecodeError:
        return ""


def chat_item(field: str, value: object) -> Raw:
    """What an answer of chat completions keeps of its reasoning; `value` is the whole of what stood in `field`."""
    return Raw(_encode(ChatReasoning(field, Raw(_encode(value)))))


def chat_field(items: Sequence[Raw]) -> tuple[str, Raw] | None:
    """Field and JSON of the reasoning in `items`; None where they are of another dialect."""
    try:
        found = [_decode_chat(item) for item in items]
    except msgspec.DecodeError:
        return None
    return (found[0].field, found[0].value) if len(found) == 1 else None
