"""What calls of a model used: tokens as far as they were reported, and money in trillionths of a dollar."""

from __future__ import annotations

from typing import Final, NamedTuple

from peen.wire.records import ModelCallRecord, Usage

MOST: Final = 1 << 62
"""Counters stay here instead of growing past what the database can hold, whatever a provider reports."""


class Spent(NamedTuple):
    """Tokens are None where no provider has reported any, and then they count as none.

    `unpriced` is the number of attempts that may have cost more than their part of `cost`; see `is_cost_known`.
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
_ERRORS: Final = 400
"""The first HTTP status of an error."""


def is_cost_known(call: ModelCallRecord, *, cost: int | None) -> bool:
    """Whether an attempt costs what its tokens cost, which is `cost`; None if their price or number is not known.

    This is the one place that decides it. What a provider bills for an answer that it did not end, nobody but the
    provider knows. It bills nothing for a request that it refused with an error status before any of an answer, or that
    never reached it.
    """
    if call.state == "completed" or call.ended:
        return cost is not None
    is_refused = call.unsent or (call.status is not None and call.status >= _ERRORS)
    return is_refused and not call.streamed and not _is_reported(call.usage)


def spent(call: ModelCallRecord, *, cost: int | None) -> Spent:
    """Of one attempt, whose reported tokens cost `cost`; None if that is not known."""
    usage = call.usage
    return Spent(
        prompt=_held(usage.prompt),
        completion=_held(usage.completion),
        reasoning=_held(usage.reasoning),
        cache_read=_held(usage.cache_read),
        cache_write=_held(usage.cache_write),
        cost=min(cost or 0, MOST),
        unpriced=int(not is_cost_known(call, cost=cost)),
    )


def _is_reported(usage: Usage) -> bool:
    return usage.prompt is not None or usage.completion is not None


def _held(count: int | None) -> int | None:
    return None if count is None else min(max(count, 0), MOST)


def _sum(one: int | None, other: int | None) -> int | None:
    return min((one or 0) + (other or 0), MOST) if one is not None or other is not None else None
