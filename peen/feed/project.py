"""A stored row as the frame that clients get: the same function live and on replay, so the bytes are the same."""

from __future__ import annotations

from uuid import UUID

from msgspec import Raw

from peen.ids import derived_id
from peen.store.feed import FeedRow
from peen.wire.feed import frame_bytes


def render(row: FeedRow, *, session: bytes, session_id: str) -> bytes:
    """JSON bytes of one sequenced frame. `session` is the session's UUID as bytes, `session_id` as text."""
    return frame_bytes(
        derived_id("feed", session, row.sequence),
        row.type,
        Raw(row.data),
        row.created_at_ms,
        session_id,
        None if row.request_id is None else str(UUID(bytes=row.request_id)),
        row.sequence,
    )
