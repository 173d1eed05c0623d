"""Reasoning that goes back to the provider it came from, byte for byte, and to nobody else. Pure."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from peen.wire.worker import NOTHING, MessageRecord


class _Kept(Struct, frozen=True):
    upstream: str
    model: str
    items: Raw


_encode: Final = msgspec.json.encode
_decode: Final = msgspec.json.Decoder(_Kept).decode


def kept_reasoning(items: Raw, *, upstream: str, model: str) -> Raw:
    """`items` with the place they belong to, as a message keeps them; NOTHING where there are none."""
    return items if items == NOTHING else Raw(_encode(_Kept(upstream, model, items)))


def items_for(message: MessageRecord, *, upstream: str, model: str) -> Raw | None:
    """What `message` keeps for this upstream and model, exactly as it came; None if that is nothing."""
    if message.provider_reasoning == NOTHING:
        return None
    try:
        kept = _decode(message.provider_reasoning)
    except msgspec.DecodeError:  # of a release that keeps it in another form
        return None
    return kept.items if (kept.upstream, kept.model) == (upstream, model) else None
