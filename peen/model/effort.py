"""Reasoning effort: what a model is asked for when the one that was wished for is not in its range. Pure."""

from __future__ import annotations

import re
from typing import Final, Literal

LEVELS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")
"""Every level there is, ascending."""

UNSUPPORTED: Final = "model_does_not_take_reasoning_effort"
ABOVE: Final = "above_model_maximum"
BELOW: Final = "below_model_minimum"
BETWEEN: Final = "not_a_model_level"

Reason = Literal[
    "model_does_not_take_reasoning_effort", "above_model_maximum", "below_model_minimum", "not_a_model_level"
]

_LOW_TO_HIGH: Final = ("low", "medium", "high")
# The first pattern that matches the last part of a model's id counts, so narrower ones come first.
_OPENAI: Final[tuple[tuple[re.Pattern[str], tuple[str, ...] | None], ...]] = tuple(
    (re.compile(pattern), levels)
    for pattern, levels in (
        (r"o1-(mini|preview)", None),
        (r"o[134](-|$)", _LOW_TO_HIGH),
        (r"gpt-5(\.\d+)?-chat", None),
        (r"gpt-5-pro", ("high",)),
        (r"gpt-5-codex", _LOW_TO_HIGH),
        (r"gpt-5(-|$)", ("minimal", *_LOW_TO_HIGH)),
        (r"gpt-5\.1-codex-max", (*_LOW_TO_HIGH, "xhigh")),
        (r"gpt-5\.1", _LOW_TO_HIGH),
        (r"gpt-5\.\d", (*_LOW_TO_HIGH, "xhigh")),
        (r"gpt-oss", _LOW_TO_HIGH),
    )
)


def openai_levels(model_id: str) -> tuple[str, ...] | None:
    """The levels that a model behind the chat completions API takes, ascending; None for one that takes none.

    A router's prefix (`openai/o3`) is left out of the comparison.
    """
    name = model_id.rpartition("/")[2].lower()
    return next((levels for pattern, levels in _OPENAI if pattern.match(name)), None)


def zai_levels(model_id: str) -> tuple[str, ...] | None:
    """The same of a model of Z.ai: all think, one family to a degree that can be chosen."""
    return ("low", "high", "max") if re.match(r"glm-5\.3(?!-flash)(-|$)", model_id.lower()) else None


def fit(requested: str | None, supported: tuple[str, ...] | None) -> tuple[str | None, Reason | None]:
    """The level to use, and why it is not the requested one.

    Nothing requested: the model's own default, (None, None). A level between two that the model knows becomes the
    next lower one. Raises: ValueError if `requested` is no level.
    """
    if requested is None:
        return None, None
    if requested not in LEVELS:
        raise ValueError(f"{requested!r} is no reasoning effort; known: {', '.join(LEVELS)}")
    if not supported:
        return None, UNSUPPORTED
    if requested in supported:
        return requested, None
    wanted = LEVELS.index(requested)
    if wanted > LEVELS.index(supported[-1]):
        return supported[-1], ABOVE
    if wanted < LEVELS.index(supported[0]):
        return supported[0], BELOW
    return next(level for level in reversed(supported) if LEVELS.index(level) < wanted), BETWEEN
