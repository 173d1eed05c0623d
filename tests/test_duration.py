"""Durations follow Go's `time.ParseDuration` to the letter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.duration import format_duration_ms, parse_duration_ms

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("-0", 0),
        ("+0", 0),
        ("0s", 0),
        ("500ms", 500),
        ("1.5s", 1500),
        ("1.s", 1000),
        (".5s", 500),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("1m1m", 120_000),
        ("-1.5h", -5_400_000),
        ("+5m", 300_000),
        ("3000us", 3),
        ("3000µs", 3),
        ("3000μs", 3),
        ("1h1m1s1ms", HOUR_MS + 61_001),
        ("0.000000000000000000000000001h", 0),
        ("9223372036854775807ns", 9_223_372_036_855),
        ("-9223372036854775808ns", -9_223_372_036_855),
        ("2562047h", 2562047 * HOUR_MS),
    ],
)
def test_what_go_accepts_is_accepted(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["1ns", "1us", "0.1ms"])
def test_a_positive_duration_never_becomes_zero(text: str) -> None:
    assert parse_duration_ms(text) == 1
    assert parse_duration_ms("-" + text) == -1


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("-", "empty"),
        ("3", "lacks a unit"),
        ("1h30", "lacks a unit"),
        ("s", "not a number"),
        (".s", "not a number"),
        ("+-1s", "not a number"),
        (" 1s", "not a number"),
        ("1s ", "unknown unit"),
        ("1h 30m", "unknown unit"),
        ("1d", "unknown unit"),
        ("1S", "unknown unit"),
        ("1..5s", "lacks a unit"),
        ("٣s", "not a number"),
        ("1e3s", "unknown unit"),
        ("9223372036854775808ns", "too long"),
        ("2562048h", "too long"),
        ("9" * 5000 + "h", "too long"),
    ],
)
def test_what_go_refuses_is_refused_with_the_reason_and_an_example(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (999, "999ms"),
        (1000, "1s"),
        (5321, "5.321s"),
        (10_500, "10.5s"),
        (60_000, "1m0s"),
        (90_000, "1m30s"),
        (HOUR_MS, "1h0m0s"),
        (HOUR_MS + 500, "1h0m0.5s"),
        (-1500, "-1.5s"),
    ],
)
def test_durations_are_written_as_go_writes_them(ms: int, text: str) -> None:
    assert format_duration_ms(ms) == text


@given(st.integers(min_value=-(10**12), max_value=10**12))
def test_what_is_written_reads_back_the_same(ms: int) -> None:
    assert parse_duration_ms(format_duration_ms(ms)) == ms
