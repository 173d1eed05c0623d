"""What is known of Claude models without asking: windows, limits, and how they take a level of reasoning. Pure.

A worker does not list models, so what a request needs to know of its model stands here; where the provider publishes
it, that counts. Sources: the pages of the models at platform.claude.com, and of its effort parameter, October 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from msgspec import Struct

from peen.model.anthropicwire import Capabilities, ListedModel
from peen.model.effort import LEVELS

ASSUMED_OUTPUT_TOKENS: Final = 16_384
"""What an answer may have where neither the model nor the configuration says."""
_BUDGETS: Final = {"minimal": 1024, "low": 4096, "medium": 8192, "high": 16_384, "xhigh": 24_576, "max": 32_768}
LEAST_BUDGET: Final = 1024
"""The provider refuses a smaller one."""


class Facts(Struct, frozen=True, kw_only=True):
    """One model. Levels ascend, None for a model without.

    `thinking` says how a level is told: `adaptive` with an effort, `budget` as a number of tokens. `shown` models think
    unless told not to, and keep it to themselves unless asked to show it.
    """

    window: int | None = None
    output: int | None = None
    levels: tuple[str, ...] | None = None
    thinking: Literal["adaptive", "budget"] | None = None
    shown: bool = False
    image_input: bool = True


_M: Final = 1_000_000
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_BUDGET: Final = Facts(window=200_000, output=64_000, levels=LEVELS, thinking="budget")
# The first pattern that is found in a model's id counts, so narrower ones come first.
_KNOWN: Final[tuple[tuple[re.Pattern[str], Facts], ...]] = tuple(
    (re.compile(pattern), facts)
    for pattern, facts in (
        (r"claude-(fable|mythos|opus|sonnet|haiku)-5", Facts(
            window=_M, output=128_000, levels=_EFFORTS, thinking="adaptive", shown=True
        )),
        (r"claude-opus-4-[78]", Facts(window=_M, output=128_000, levels=_EFFORTS, thinking="adaptive")),
        (r"claude-opus-4-6", Facts(
            window=_M, output=128_000, levels=("low", "medium", "high", "max"), thinking="adaptive"
        )),
        (r"claude-sonnet-4-6", Facts(
            window=_M, output=64_000, levels=("low", "medium", "high", "max"), thinking="adaptive"
        )),
        (r"claude-(opus|sonnet|haiku)-4-5", _BUDGET),
        (r"claude-opus-4|claude-4-opus", Facts(window=200_000, output=32_000, levels=LEVELS, thinking="budget")),
        (r"claude-sonnet-4|claude-4-sonnet|claude-3-7", _BUDGET),
        (r"claude-3-5", Facts(window=200_000, output=8192)),
        (r"claude-3", Facts(window=200_000, output=4096)),
        (r"claude-", Facts(output=32_000, levels=("low", "medium", "high"), thinking="adaptive")),
    )
)  # fmt: skip
_FAMILIES: Final = ("claude-sonnet-", "claude-opus-", "claude-haiku-")


def facts_of(model_id: str) -> Facts:
    """What is known of a model by its name, whatever a router or a cloud puts around it; nothing for an unknown one."""
    name = model_id.lower().replace(".", "-")
    return next((facts for pattern, facts in _KNOWN if pattern.search(name)), Facts())


def learned(model: ListedModel) -> Facts:
    """The same, corrected by what the provider publishes."""
    facts = facts_of(model.id)
    changes: dict[str, object] = {}
    if model.max_input_tokens is not None and model.max_input_tokens > 0:
        changes["window"] = model.max_input_tokens
    if model.max_tokens is not None and model.max_tokens > 0:
        changes["output"] = model.max_tokens
    if model.capabilities is not None:
        changes |= _abilities(model.capabilities)
    return msgspec.structs.replace(facts, **changes)


def _abilities(published: Capabilities) -> dict[str, object]:
    found: dict[str, object] = {}
    if published.image_input is not None:
        found["image_input"] = published.image_input.supported
    types = published.thinking.types if published.thinking is not None else None
    effort = published.effort
    if types is not None and types.adaptive is not None and types.adaptive.supported and effort is not None:
        levels = tuple(level for level in _EFFORTS if (one := getattr(effort, level)) is not None and one.supported)
        found |= {"thinking": "adaptive", "levels": levels or None}
    elif types is not None and types.enabled is not None and types.enabled.supported:
        found |= {"thinking": "budget", "levels": LEVELS}
    elif published.thinking is not None and not published.thinking.supported:
        found |= {"thinking": None, "levels": None, "shown": False}
    return found


def by_preference(models: Iterable[ListedModel]) -> list[ListedModel]:
    """Models that answer: Sonnet, Opus and Haiku first, each family in the provider's order, which is newest first."""

    def rank(model: ListedModel) -> int:
        return next((place for place, family in enumerate(_FAMILIES) if family in model.id), len(_FAMILIES))

    return sorted((model for model in models if model.id and model.lifecycle != "retired"), key=rank)


def output_limit(facts: Facts, wanted: int | None) -> int:
    """Tokens that an answer may have: what the model can, or what is `wanted` if that is less.

    A model whose window is small keeps most of it for the prompt.
    """
    limit = wanted if facts.output is None else facts.output
    if limit is None:
        return ASSUMED_OUTPUT_TOKENS
    if facts.window is not None:
        limit = min(limit, facts.window // 4)
    return limit if wanted is None else min(limit, wanted)


def thinking_budget(level: str, limit: int) -> int | None:
    """Tokens of reasoning for a level: at most half of the answer's `limit`, None if that is less than there may be."""
    budget = min(_BUDGETS[level], limit // 2)
    return budget if budget >= LEAST_BUDGET else None
