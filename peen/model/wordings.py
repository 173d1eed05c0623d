"""How providers say what no status says: that a request is too long, or that a quota is used up. Pure."""

from __future__ import annotations

import re
from typing import Final


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


TOO_LONG_NAMES: Final = frozenset({"1261", "context_length_exceeded", "exceed_context_size_error", "tokens_too_long"})
"""Codes and types, in lower case, of a request that is longer than the model's window."""
QUOTA_NAMES: Final = frozenset({
    "insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_balance",
    "insufficient_credits", "exceeded_current_quota_error", "billing_error",
    # Z.ai numbers its reasons: no balance, the limit of a day, of some hours, a plan that ended, of a week or month.
    "1113", "1304", "1308", "1309", "1310",
})  # fmt: skip
"""The same of a quota that is used up."""

_TOO_LONG: Final = _any_of(
    r"context[_ ](?:length|window)[_ ]exceeded",
    r"maximum context length",  # OpenAI, OpenRouter, vLLM, Mistral
    r"context window|context size",  # OpenAI, MiniMax, llama.cpp
    r"exceeds? (?:the )?(?:model(?:'s)? )?(?:maximum |max )?context (?:length|limit)",  # Anthropic behind gateways
    r"exceeded max(?:imum)? context length",  # Ollama
    r"(?:longer|greater|less) than the (?:model(?:'s)? )?context length",  # SGLang, LM Studio, Together
    r"prompt (?:\([^)]{0,40}\) )?(?:is )?too long|prompt tokens too long",  # Anthropic, vLLM, Qianfan
    r"prompt \(length \d+\) is longer than",  # vLLM
    r"prompt exceeds max(?:imum)? length",  # Z.ai
    r"maximum (?:prompt|input) length",  # xAI
    r"input is too long for",  # Bedrock
    r"input token(?:s| count)\b.{0,60}\bexceeds? the",  # Gemini
    r"prompt token count of \d+ exceeds",  # Copilot
    r"exceeded model token limit|input token length too long",  # Kimi
    r"range of input length",  # Qwen
    r"reduce the length of (?:the|your) (?:messages|prompt|input)",  # Groq, Cerebras
    r"`?inputs`? tokens \+ `?max_new_tokens",  # TGI
    r"request_too_large",
)
_TOO_MUCH_AT_ONCE: Final = _any_of(r"request too large for")
_NO_QUOTA: Final = _any_of(
    r"insufficient (?:account )?(?:balance|credits?|funds|quota)",  # DeepSeek, Z.ai, OpenRouter
    r"no resource package",  # Z.ai
    r"exceeded (?:your|the|its) (?:current |monthly |usage )*(?:quota|spending limit)",  # OpenAI, Moonshot, Gemini
    r"(?:reached|hit|exceeded) (?:your|the|its) (?:\w+ )?(?:usage|spend(?:ing)?|credit) limit",  # Kimi
    r"usage limit reached",  # Z.ai
    r"out of credits|not enough credits|requires more credits|credit balance is too low",
    r"free-models-per-day",  # OpenRouter
    r"account (?:is|has been) (?:in arrears|suspended)",  # Moonshot
)
_AGAIN: Final = re.compile(r"(?:retry|try again) in ([0-9]+(?:\.[0-9]+)?) ?s\b", re.IGNORECASE)
_NEVER: Final = re.compile(r"\blimit: 0\b")
_A_MINUTE: Final = re.compile(r"per (?:minute|second)", re.IGNORECASE)


def says_too_long(words: str) -> bool:
    """Whether a request was longer than the model's context window, by whoever says so."""
    return _TOO_LONG.search(words) is not None


def says_too_much_at_once(words: str) -> bool:
    """Whether a request alone was more than the rate limit of a minute, so that no wait helps."""
    return _TOO_MUCH_AT_ONCE.search(words) is not None


def says_no_quota(words: str) -> bool:
    """Whether a quota is used up, and not only that of a minute.

    Google has the same words for both, and adds a wait to the second; also to a model that one has no quota for at all.
    """
    if _NO_QUOTA.search(words) is None:
        return False
    return _NEVER.search(words) is not None or not (_AGAIN.search(words) or _A_MINUTE.search(words))


def told_wait_ms(words: str) -> int | None:
    """The wait that is asked for in words, which some providers have no header for."""
    found = _AGAIN.search(words)
    return None if found is None else round(float(found[1]) * 1000)
