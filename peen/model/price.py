"""What an answer costs. Pure and exact: decimal numbers, and never a price that nobody has told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal, localcontext
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from peen.wire.launch import UpstreamConfig
from peen.wire.price import Price, PriceRow, Rates
from peen.wire.records import Usage

_OWN_HOSTS: Final = {"anthropic": "api.anthropic.com", "openai": "api.openai.com"}
_DATED: Final = re.compile(r"-(\d{8}|\d{4}-\d\d-\d\d)$")
_PER_TOKENS: Final = -6  # a power of ten: prices are for a million
_DIGITS: Final = 60  # more than any product of a count and a price has, so that nothing is rounded
_PICOS: Final = 12  # a power of ten: the parts of a dollar that are counted
_decode_rows: Final = msgspec.json.Decoder(list[PriceRow]).decode


@cache
def known_rows() -> tuple[PriceRow, ...]:
    """The prices that are part of this release."""
    return tuple(_decode_rows(Path(__file__).with_name("prices.json").read_bytes()))


class Prices:
    """Prices by upstream and model.

    What the entry of an upstream says counts first. The list of this release is for the providers' own addresses: what
    somebody else takes for the same model is not known.
    """

    def __init__(self, upstreams: Iterable[UpstreamConfig] = ()) -> None:
        self._upstreams: Mapping[str, UpstreamConfig] = {upstream.name: upstream for upstream in upstreams}
        self._found: dict[str, Price | None] = {}  # every commit of an answer asks

    def of(self, reference: str) -> Price | None:
        """The price of `<upstream>/<model id>`, None if it is not known."""
        if reference not in self._found:
            self._found[reference] = self._find(reference)
        return self._found[reference]

    def _find(self, reference: str) -> Price | None:
        name, _, model_id = reference.partition("/")
        upstream = self._upstreams.get(name)
        if upstream is None:
            return None
        for pattern, price in upstream.prices.items():
            if _matches(pattern, model_id):
                return price
        host = _OWN_HOSTS.get(upstream.type)
        if host is None or (upstream.base_url is not None and urlsplit(upstream.base_url).hostname != host):
            return None
        rows = (row for row in known_rows() if row.provider == upstream.type)
        return next((row for row in rows if any(_matches(model, model_id) for model in row.models)), None)


def cost(usage: Usage, price: Price, *, long_ttl: int = 0) -> Decimal | None:
    """Dollars, exactly; None if prompt or completion are not known.

    Cached tokens are part of the prompt and are not paid twice. Counts of the cache that the provider does not report
    are taken for zero, so that the amount is rather too high. `long_ttl` is how many of the tokens written to the cache
    stay there for the longer time; the adapters ask for none.
    """
    if usage.prompt is None or usage.completion is None:
        return None
    rates: Rates = price
    if price.long_context is not None and usage.prompt > price.long_context.above_tokens:
        rates = price.long_context
    read, stored = usage.cache_read or 0, usage.cache_write or 0
    fresh = max(0, usage.prompt - read - stored)
    short = max(0, stored - long_ttl)
    with localcontext(prec=_DIGITS):
        total = (
            fresh * Decimal(rates.input)
            + read * Decimal(rates.cache_read or rates.input)
            + short * Decimal(rates.cache_write or rates.input)
            + (stored - short) * Decimal(rates.cache_write_long_ttl or rates.cache_write or rates.input)
            + usage.completion * Decimal(rates.output)
        )
        return total.scaleb(_PER_TOKENS)


def picos(amount: Decimal) -> int:
    """Trillionths of a dollar, rounded up: exact for prices with up to six decimals."""
    with localcontext(prec=_DIGITS):
        return int(amount.scaleb(_PICOS).to_integral_value(ROUND_CEILING))


def dollars(count: int) -> str:
    """So many trillionths of a dollar as they go over the wire: digits and a point."""
    return written(Decimal(count).scaleb(-_PICOS))


def total(amounts: Iterable[Decimal]) -> Decimal:
    """The sum, exactly."""
    with localcontext(prec=_DIGITS):
        return sum(amounts, Decimal(0))


def written(amount: Decimal) -> str:
    """The amount as it goes over the wire: digits and a point, without zeros that say nothing."""
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _matches(pattern: str, model_id: str) -> bool:
    """Whether a name, or a pattern with `*`, is for this model; the date at its end does not count."""
    return fnmatchcase(model_id, pattern) or fnmatchcase(_DATED.sub("", model_id), pattern)
