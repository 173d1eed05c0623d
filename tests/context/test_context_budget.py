"""How many tokens a prompt may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.context.budget import enforced_window, prompt_budget


@pytest.mark.parametrize(
    ("published", "configured", "window"),
    [(None, None, 131_072), (200_000, None, 200_000), (None, 32_768, 32_768), (200_000, 32_768, 32_768)],
)
def test_the_smaller_of_the_published_and_the_configured_window_is_enforced(
    published: int | None, configured: int | None, window: int
) -> None:
    assert enforced_window(published, configured) == window


@pytest.mark.parametrize(
    ("window", "reserve", "budget"),
    [(131_072, None, 114_688), (32_768, None, 24_576), (131_072, 1000, 130_072), (1000, 5000, 250)],
)
def test_what_is_kept_for_the_answer_is_not_for_the_prompt(window: int, reserve: int | None, budget: int) -> None:
    assert prompt_budget(window, reserve) == budget


@given(st.integers(4, 10_000_000), st.none() | st.integers(0, 10_000_000))
def test_a_prompt_has_always_some_room_and_never_more_than_the_window(window: int, reserve: int | None) -> None:
    assert 0 < prompt_budget(window, reserve) <= window
