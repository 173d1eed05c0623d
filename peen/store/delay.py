"""Terminal requests that wait for space on a full disk."""

from __future__ import annotations

import heapq
from typing import Final

from peen.store.batch import Request

FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 30.0


class Delayed:
    """Requests to be run again after 1 s, 2 s, 4 s ... 30 s. Times are of any clock that never goes back."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._count = 0

    def add(self, request: Request, now_s: float) -> None:
        """Put `request` off, longer each time."""
        wait_s = min(FIRST_RETRY_S * 2 ** min(request.attempts, 5), LONGEST_RETRY_S)
        request.attempts += 1
        self._count += 1
        heapq.heappush(self._heap, (now_s + wait_s, self._count, request))

    def next_at_s(self) -> float | None:
        """When the first one is due; None if none waits."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_s: float) -> list[Request]:
        """Those whose time has come, the longest waiting first."""
        due = []
        while self._heap and self._heap[0][0] <= now_s:
            due.append(heapq.heappop(self._heap)[2])
        return due

    def take_all(self) -> list[Request]:
        """All of them, due or not."""
        return self.take_due(float("inf"))
