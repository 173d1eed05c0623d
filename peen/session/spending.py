"""What the calls of a session cost, and how much of that the session may use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from peen.model.price import Prices, cost, picos
from peen.store.sessions import SessionRow, Taken
from peen.store.spending import MOST, Spent, spent
from peen.wire.records import Budget, KeptProgress, ModelCallRecord, ModelProgress, PricedCall


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every session of a deployment. `max_cost` is trillionths of a dollar; 0 is no limit."""

    prices: Prices = field(default_factory=Prices)
    max_tokens: int = 0
    max_cost: int = 0

    def spent(self, model: str, calls: Sequence[ModelCallRecord]) -> list[Spent]:
        """What each of these attempts used, at the prices of now."""
        return [spent(priced.call, cost=priced.cost) for priced in self._priced(model, calls)]

    def kept(self, model: str, progress: ModelProgress) -> KeptProgress:
        """How far a step has come, at the prices of now."""
        under_way = [] if progress.under_way is None else [progress.under_way]
        return KeptProgress(
            failed=self._priced(model, progress.failed), under_way=next(iter(self._priced(model, under_way)), None)
        )

    def _priced(self, model: str, calls: Sequence[ModelCallRecord]) -> list[PricedCall]:
        if not calls:
            return []
        price = self.prices.of(model)
        amounts = (None if price is None else cost(call.usage, price) for call in calls)
        return [
            PricedCall(call=call, cost=None if amount is None else picos(amount))
            for call, amount in zip(calls, amounts, strict=True)
        ]

    def uncounted(self, model: str) -> str | None:
        """What it means for a limit of dollars that this model has no price, and what to do; None if it has one.

        Nothing is said of no model, "".
        """
        if not model or self.prices.of(model) is not None:
            return None
        return (
            f"the price of {model} is not known: its calls count as nothing against a limit in US dollars, so it never "
            f"stops them; give the upstream {model.partition('/')[0]} prices for it in PEEN_UPSTREAMS (docs/models.md, "
            "Cost), or limit tokens (PEEN_MAX_SESSION_TOKENS, budget.tokens)"
        )

    def budget(self, session: Taken | SessionRow) -> Budget | None:
        """What a session may use, and has; of its own limit and that of the deployment the lower one counts."""
        max_tokens, is_own_tokens = _lower(session.budget_tokens, self.max_tokens)
        max_cost, is_own_cost = _lower(session.budget_cost, self.max_cost)
        if not max_tokens and not max_cost:
            return None
        return Budget(
            tokens=min(session.spent.tokens, MOST),
            cost=session.spent.cost,
            max_tokens=max_tokens,
            max_cost=max_cost,
            is_own_tokens=is_own_tokens,
            is_own_cost=is_own_cost,
        )


def _lower(own: int, common: int) -> tuple[int, bool]:
    """Of two limits, where 0 is none, the one that counts, and whether it is the session's own."""
    is_own = own > 0 and (common == 0 or own < common)
    return min(own if is_own else common, MOST), is_own
