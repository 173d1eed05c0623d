from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.errors import ModelError
from peen.model.retry import CAP_MS, MAX_ATTEMPTS, final_error, plan_retry, retry_reason


def error(kind: str = "server_error", *, retryable: bool = True, retry_after_ms: int | None = None) -> ModelError:
    return ModelError("overloaded", kind=kind, retryable=retryable, status=503, retry_after_ms=retry_after_ms)


def test_the_wait_doubles_up_to_its_cap() -> None:
    waits = [plan_retry(attempt, error(), 0.0) for attempt in range(1, 8)]

    assert waits == [125, 250, 500, 1000, 2000, 2500, 2500]


@given(attempt=st.integers(1, MAX_ATTEMPTS - 1), chance=st.floats(0, 1, exclude_max=True))
def test_chance_moves_the_wait_between_its_half_and_its_whole(attempt: int, chance: float) -> None:
    whole = min(CAP_MS, 250 * 2 ** (attempt - 1))

    wait = plan_retry(attempt, error(), chance)

    assert wait is not None
    assert whole // 2 <= wait <= whole


def test_the_eleventh_attempt_is_the_last() -> None:
    assert plan_retry(10, error(), 0.5) is not None
    assert plan_retry(11, error(), 0.5) is None
    assert str(final_error(11, error())) == "overloaded (gave up after 11 attempts)"


def test_what_cannot_get_better_is_not_tried_again_and_keeps_its_words() -> None:
    refused = error("invalid_request", retryable=False)

    assert plan_retry(1, refused, 0.5) is None
    assert final_error(1, refused) is refused


def test_a_wait_that_the_provider_asks_for_is_kept_in_full() -> None:
    assert plan_retry(1, error(retry_after_ms=30_000), 0.0) == 30_000
    assert plan_retry(1, error(retry_after_ms=60_000), 0.0) == 60_000


def test_being_told_to_come_back_at_once_does_not_shorten_the_wait() -> None:
    assert plan_retry(3, error(retry_after_ms=0), 0.0) == plan_retry(3, error(), 0.0)


def test_a_wait_past_the_ceiling_fails_at_once_and_names_the_time() -> None:
    asked = error("rate_limited", retry_after_ms=3_600_000)

    final = final_error(1, asked)

    assert plan_retry(1, asked, 0.0) is None
    assert "wait 3600 s, more than the 60 s that PEEN_PROVIDER_RETRY_MAX_DELAY allows" in str(final)
    assert (final.kind, final.retryable, final.http_status) == ("rate_limited", False, 503)


def test_attempts_count_from_one() -> None:
    with pytest.raises(ValueError, match="attempts count from 1, got 0"):
        plan_retry(0, error(), 0.0)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("rate_limited", "rate_limited"),
        ("server_error", "server_error"),
        ("silence", "timeout"),
        ("stream_cut", "transport"),
    ],
)
def test_each_failure_has_the_reason_that_clients_know(kind: str, reason: str) -> None:
    assert retry_reason(error(kind)) == reason
