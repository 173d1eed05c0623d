"""One frame, many sockets: who hears which session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Subscriber(Protocol):
    """A socket, as the feed sees it."""

    @property
    def session_filter(self) -> str | None:
        """The only session this subscriber wants, or None for all. It never changes."""

    def offer(self, frames: Sequence[bytes]) -> None:
        """Take ready frames, in order. Never blocks and never raises: who cannot keep up drops itself."""


class Fanout:
    """Hands the same bytes to every subscriber of a session, in the order of `publish`."""

    def __init__(self) -> None:
        self._everything: dict[Subscriber, None] = {}
        self._by_session: dict[str, dict[Subscriber, None]] = {}

    def add(self, subscriber: Subscriber) -> None:
        """From the next `publish` on, `subscriber` hears its session, or all of them."""
        self._group(subscriber.session_filter)[subscriber] = None

    def remove(self, subscriber: Subscriber) -> None:
        """Forget `subscriber`. Doing it twice is no error, since a dropped socket removes itself and then ends."""
        session_id = subscriber.session_filter
        group = self._group(session_id)
        group.pop(subscriber, None)
        if session_id is not None and not group:
            del self._by_session[session_id]

    def has_listeners(self, session_id: str) -> bool:
        """Whether `publish` for this session would reach anyone: if not, nothing needs to be encoded."""
        return bool(self._everything) or session_id in self._by_session

    def publish(self, session_id: str, frames: Sequence[bytes]) -> None:
        """Offer complete WebSocket frames, encoded once by the caller, to all who listen to `session_id`."""
        # Copies, since a subscriber that cannot keep up removes itself while it is being offered.
        for subscriber in (*self._everything, *self._by_session.get(session_id, ())):
            subscriber.offer(frames)

    def _group(self, session_id: str | None) -> dict[Subscriber, None]:
        return self._everything if session_id is None else self._by_session.setdefault(session_id, {})
