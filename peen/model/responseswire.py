"""The Responses dialect as it comes in: only what is read of it, and nothing of that is required."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from peen.model.chatwire import ErrorObject
from peen.wire.records import NOTHING, Usage


class OutputItem(Struct, frozen=True):
    """One part of an answer: `message`, `function_call`, `reasoning`, or what nobody asked for."""

    type: str = ""
    status: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[dict[str, Any]] | None = None
    summary: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None


class InputDetails(Struct, frozen=True):
    cached_tokens: int | None = None


class OutputDetails(Struct, frozen=True):
    reasoning_tokens: int | None = None


class ResponseUsage(Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None

    def usage(self) -> Usage:
        """What is known stays known, and nothing else becomes zero."""
        given, made = self.input_tokens_details, self.output_tokens_details
        return Usage(
            prompt=self.input_tokens,
            completion=self.output_tokens,
            reasoning=None if made is None else made.reasoning_tokens,
            cache_read=None if given is None else given.cached_tokens,
        )


class IncompleteDetails(Struct, frozen=True):
    reason: str | None = None


class Response(Struct, frozen=True):
    """An answer. `output` is kept as bytes, item for item."""

    object: str | None = None
    status: str | None = None
    model: str | None = None
    output: list[Raw] | None = None
    usage: ResponseUsage | None = None
    error: ErrorObject | str | None = None
    incomplete_details: IncompleteDetails | None = None


class Event(Struct, frozen=True):
    """One event of a stream, whatever its type; or an error."""

    type: str = ""
    delta: Any = None
    output_index: int | None = None
    summary_index: int | None = None
    item: Raw = NOTHING
    response: Raw = NOTHING
    arguments: str | None = None
    error: ErrorObject | str | None = None
    code: str | int | None = None
    message: str | None = None


class Piece(Struct, frozen=True):
    """What of an `Event` may hold text that goes on in the next one."""

    type: str = ""
    delta: Any = None
    output_index: int | None = None
    summary_index: int | None = None


decode_event: Final = msgspec.json.Decoder(Event).decode
decode_item: Final = msgspec.json.Decoder(OutputItem).decode
decode_response: Final = msgspec.json.Decoder(Response).decode
