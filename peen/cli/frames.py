"""Frames of the server as the command line reads them: tolerant, since a controller may be newer than its client."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct


class Metadata(Struct, frozen=True, rename="camel"):
    request_id: str | None = None
    sequence: int | None = None


class Block(Struct, frozen=True):
    type: str = ""


class Data(Struct, frozen=True, rename="camel"):
    """Members of all the payloads that are looked at; each frame type has some. Those of blocks are snake case."""

    message: str = ""
    model: str | None = None
    text: str = ""
    finish_reason: str | None = None
    reason: str | None = None
    error: str | None = None
    code: str = ""
    queued: bool = False
    attempt: int = 0
    call_id: str = ""
    name: str = ""
    arguments: Raw = Raw(b"null")
    content_block: Block = msgspec.field(default=Block(), name="content_block")


class Frame(Struct, frozen=True, rename="camel"):
    type: str
    data: Raw = Raw(b"{}")
    metadata: Metadata = Metadata()
    triggered_by: str | None = None


decode_frame: Final = msgspec.json.Decoder(Frame).decode
decode_data: Final = msgspec.json.Decoder(Data).decode
FOLDED: Final = frozenset({
    "userMessage.created", "turn.started", "content_block_start", "tool.use", "tool.result", "provider.retry",
    "turn.completed", "turn.failed", "turn.cancelled", "message.completed", "message.failed", "userMessage.queued",
    "userMessage.delivered",
})  # fmt: skip
