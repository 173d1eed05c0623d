from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.model.effort import ABOVE, BELOW, BETWEEN, LEVELS, UNSUPPORTED, fit, openai_levels

RANGES = st.lists(st.sampled_from(LEVELS), min_size=1, unique=True).map(
    lambda found: tuple(sorted(found, key=LEVELS.index))
)


@pytest.mark.parametrize(
    ("requested", "supported", "used"),
    [
        (None, ("low", "high"), (None, None)),
        (None, None, (None, None)),
        ("high", None, (None, UNSUPPORTED)),
        ("high", (), (None, UNSUPPORTED)),
        ("high", ("low", "medium", "high"), ("high", None)),
        ("max", ("low", "medium", "high"), ("high", ABOVE)),
        ("minimal", ("low", "medium", "high"), ("low", BELOW)),
        ("medium", ("low", "high", "max"), ("low", BETWEEN)),
    ],
)
def test_a_level_fits_or_becomes_the_nearest_that_does(
    requested: str | None, supported: tuple[str, ...] | None, used: tuple[str | None, str | None]
) -> None:
    assert fit(requested, supported) == used


def test_a_word_that_is_no_level_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="'hard' is no reasoning effort; known: minimal, low"):
        fit("hard", ("low",))


@given(st.sampled_from(LEVELS), RANGES)
def test_what_is_used_is_supported_and_a_reason_is_given_exactly_for_a_change(
    requested: str, supported: tuple[str, ...]
) -> None:
    used, reason = fit(requested, supported)

    assert used in supported
    assert (reason is None) == (used == requested)


@pytest.mark.parametrize(
    ("model_id", "levels"),
    [
        ("o3", ("low", "medium", "high")),
        ("o4-mini", ("low", "medium", "high")),
        ("openai/o1-2024-12-17", ("low", "medium", "high")),
        ("o1-mini", None),
        ("gpt-5", ("minimal", "low", "medium", "high")),
        ("gpt-5-nano-2025-08-07", ("minimal", "low", "medium", "high")),
        ("gpt-5-chat-latest", None),
        ("gpt-5-pro", ("high",)),
        ("gpt-5.1", ("low", "medium", "high")),
        ("gpt-5.2", ("low", "medium", "high", "xhigh")),
        ("gpt-oss:20b", ("low", "medium", "high")),
        ("gpt-4.1", None),
        ("qwen3-coder", None),
        ("llama-o3", None),
        ("script", None),
    ],
)
def test_families_of_models_have_their_levels(model_id: str, levels: tuple[str, ...] | None) -> None:
    assert openai_levels(model_id) == levels
