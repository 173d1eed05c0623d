"""How much a session may use of its models. Pure: worker and controller ask the same question and get one answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from peen.model.price import Prices, cost, dollars, picos
from peen.wire.launch import UpstreamConfig
from peen.wire.price import Price
from peen.wire.records import Budget, ModelCallRecord, Usage

REASON: Final = "budgetReached"
"""Of `turn.failed`, and of a model step or a summary that was given up before another attempt."""


def reached(budget: Budget | None) -> str | None:
    """Why no model is asked any more, for people: the limit, what was used, and what to do. None if one may be."""
    if budget is None:
        return None
    if 0 < budget.max_tokens <= budget.tokens:
        used, limit = f"{budget.tokens:,} tokens", f"{budget.max_tokens:,} tokens"
        name, member, is_own = "PEEN_MAX_SESSION_TOKENS", "tokens", budget.is_own_tokens
    elif 0 < budget.max_cost <= budget.cost:
        used, limit = f"{dollars(budget.cost)} US dollars", f"{dollars(budget.max_cost)} US dollars"
        name, member, is_own = "PEEN_MAX_SESSION_COST_USD", "costUsd", budget.is_own_cost
    else:
        return None
    if is_own:
        remedy = f"open the session with a higher budget.{member} (POST /api/v1/sessions/open) and send a message"
        name = f"its budget.{member}"
    else:
        remedy = f"raise {name} (0 is no limit), start the controller again and send a message"
    return f"this session has used {used}, and its limit is {limit} ({name}); to go on, {remedy}"


def after(budget: Budget, usage: Usage, price: Price | None) -> Budget:
    """With an attempt whose record is not stored yet. What is not known counts as none."""
    amount = None if price is None else cost(usage, price)
    return replace(
        budget,
        tokens=budget.tokens + (usage.prompt or 0) + (usage.completion or 0),
        cost=budget.cost + (0 if amount is None else picos(amount)),
    )


def refusal(
    budget: Budget | None, attempts: Sequence[ModelCallRecord], *, model: str, upstreams: Iterable[UpstreamConfig]
) -> str | None:
    """Why no request to `model` follows these attempts of one step, whose records are not stored yet; None if one may.

    Asked before every request that follows another one, be it the same again or a smaller one in its place, and before
    the first one of a summary. A model step that may not send its first one does not even begin.
    """
    if budget is None:
        return None
    # The list of prices is read only where a limit asks for it.
    price = Prices(upstreams).of(model) if budget.max_cost and attempts else None
    for call in attempts:
        budget = after(budget, call.usage, price)
    return reached(budget)
