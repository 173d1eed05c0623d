"""The page about models: its examples are valid, and its table of levels is the program's own."""

from __future__ import annotations

import re
from pathlib import Path

from peen.model.anthropicmodels import facts_of
from peen.model.price import Prices
from peen.settings.upstreams import parse_upstreams

PAGE = (Path(__file__).parent.parent / "docs" / "models.md").read_text()


def test_the_list_of_upstreams_is_valid_and_its_prices_hold() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)

    upstreams = parse_upstreams(text, {"ANTHROPIC_API_KEY": "k", "GATEWAY_KEY": "k"}, Path("/nowhere"))

    assert [upstream.type for upstream in upstreams] == ["anthropic", "anthropic", "openai"]
    price = Prices(upstreams).of("gateway/claude-opus-5")
    assert price is not None
    assert price.input == "2.5"


def test_levels_are_told_as_the_table_says() -> None:
    for model in ("claude-opus-5-5", "claude-sonnet-5", "claude-opus-4-8"):
        assert (facts_of(model).thinking, facts_of(model).levels) == (
            "adaptive",
            ("low", "medium", "high", "xhigh", "max"),
        )
    for model in ("claude-opus-4-6", "claude-sonnet-4-6"):
        assert facts_of(model).levels == ("low", "medium", "high", "max")
    for model in ("claude-haiku-4-5", "claude-opus-4-1", "claude-sonnet-4-20250514", "claude-3-7-sonnet-latest"):
        assert facts_of(model).thinking == "budget"
    for model in ("claude-3-5-haiku-latest", "glm-5"):
        assert facts_of(model).levels is None
