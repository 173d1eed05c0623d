"""The only clock and the only source of chance. Everything else is given an `Entropy`."""

from __future__ import annotations

import os
import random
import time
from typing import ClassVar, Protocol
from uuid import UUID


class Entropy(Protocol):
    """Time, identity and chance, so that a test can own all three."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the Unix epoch."""

    def monotonic_s(self) -> float:
        """A clock that never goes back, in seconds; only differences mean anything."""

    def uuid4(self) -> UUID:
        """A random version 4 UUID."""

    def token(self, size: int) -> bytes:
        """`size` bytes that nobody can guess."""

    def chance(self) -> float:
        """A number in [0, 1)."""


def monotonic_ms(entropy: Entropy) -> int:
    """Its clock that never goes back, in whole milliseconds."""
    return int(entropy.monotonic_s() * 1000)


class AwakeClock:
    """A clock that never goes back and leaves out the time in which this process stood still.

    A process that was stopped for an hour, or a machine that slept, has heard nobody meanwhile, so that hour says
    nothing about others. The clock must be looked at every `BEAT_S` at least; a longer gap counts as one beat.
    """

    BEAT_S: ClassVar[float] = 5.0

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._seen_s = entropy.monotonic_s()
        self._now_s = 0.0

    def now_ms(self) -> int:
        """Milliseconds since this clock was made."""
        seen_s = self._entropy.monotonic_s()
        gap_s = seen_s - self._seen_s
        self._seen_s = seen_s
        self._now_s += gap_s if gap_s <= 2 * self.BEAT_S else self.BEAT_S
        return int(self._now_s * 1000)


class SystemEntropy:
    """The operating system's clock and randomness."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def uuid4(self) -> UUID:
        return UUID(bytes=os.urandom(16), version=4)

    def token(self, size: int) -> bytes:
        return os.urandom(size)

    def chance(self) -> float:
        return random.random()


class SeededEntropy:
    """A repeatable world: one seed gives one run. Time stands still unless `advance` moves it."""

    def __init__(self, seed: int, *, start_ms: int = 1_700_000_000_000) -> None:
        self._random = random.Random(seed)
        self._now_ms = start_ms

    def advance(self, by_ms: int) -> None:
        """Move both clocks forward by `by_ms` >= 0 milliseconds."""
        self._now_ms += by_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._now_ms / 1000

    def uuid4(self) -> UUID:
        return UUID(bytes=self._random.randbytes(16), version=4)

    def token(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def chance(self) -> float:
        return self._random.random()
