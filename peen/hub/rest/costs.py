"""What calls of a model cost: the answers, and the attempts that led to none."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from peen.model.price import dollars
from peen.store.audit import CallRow


class Costs(Struct, frozen=True):
    """Amounts in dollars as text. Without `known` they are what is known of them: it may be more."""

    response: str
    retry: str
    billed: str
    known: bool


def costs_of(attempts: Sequence[CallRow]) -> Costs:
    """Of these attempts, as it was counted when they were stored: so it is what session and turn have counted."""
    response = sum(attempt.cost for attempt in attempts if attempt.state == "completed")
    retry = sum(attempt.cost for attempt in attempts if attempt.state != "completed")
    known = not any(attempt.is_unpriced for attempt in attempts)
    return Costs(dollars(response), dollars(retry), dollars(response + retry), known)
