"""A client of a simulated controller: what it heard, what it sent, and what it was told about that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import trio

from peen.wire.client import MessageSend
from peen.wire.websocket import payload_of

ACKNOWLEDGED: Final = frozenset({"message.completed", "message.failed"})


@dataclass(slots=True)
class Sent:
    """A message and its answer; `tries` counts how often it went out."""

    message: MessageSend
    answer: dict[str, Any] | None = None
    tries: int = 1

    @property
    def is_refused(self) -> bool:
        """Whether the answer says that nothing was stored."""
        return self.answer is not None and "requestId" not in (self.answer.get("metadata") or {})


@dataclass(eq=False)
class Client:
    """One user. `connections` holds the raw frames of each connection; a connection ends with its controller."""

    session_filter: str | None = None
    connections: list[list[bytes]] = field(default_factory=list)
    heard: list[dict[str, Any]] = field(default_factory=list)
    sent: dict[str, Sent] = field(default_factory=dict)
    is_connected: bool = False
    _news: trio.Event = field(default_factory=trio.Event)

    def connected(self) -> None:
        self.connections.append([])
        self.is_connected = True

    def offer(self, ready: Sequence[bytes]) -> None:
        if self.is_connected:
            self.connections[-1] += ready
            for frame in ready:
                self._take(frame)

    def reply(self, frame: bytes) -> None:
        if self.is_connected:
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        content = msgspec.json.decode(payload_of(frame))
        self.heard.append(content)
        if content["type"] in ACKNOWLEDGED:
            sent = self.sent.get(content.get("triggeredBy") or "")
            if sent is not None:
                sent.answer = content
        self.poke()

    def poke(self) -> None:
        """Have whoever waits look again."""
        self._news.set()
        self._news = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that comes with a frame. The caller sets the deadline."""
        while not condition():
            await self._news.wait()

    def unanswered(self) -> list[Sent]:
        return [sent for sent in self.sent.values() if sent.answer is None]
