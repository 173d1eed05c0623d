"""Tokens and failed attempts, summed up over calls of a model. Unknown stays unknown: it is not zero."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from peen.model.price import dollars
from peen.store.audit import CallRow
from peen.store.spending import Spent
from peen.wire.audit import FailedAttempt, TokenUsage
from peen.wire.rest import UsedSoFar, rfc3339


def token_usage(attempts: Sequence[CallRow], counted: Sequence[CallRow]) -> TokenUsage:
    """The tokens of `counted`, beside what is told of all `attempts`: their number, and which of them failed."""
    prompt = _sum(attempt.usage.prompt for attempt in counted)
    completion = _sum(attempt.usage.completion for attempt in counted)
    return TokenUsage(
        prompt=prompt,
        completion=completion,
        total=None if prompt is None or completion is None else prompt + completion,
        reasoning=_sum(attempt.usage.reasoning for attempt in counted),
        cache_read=_sum(attempt.usage.cache_read for attempt in counted),
        cache_write=_sum(attempt.usage.cache_write for attempt in counted),
        total_attempts=len(attempts),
        failed_attempts=failed_attempts(attempts),
    )


def used_so_far(spent: Spent) -> UsedSoFar:
    """Sums that were kept with the calls."""
    prompt, completion = spent.prompt, spent.completion
    return UsedSoFar(
        prompt=prompt,
        completion=completion,
        total=None if prompt is None or completion is None else prompt + completion,
        reasoning=spent.reasoning,
        cache_read=spent.cache_read,
        cache_write=spent.cache_write,
        billed_cost_amount=dollars(spent.cost),
        cost_known=spent.unpriced == 0,
    )


def failed_attempts(attempts: Sequence[CallRow], *, then: CallRow | None = None) -> list[FailedAttempt]:
    """Those of `attempts` that failed. `then` came after the last of them."""
    following = [*attempts, *([then] if then is not None else [])]
    next_of = {id(one): other for one, other in pairwise(following) if one.round == other.round}
    return [_failed(attempt, next_of.get(id(attempt))) for attempt in attempts if attempt.state != "completed"]


def _failed(attempt: CallRow, following: CallRow | None) -> FailedAttempt:
    return FailedAttempt(
        attempt=attempt.attempt + 1,
        reason=attempt.failure_kind or "",
        error=attempt.failure_detail or "",
        delay_ms=None if following is None else max(0, following.started_at_ms - attempt.completed_at_ms),
        started_at=rfc3339(attempt.started_at_ms),
        completed_at=rfc3339(attempt.completed_at_ms),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
