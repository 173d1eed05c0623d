"""The Messages dialect as it comes in: every field that some server leaves out, or gets wrong, is optional."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from msgspec import Struct

from peen.model.chatwire import ErrorObject
from peen.wire.records import Usage


class OutputDetails(Struct, frozen=True):
    thinking_tokens: int | None = None


class UsageReport(Struct, frozen=True):
    """Counts so far. `input_tokens` leaves out what the cache gave and took."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None

    def usage(self) -> Usage:
        """What is known stays known, and nothing else becomes zero; the prompt is all of the input together."""
        prompt = None
        if self.input_tokens is not None:
            prompt = self.input_tokens + (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)
        details = self.output_tokens_details
        return Usage(
            prompt=prompt,
            completion=self.output_tokens,
            reasoning=None if details is None else details.thinking_tokens,
            cache_read=self.cache_read_input_tokens,
            cache_write=self.cache_creation_input_tokens,
        )


class Block(Struct, frozen=True):
    """A content block: empty where it starts, whole where a server does not stream."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None


class StopDetails(Struct, frozen=True):
    explanation: str | None = None


class Delta(Struct, frozen=True):
    """What is new in a block or, with `stop_reason`, in the message."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_details: StopDetails | None = None


class Message(Struct, frozen=True):
    """The head of a streamed answer, a whole one, or an error in its place."""

    type: str = ""
    model: str | None = None
    content: list[Block] | None = None
    stop_reason: str | None = None
    stop_details: StopDetails | None = None
    usage: UsageReport | None = None
    error: ErrorObject | str | None = None


class Event(Struct, frozen=True):
    """One event of a stream."""

    type: str = ""
    message: Message | None = None
    index: int | None = 0
    content_block: Block | None = None
    delta: Delta | None = None
    usage: UsageReport | None = None
    error: ErrorObject | str | None = None


class Support(Struct, frozen=True):
    supported: bool = False


class EffortSupport(Struct, frozen=True):
    supported: bool = False
    low: Support | None = None
    medium: Support | None = None
    high: Support | None = None
    xhigh: Support | None = None
    max: Support | None = None


class ThinkingTypes(Struct, frozen=True):
    adaptive: Support | None = None
    enabled: Support | None = None


class ThinkingSupport(Struct, frozen=True):
    supported: bool = False
    types: ThinkingTypes | None = None


class Capabilities(Struct, frozen=True):
    effort: EffortSupport | None = None
    image_input: Support | None = None
    thinking: ThinkingSupport | None = None


class ListedModel(Struct, frozen=True):
    """One model of `GET /v1/models`."""

    id: str
    lifecycle: str | None = None
    max_input_tokens: int | None = None
    max_tokens: int | None = None
    capabilities: Capabilities | None = None


class ModelPage(Struct, frozen=True):
    data: list[ListedModel]
    has_more: bool | None = None
    last_id: str | None = None


_PIECES: Final = frozenset({"text", "thinking", "partial_json"})
_decode_event: Final = msgspec.json.Decoder(Event).decode
decode_message: Final = msgspec.json.Decoder(Message).decode
decode_models: Final = msgspec.json.Decoder(ModelPage).decode


def decode_event(data: bytes) -> Event:
    """The event in `data`. Its text may hold half of a surrogate pair, where a server has cut between the halves.

    Raises: msgspec.DecodeError.
    """
    try:
        return _decode_event(data)
    except msgspec.DecodeError:
        if b"\\u" not in data:
            raise
        try:
            loaded = json.loads(data)  # takes a half for what it is
        except ValueError:
            loaded = None
        if loaded is None:
            raise
    return msgspec.convert(_mended(loaded), Event)


def _mended(value: Any) -> Any:
    """`value` without halves, except where the other half may still come."""
    if isinstance(value, dict):
        return {name: one if name in _PIECES and isinstance(one, str) else _mended(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_mended(one) for one in value]
    if isinstance(value, str):
        mender = Mender()
        return mender(value) + mender.rest()
    return value


class Mender:
    """Puts text together whose pieces were cut inside surrogate pairs. A half without its other half becomes U+FFFD."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def __call__(self, piece: str) -> str:
        """What can be said of the text up to here; the first half of a pair is kept back for the next piece."""
        if not self._held and piece.isascii():
            return piece
        text, self._held = self._held + piece, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def rest(self) -> str:
        """At the end: a half that nothing followed."""
        held, self._held = self._held, ""
        return "\N{REPLACEMENT CHARACTER}" if held else ""
