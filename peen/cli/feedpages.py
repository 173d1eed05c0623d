"""The feed of a session, page by page: what a lost connection missed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from peen.cli.client import Client
from peen.wire.rest import FeedPage

FEED_LIMIT: Final = 1000


def feed_after(client: Client, session_id: str, cursor: int) -> Iterator[list[bytes]]:
    """All stored frames behind `cursor`, oldest first, a page at a time. Raises: CallRefused, ConnectionLost."""
    more = True
    while more:
        query = {"cursor": cursor, "limit": FEED_LIMIT}
        answer = client.get("/api/v1/session/feed", session_id=session_id, query=query)
        page = msgspec.json.decode(answer, type=FeedPage)
        yield [bytes(item) for item in page.items]
        cursor, more = page.next_cursor, page.has_more
