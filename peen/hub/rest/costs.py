"""What calls of a model cost: the answers, and the attempts that led to none."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from peen.model.price import cost, total, written
from peen.store.audit import CallRow
from peen.wire.price import Price


class Costs(Struct, frozen=True):
    """Amounts in dollars as text. Zero, and not `known`, where the price or the tokens of an answer are not known."""

    response: str
    retry: str
    billed: str
    known: bool


def costs_of(price: Price | None, attempts: Sequence[CallRow]) -> Costs:
    """Of these attempts. A failed one costs what its provider had reported when it failed, most often nothing."""
    answers = [attempt.usage for attempt in attempts if attempt.state == "completed"]
    if price is None or any(usage.prompt is None or usage.completion is None for usage in answers):
        return Costs("0", "0", "0", False)
    response = total(amount for usage in answers if (amount := cost(usage, price)) is not None)
    failed = [attempt.usage for attempt in attempts if attempt.state != "completed"]
    retry = total(amount for usage in failed if (amount := cost(usage, price)) is not None)
    return Costs(written(response), written(retry), written(total((response, retry))), True)
