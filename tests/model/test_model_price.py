"""Prices and costs: exact, dated, and unknown where nobody has told."""

from __future__ import annotations

import datetime
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.model.price import Prices, cost, known_rows, total, written
from peen.wire.launch import UpstreamConfig
from peen.wire.price import LongContext, Price
from peen.wire.records import Usage

PRICE = Price(input="3", output="15", cache_read="0.3", cache_write="3.75")
LONG = LongContext(above_tokens=200_000, input="6", output="22.5", cache_read="0.6")
AMOUNTS = st.decimals(0, 1000, places=6).map(str)
COUNTS = st.integers(0, 10**9)


def upstream(kind: str = "anthropic", base_url: str | None = None, **fields: object) -> UpstreamConfig:
    return msgspec.convert(
        {"name": "up", "type": kind, "baseUrl": base_url, "apiKeyEnv": "K", **fields}, UpstreamConfig
    )


def gateway(pattern: str) -> UpstreamConfig:
    """One that serves models of several providers, with a price for this pattern."""
    return upstream("openai", "https://router.example/v1", prices={pattern: {"input": "1", "output": "2"}})


@pytest.mark.parametrize(
    ("usage", "price", "expected"),
    [
        (Usage(prompt=1_000_000, completion=1_000_000), PRICE, "18"),
        (Usage(prompt=1, completion=0), PRICE, "0.000003"),
        (Usage(prompt=0, completion=0), PRICE, "0"),
        # 100 uncached, 600 read, 300 written
        (Usage(prompt=1000, completion=100, cache_read=600, cache_write=300), PRICE, "0.003105"),
        (Usage(prompt=1000, completion=0, cache_read=600, cache_write=300), Price(input="3", output="15"), "0.003"),
        # A provider that counts its cache beside the prompt does not make input negative.
        (Usage(prompt=10, completion=0, cache_read=100), PRICE, "0.00003"),
        (Usage(prompt=200_000, completion=1000), msgspec.structs.replace(PRICE, long_context=LONG), "0.615"),
        (Usage(prompt=200_001, completion=1000), msgspec.structs.replace(PRICE, long_context=LONG), "1.222506"),
        (
            Usage(prompt=300_000, completion=0, cache_read=100_000, cache_write=100_000),
            msgspec.structs.replace(PRICE, long_context=LONG),
            "1.26",
        ),
    ],
)
def test_a_cost_is_what_each_kind_of_token_costs(usage: Usage, price: Price, expected: str) -> None:
    found = cost(usage, price)

    assert found is not None
    assert written(found) == expected


@pytest.mark.parametrize(
    ("long_ttl", "rate", "expected"),
    [(0, "6", "0.00375"), (400, "6", "0.00465"), (400, None, "0.00375"), (9999, "6", "0.006")],
)
def test_what_is_cached_for_long_has_a_price_of_its_own(long_ttl: int, rate: str | None, expected: str) -> None:
    usage = Usage(prompt=1000, completion=0, cache_write=1000)
    found = cost(usage, msgspec.structs.replace(PRICE, cache_write_long_ttl=rate), long_ttl=long_ttl)

    assert found is not None
    assert written(found) == expected


@pytest.mark.parametrize("usage", [Usage(), Usage(prompt=1), Usage(completion=1), Usage(cache_read=1)])
def test_a_cost_is_unknown_where_the_tokens_are(usage: Usage) -> None:
    assert cost(usage, PRICE) is None


@given(COUNTS, COUNTS, COUNTS, COUNTS, AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS)
def test_nothing_is_ever_rounded(
    fresh: int, read: int, write: int, completion: int, given: str, out: str, cached: str, stored: str
) -> None:
    usage = Usage(prompt=fresh + read + write, completion=completion, cache_read=read, cache_write=write)
    found = cost(usage, Price(input=given, output=out, cache_read=cached, cache_write=stored))
    parts = ((fresh, given), (read, cached), (write, stored), (completion, out))

    assert found is not None
    assert Fraction(written(found)) == sum(Fraction(count) * Fraction(rate) for count, rate in parts) / 10**6


@given(st.lists(st.decimals(0, 10**9, places=12), max_size=20))
def test_a_sum_is_exact_too(amounts: list[Decimal]) -> None:
    assert Fraction(written(total(amounts))) == sum(map(Fraction, amounts))


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0", "0"), ("0.000000", "0"), ("1E+3", "1000"), ("1.50", "1.5"), ("1E-12", "0.000000000001"), ("100", "100")],
)
def test_an_amount_is_written_without_an_exponent_and_without_idle_zeros(amount: str, text: str) -> None:
    assert written(Decimal(amount)) == text


