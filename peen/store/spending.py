"""What calls of a model used: tokens as far as they were reported, and money in trillionths of a dollar."""

from __future__ import annotations

from typing import Final, NamedTuple

from peen.wire.worker import Usage

MOST: Final = 1 << 62
"""Counters stay here instead of growing past what the database can hold, whatever a provider reports."""


class Spent(NamedTuple):
    """Tokens are None where no provider has reported any, and then they count as none.

    `unpriced` is the number of calls whose cost is not part of `cost`, since the price or the tokens are not known.
    """

    prompt: int | None = None
    completion: int | None = None
    reasoning: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    cost: int = 0
    unpriced: int = 0

    @property
    def tokens(self) -> int:
        """Read and written, as far as is known."""
        return (self.prompt or 0) + (self.completion or 0)

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(
            _sum(self.prompt, other.prompt),
            _sum(self.completion, other.completion),
            _sum(self.reasoning, other.reasoning),
            _sum(self.cache_read, other.cache_read),
            _sum(self.cache_write, other.cache_write),
            min(self.cost + other.cost, MOST),
            self.unpriced + other.unpriced,
        )


NOTHING_SPENT: Final = Spent()


def spent(usage: Usage, *, cost: int | None, is_answer: bool) -> Spent:
    """Of one attempt, which costs `cost`, None if that is not known.

    An attempt without an answer, of which nothing was reported, cost nothing as far as anybody can tell.
    """
    is_billed = is_answer or usage.prompt is not None or usage.completion is not None
    return Spent(
        prompt=_held(usage.prompt),
        completion=_held(usage.completion),
        reasoning=_held(usage.reasoning),
        cache_read=_held(usage.cache_read),
        cache_write=_held(usage.cache_write),
        cost=min(cost or 0, MOST),
        unpriced=int(cost is None and is_billed),
    )


def _held(count: int | None) -> int | None:
    return None if count is None else min(max(count, 0), MOST)


def _sum(one: int | None, other: int | None) -> int | None:
    return min((one or 0) + (other or 0), MOST) if one is not None or other is not None else None
