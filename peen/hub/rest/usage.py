"""Tokens and failed attempts, summed up over calls of a model. Unknown stays unknown: it is not zero."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from peen.model.price import dollars
from peen.store.audit import CallRow
from peen.store.spending import Spent
from peen.wire.audit import FailedAttempt, Tokens, TokenUsage
from peen.wire.rest import UsedSoFar, rfc3339


def token_usage(attempts: Sequence[CallRow]) -> TokenUsage:
    """The tokens of those of `attempts` that brought an answer, beside what was wasted on the others."""
    answers = _tokens(attempt for attempt in attempts if attempt.state == "completed")
    wasted = _wasted(attempt for attempt in attempts if attempt.state != "completed")
    return TokenUsage(
        prompt=answers.prompt,
        completion=answers.completion,
        total=answers.total,
        reasoning=answers.reasoning,
        cache_read=answers.cache_read,
        cache_write=answers.cache_write,
        total_attempts=len(attempts),
        failed_attempts=failed_attempts(attempts),
        wasted_prompt=wasted.prompt,
        wasted_completion=wasted.completion,
        wasted_total=wasted.total,
    )


def used_so_far(spent: Spent) -> UsedSoFar:
    """Sums that were kept with the calls."""
    return UsedSoFar(
        prompt=spent.prompt,
        completion=spent.completion,
        total=_total(spent.prompt, spent.completion),
        reasoning=spent.reasoning,
        cache_read=spent.cache_read,
        cache_write=spent.cache_write,
        billed_cost_amount=dollars(spent.cost),
        cost_known=spent.unpriced == 0,
    )


def failed_attempts(attempts: Iterable[CallRow]) -> list[FailedAttempt]:
    """Those of `attempts` that brought no answer."""
    return [_failed(attempt) for attempt in attempts if attempt.state != "completed"]


def _wasted(attempts: Iterable[CallRow]) -> Tokens:
    """What was reported of attempts without an answer. Their providers may have had no time to report all of it."""
    tokens = _tokens(attempts)
    total = _sum((tokens.prompt, tokens.completion))
    return msgspec.structs.replace(tokens, total=total)


def _tokens(attempts: Iterable[CallRow]) -> Tokens:
    usages = [attempt.usage for attempt in attempts]
    prompt, completion = _sum(used.prompt for used in usages), _sum(used.completion for used in usages)
    return Tokens(
        prompt=prompt,
        completion=completion,
        total=_total(prompt, completion),
        reasoning=_sum(used.reasoning for used in usages),
        cache_read=_sum(used.cache_read for used in usages),
        cache_write=_sum(used.cache_write for used in usages),
    )


def _failed(attempt: CallRow) -> FailedAttempt:
    return FailedAttempt(
        attempt=attempt.attempt + 1,
        reason=attempt.failure_kind or "",
        error=attempt.failure_detail or "",
        status=attempt.status,
        streamed=attempt.streamed,
        tokens=_wasted([attempt]),
        delay_ms=attempt.delay_ms,
        started_at=rfc3339(attempt.started_at_ms),
        completed_at=rfc3339(attempt.completed_at_ms),
    )


def _total(prompt: int | None, completion: int | None) -> int | None:
    return None if prompt is None or completion is None else prompt + completion


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
