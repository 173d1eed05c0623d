"""What the server sends over `/ws/v1`: frames of the feed, and acknowledgements, as JSON bytes.

A feed frame is rendered from a stored row, so that the live and the replayed one are the same bytes.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct


class _FeedMetadata(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    session_id: str
    request_id: str | None = None
    sequence: int


class _FeedFrame(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    type: str
    data: Raw
    timestamp: int
    metadata: _FeedMetadata
    triggered_by: None = None


class _AckMetadata(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    session_id: str | None = None
    request_id: str | None = None


class Completed(Struct, frozen=True, kw_only=True):
    """`queued` True: the message joined a queue; False: its turn has finished."""

    queued: bool


class Failed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a message was refused or its turn failed. `reason` only for categories that are safe to show."""

    code: str
    message: str
    reason: str | None = None


class _AckFrame(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    type: Literal["message.completed", "message.failed"]
    data: Completed | Failed
    timestamp: int
    metadata: _AckMetadata
    triggered_by: str | None


_encode: Final = msgspec.json.Encoder().encode


def frame_bytes(
    id: str, type: str, data: Raw, timestamp: int, session_id: str, request_id: str | None, sequence: int
) -> bytes:
    """One sequenced frame.

    `data` is the stored JSON object as it is, `timestamp` the row's creation time in milliseconds since the epoch.
    `request_id` is None on `agent.run.*` and `notice.created`, which carry none.
    """
    metadata = _FeedMetadata(session_id=session_id, request_id=request_id, sequence=sequence)
    return _encode(_FeedFrame(id=id, type=type, data=data, timestamp=timestamp, metadata=metadata))


def ack_frame(
    id: str,
    data: Completed | Failed,
    timestamp: int,
    *,
    session_id: str | None = None,
    request_id: str | None = None,
    triggered_by: str | None = None,
) -> bytes:
    """`message.completed` or `message.failed`, by the kind of `data`. It is not stored and never replayed.

    `id` is random, `timestamp` the present in milliseconds, `triggered_by` the id of the client frame if it had one.
    """
    frame = _AckFrame(
        id=id,
        type="message.completed" if isinstance(data, Completed) else "message.failed",
        data=data,
        timestamp=timestamp,
        metadata=_AckMetadata(session_id=session_id, request_id=request_id),
        triggered_by=triggered_by,
    )
    return _encode(frame)
