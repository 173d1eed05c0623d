"""Prices of models: dollars per million tokens, as decimal numbers in text so that nothing is rounded."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Amount = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{1,9}(\.[0-9]{1,12})?$",
        description='dollars a million tokens as decimal text, at most 9 digits and 12 behind the point ("2.50")',
    ),
]


class Rates(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """What a million tokens cost. A cache price that is missing is the price of input."""

    input: Amount
    output: Amount
    cache_read: Amount | None = None
    cache_write: Amount | None = None
    cache_write_long_ttl: Amount | None = None


class LongContext(Rates, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Rates of the whole request where its prompt, cached or not, has more than `above_tokens`."""

    above_tokens: Annotated[int, Meta(gt=0)]


class Price(Rates, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Rates of a model."""

    long_context: LongContext | None = None


class PriceRow(Price, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """One row of the list that is part of a release: which models of which provider, read when and where."""

    provider: str
    models: list[str]
    date: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$", description='a date such as "2026-11-30"')]
    source: str
