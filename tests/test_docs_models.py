"""The page about models: its examples are valid, and its table of levels is the program's own."""

from __future__ import annotations

import re
from pathlib import Path

from peen.model.anthropicmodels import facts_of
from peen.model.effort import openai_levels, zai_levels
from peen.model.price import Prices
from peen.settings.upstreams import parse_upstreams

PAGE = (Path(__file__).parent.parent / "docs" / "models.md").read_text()

LISTS = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


def test_the_list_of_upstreams_is_valid_and_its_prices_hold() -> None:
    text, _ = LISTS
    keys = ("ANTHROPIC_API_KEY", "GATEWAY_KEY", "OPENAI_API_KEY", "ZAI_API_KEY")
    upstreams = parse_upstreams(text, dict.fromkeys(keys, "k"), Path("/nowhere"))

    assert [upstream.type for upstream in upstreams] == ["anthropic", "anthropic", "openai", "zai-coding", "openai"]
    assert [upstream.api for upstream in upstreams] == [None, None, "responses", None, None]
    price = Prices(upstreams).of("gateway/claude-opus-5")
    assert price is not None
    assert price.input == "2.5"


def test_the_prices_of_a_gateway_are_found_by_the_whole_name_the_first_that_fits() -> None:
    _, text = LISTS
    prices = Prices(parse_upstreams(text, {"GATEWAY_KEY": "k"}, Path("/nowhere")))

    found = {
        name: None if (price := prices.of(f"router/{name}")) is None else price.input
        for name in (
            "openai/gpt-4o",
            "openai/gpt-4o-2024-08-06",
            "anthropic/claude-sonnet-4",
            "qwen/qwen3:free",
            "gpt-4o",
        )
    }
    assert list(found.values()) == ["2.5", "2.5", "3", "0", "15"]


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
    for model in ("o1", "o3-pro", "o4-mini", "gpt-oss-120b", "gpt-5.1"):
        assert openai_levels(model) == ("low", "medium", "high")
    assert openai_levels("gpt-5-mini") == ("minimal", "low", "medium", "high")
    assert openai_levels("gpt-5-pro") == ("high",)
    assert openai_levels("gpt-5.2") == ("low", "medium", "high", "xhigh")
    assert openai_levels("gpt-4.1") is None
    assert zai_levels("glm-5.3") == ("low", "high", "max")
