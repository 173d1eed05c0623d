"""What may stand in a log line. Prompts, tool content and credentials may not: their size and digest may."""

from __future__ import annotations

import enum
import hashlib
import re
import traceback
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final
from uuid import UUID

MAX_TEXT: Final = 4096  # characters of one value
MAX_TRACEBACK: Final = 16_384
_MAX_ITEMS: Final = 100
_MAX_DEPTH: Final = 4
_MAX_KEYS: Final = 4096

_CREDENTIALS: Final = frozenset({
    "apikey", "auth", "authorization", "cookie", "credential", "credentials", "passphrase", "password", "secret",
    "token", "api_key", "access_key", "private_key",
})  # fmt: skip
_CONTENT: Final = frozenset({
    "answer", "args", "arguments", "body", "command", "content", "environ", "input", "output", "payload", "prompt",
    "response", "result", "stderr", "stdout", "text", "thinking",
})  # fmt: skip
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Rule(enum.Enum):
    """What a field's name says about its value."""

    PLAIN = enum.auto()
    CONTENT = enum.auto()
    CREDENTIAL = enum.auto()


_rules: dict[str, Rule] = {}


def digest(text: str | bytes) -> str:
    """`<n bytes, sha256 …>`: enough to compare and to find, nothing to read."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
    return f"<{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}>"


def rule_of(key: str) -> Rule:
    """By the last word of the name, snake or camel case: `message_text` and `apiKey` count, `max_tokens` does not."""
    rule = _rules.get(key)
    if rule is None:
        words = _CAMEL.sub("_", key).lower().replace("-", "_").split("_")
        last, two = words[-1], "_".join(words[-2:])
        if last in _CREDENTIALS or two in _CREDENTIALS:
            rule = Rule.CREDENTIAL
        else:
            rule = Rule.CONTENT if last in _CONTENT else Rule.PLAIN
        if len(_rules) < _MAX_KEYS:  # names are literals in the code; this is for those that are not
            _rules[key] = rule
    return rule


def clean_field(key: str, value: object, depth: int = 0) -> object:
    """The value as it may be written: plain JSON, bounded, and a digest where the name says so."""
    if value is None:
        return None
    rule = rule_of(key)
    if rule is Rule.PLAIN or (rule is Rule.CONTENT and isinstance(value, int | float)):
        return _clean(value, depth)
    return digest(value if isinstance(value, str | bytes) else repr(value))


def clean_text(text: str, most: int = MAX_TEXT) -> str:
    """Bounded, and without what cannot be encoded as UTF-8."""
    if len(text) > most:
        text = f"{text[:most]}… ({len(text) - most} more characters)"
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def exception_text(error: BaseException) -> str:
    """Traceback and message. Source lines and messages only, no values of variables."""
    return clean_text("".join(traceback.format_exception(error)).rstrip("\n"), MAX_TRACEBACK)


def _clean(value: object, depth: int) -> object:
    if isinstance(value, enum.Enum):
        return clean_text(str(value.value))
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, bool | float) or value is None:
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else hex(value)[:MAX_TEXT]
    if isinstance(value, UUID | PurePath):
        return clean_text(str(value))
    if isinstance(value, BaseException):
        # Copes with exceptions whose own text raises.
        return clean_text("".join(traceback.format_exception_only(value)).rstrip("\n"))
    if isinstance(value, bytes | bytearray | memoryview):
        return digest(bytes(value))
    if depth < _MAX_DEPTH and isinstance(value, Mapping):
        items = list(value.items())[:_MAX_ITEMS]
        return {clean_text(str(key)): clean_field(str(key), item, depth + 1) for key, item in items}
    if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
        return [_clean(item, depth + 1) for item in list(value)[:_MAX_ITEMS]]
    # The text of any other object may show whatever it holds: a frame, a message, a request.
    return f"<{type(value).__qualname__}>"
