"""How many tokens a prompt has: estimated from its characters, and corrected by what the provider has counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from peen.wire.model import ToolDefinition
from peen.wire.records import NOTHING, MessageRecord

MESSAGE_TOKENS: Final = 4
"""What a message costs beside its texts."""
IMAGE_TOKENS: Final = 1500
"""What an image costs, whatever its bytes: providers count by width and height, and scale down what would be more."""
TOOL_TOKENS: Final = 8
BYTES_PER_TOKEN: Final = 4
"""Of reasoning that a provider wants back."""
LEAST_MEASURED: Final = 256
"""Tokens of the smallest request whose reported usage says anything about others."""
RATIOS: Final = (0.5, 4.0)

# Thousandths of a token for each character, by the first byte of its UTF-8. Held against OpenAI's o200k_base: source
# code, prose, YAML, JSON, SQL, diffs and logs come out at 0.95 to 1.21 of the truth, listings and hexadecimal at 0.8 to
# 0.9, Cyrillic at 1.5, Chinese at 1.2; random base64 at half. What a provider reports corrects the rest.
_WEIGHTS: Final = {
    b"a": 260,  # a letter
    b"0": 650,  # a digit
    b".": 550,  # any other sign
    b"\n": 1000,  # a line end with the indent behind it
    b"2": 400,  # a character of two bytes
    b"3": 850,  # of three
    b"4": 2500,  # of four
}
_REST: Final = ord("-")  # spaces and the later bytes of a character: they cost nothing of their own


def _class_of(byte: int) -> int:
    if byte >= 0xF0:
        return ord("4")
    if byte >= 0xE0:
        return ord("3")
    if byte >= 0xC0:
        return ord("2")
    if byte >= 0x80 or byte in b" \t\r":
        return _REST
    sign = chr(byte)
    return ord("a" if sign.isalpha() else "0" if sign.isdigit() else "\n" if sign == "\n" else ".")


_CLASSES: Final = bytes(map(_class_of, range(256)))


def text_tokens(text: str) -> int:
    """Tokens of `text`, estimated without any tokenizer: mostly within a fifth of the truth. 0 only for no text."""
    if not text:
        return 0
    classes = text.encode("utf-8", "surrogatepass").translate(_CLASSES)
    return 1 + sum(weight * classes.count(mark) for mark, weight in _WEIGHTS.items()) // 1000


def message_tokens(message: MessageRecord) -> int:
    """Tokens of a message as it is sent, with all reasoning that it keeps for its provider.

    Reasoning that is only shown is no part of that. What is kept may be encrypted: its bytes are all that is known.
    """
    tokens = MESSAGE_TOKENS + text_tokens(message.content) + text_tokens(message.tool_call_id or "")
    tokens += IMAGE_TOKENS * len(message.images)
    for call in message.tool_calls or ():
        tokens += text_tokens(call.id) + text_tokens(call.name) + text_tokens(bytes(call.arguments).decode())
    if message.provider_reasoning != NOTHING:
        tokens += len(bytes(message.provider_reasoning)) // BYTES_PER_TOKEN
    return tokens


def fixed_tokens(prompt: str, tools: Iterable[ToolDefinition]) -> int:
    """Tokens that every request of an execution has beside its messages."""
    tokens = text_tokens(prompt)
    for tool in tools:
        schema = bytes(tool.parameters).decode()
        tokens += TOOL_TOKENS + text_tokens(tool.name) + text_tokens(tool.description) + text_tokens(schema)
    return tokens


class Gauge:
    """What a prompt for one model takes, and how much it may take. Counts that go in are estimates as above.

    `window` and `budget` are in tokens of the model. Only usage that it has reported, and refusals, change anything.
    """

    def __init__(self, *, window: int, budget: int) -> None:
        self.window, self.budget = window, budget
        self.ratio = 1.0

    def tokens(self, counted: int) -> int:
        """Tokens of the model for what was counted, by the usage that was reported last."""
        return -(-counted * self._per_mille // 1000)

    def counted(self, tokens: int) -> int:
        """The greatest count that makes at most so many tokens."""
        return max(tokens, 0) * 1000 // self._per_mille

    def reported(self, counted: int, prompt_tokens: int | None) -> None:
        """A request that counted so much had `prompt_tokens`, as its provider says."""
        if prompt_tokens and counted >= LEAST_MEASURED:
            least, most = RATIOS
            self.ratio = min(most, max(least, prompt_tokens / counted))

    def room(self, fixed: int, part: float) -> int:
        """The count of a prompt that fills this part of the budget, beside what is `fixed` in every prompt."""
        whole = self.counted(self.budget)
        return whole if whole <= fixed else fixed + int((whole - fixed) * part)

    def refused(self, counted: int, *, fixed: int) -> None:
        """A request that counted so much was too long, whatever its provider has published.

        From here on a prompt may have three quarters of that, beside what is `fixed`.
        """
        self.budget = max(1, min(self.budget, self.tokens(fixed + (counted - fixed) * 3 // 4)))
        self.window = max(self.budget, min(self.window, self.tokens(counted) - 1))

    @property
    def _per_mille(self) -> int:
        return max(1, round(self.ratio * 1000))