@pytest.mark.parametrize(
    ("config", "model", "expected"),
    [
        (upstream(), "claude-opus-5-5", "4"),
        (upstream(), "claude-opus-5", "5"),
        (upstream(), "claude-opus-4-5-20251101", "5"),
        (upstream(), "claude-opus-5-9", None),
        (upstream(), "claude-fable-5-2", None),
        (upstream(), "gpt-5.1", None),
        (upstream("openai"), "gpt-5.1", "1.25"),
        (upstream("openai"), "gpt-5.1-2025-11-13", "1.25"),
        (upstream("openai"), "gpt-5.1-mini", None),
        (upstream("openai"), "gpt-5-mini-2025-08-07", "0.25"),
        (upstream("openai"), "gpt-5", "1.25"),
        (upstream("openai"), "o4-mini", "1.1"),
        (upstream("openai"), "o3-pro", None),
        (upstream("openai", "https://api.openai.com/v1"), "gpt-5.1", "1.25"),
        # What others take for the same model is theirs to say.
        (upstream("openai", "https://router.example/v1"), "gpt-5.1", None),
        (upstream("anthropic", "http://127.0.0.1:1"), "claude-opus-5", None),
        (upstream("scripted"), "demo", None),
        (upstream(prices={"claude-*": {"input": "7", "output": "8"}}), "claude-opus-5-20260724", "7"),
        (upstream(prices={"a": {"input": "1", "output": "8"}, "*": {"input": "2", "output": "8"}}), "a", "1"),
        (upstream(prices={"a": {"input": "1", "output": "8"}, "*": {"input": "2", "output": "8"}}), "b", "2"),
        (upstream(prices={"a": {"input": "1", "output": "8"}}), "claude-opus-5", "5"),
        # A gateway's names have slashes: the whole of what stands behind the upstream's name counts.
        (gateway("openai/gpt-4o"), "openai/gpt-4o", "1"),
        (gateway("openai/gpt-4o"), "openai/gpt-4o-2024-08-06", "1"),
        (gateway("anthropic/claude-sonnet-4"), "anthropic/claude-sonnet-4-20250514", "1"),
        (gateway("anthropic/*"), "anthropic/claude-sonnet-4", "1"),
        (gateway("*/claude-sonnet-4"), "router/anthropic/claude-sonnet-4", "1"),
        (gateway("openai/gpt-4o"), "openai/gpt-4o:free", None),
        (gateway("gpt-4o"), "openai/gpt-4o", None),
        (gateway("up/openai/gpt-4o"), "openai/gpt-4o", None),
    ],
)
def test_a_price_is_the_upstreams_own_or_the_providers(
    config: UpstreamConfig, model: str, expected: str | None
) -> None:
    found = Prices([config]).of(f"up/{model}")

    assert (None if found is None else found.input) == expected


def test_a_model_of_an_upstream_that_is_gone_has_no_price() -> None:
    assert Prices([upstream()]).of("other/claude-opus-5") is None


def test_every_row_is_dated_sourced_and_the_only_one_for_its_models() -> None:
    rows = known_rows()
    named = [(row.provider, model) for row in rows for model in row.models]

    assert len(set(named)) == len(named)
    for row in rows:
        datetime.date.fromisoformat(row.date)
        assert row.source.startswith("https://")
        assert row.provider in ("anthropic", "openai")
        assert not any("*" in model for model in row.models)
        read = Decimal(row.cache_read or row.input)
        assert 0 < read <= Decimal(row.input) < Decimal(row.output)
        if row.long_context is not None:
            assert Decimal(row.long_context.input) > Decimal(row.input)
            # A cache price that is missing is the price of input: above the threshold that would be far too much.
            assert (row.long_context.cache_read is None) == (row.cache_read is None)
            assert (row.long_context.cache_write is None) == (row.cache_write is None)


@pytest.mark.parametrize("amount", ["", "-1", "1e3", "1,5", ".5", "1.", "NaN"])
def test_an_amount_that_is_no_plain_decimal_is_refused(amount: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"matching regex.*input"):
        msgspec.json.decode(msgspec.json.encode({"input": amount, "output": "1"}), type=Price)
