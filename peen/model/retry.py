"""Whether and when a failed model call is tried again. Pure: chance and the attempt's number are arguments."""

from __future__ import annotations

from typing import Final, Literal

from peen.errors import ModelError

MAX_ATTEMPTS: Final = 11
BASE_MS: Final = 250
CAP_MS: Final = 5_000
MAX_RETRY_AFTER_MS: Final = 60_000

RetryReason = Literal["rate_limited", "server_error", "timeout", "transport"]
_REASONS: Final[dict[str, RetryReason]] = {
    "rate_limited": "rate_limited",
    "server_error": "server_error",
    "timeout": "timeout",
    "silence": "timeout",
}


def plan_retry(
    attempt: int,
    error: ModelError,
    chance: float,
    *,
    max_attempts: int = MAX_ATTEMPTS,
    base_ms: int = BASE_MS,
    cap_ms: int = CAP_MS,
    max_retry_after_ms: int = MAX_RETRY_AFTER_MS,
) -> int | None:
    """Milliseconds to wait after failed attempt number `attempt` (from 1), or None when it was the last one.

    The wait doubles from `base_ms` up to `cap_ms` and lies between its half and its whole, where `chance` in [0, 1)
    points. A wait that the provider asked for is kept in full; one past `max_retry_after_ms` is not waited for.
    Raises: ValueError if attempt < 1.
    """
    if attempt < 1:
        raise ValueError(f"attempts count from 1, got {attempt}")
    if not error.retryable or attempt >= max_attempts:
        return None
    # The exponent is bounded so that a large `max_attempts` cannot make a huge number on its way to the cap.
    whole_ms = min(cap_ms, base_ms << min(attempt - 1, 32))
    backoff_ms = int(whole_ms * (0.5 + chance / 2))
    asked_ms = error.retry_after_ms
    if asked_ms is None:
        return backoff_ms
    return None if asked_ms > max_retry_after_ms else max(asked_ms, backoff_ms)


def final_error(attempt: int, error: ModelError, *, max_retry_after_ms: int = MAX_RETRY_AFTER_MS) -> ModelError:
    """What the turn fails with after `plan_retry` gave None: the same error, with the reason why nobody tries again."""
    if not error.retryable:
        return error
    asked_ms = error.retry_after_ms
    if asked_ms is not None and asked_ms > max_retry_after_ms:
        why = (
            f"the provider asks to wait {_seconds(asked_ms)} s, more than the {_seconds(max_retry_after_ms)} s "
            "that PEEN_PROVIDER_RETRY_MAX_DELAY allows"
        )
    else:
        why = f"gave up after {attempt} attempt{'' if attempt == 1 else 's'}"
    return ModelError(
        f"{error} ({why})",
        kind=error.kind,
        retryable=False,
        status=error.http_status,
        retry_after_ms=asked_ms,
    )


def retry_reason(error: ModelError) -> RetryReason:
    """The reason as the `provider.retry` event names it; whatever broke on the way is `transport`."""
    return _REASONS.get(error.kind, "transport")


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.0f}" if milliseconds >= 10_000 else f"{milliseconds / 1000:g}"
