"""Making text fit: sizes are those of the text inside a JSON document, where quotes and line ends take two bytes."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import msgspec

_encode: Final = msgspec.json.Encoder().encode


def json_bytes(text: str) -> int:
    """Bytes of `text` as the inside of a JSON string."""
    return len(_encode(text)) - 2


def fit_head(text: str, max_bytes: int) -> str:
    """The longest beginning of `text` that takes at most `max_bytes` in JSON."""
    if json_bytes(text) <= max_bytes:
        return text
    # A character takes at least one byte, so no more than that many can fit.
    max_bytes = max(max_bytes, 0)
    sizes = range(min(len(text), max_bytes) + 1)
    return text[: bisect_right(sizes, max_bytes, key=lambda length: json_bytes(text[:length])) - 1]


def fit_bytes(text: str, max_bytes: int) -> str:
    """The longest beginning of `text` that takes at most `max_bytes` as UTF-8."""
    return text if len(text) * 4 <= max_bytes else text.encode()[:max_bytes].decode("utf-8", "ignore")


def fit_tail(text: str, max_bytes: int) -> str:
    """The longest end of `text` that takes at most `max_bytes` in JSON."""
    if json_bytes(text) <= max_bytes:
        return text
    max_bytes = max(max_bytes, 0)
    sizes = range(min(len(text), max_bytes) + 1)
    length = bisect_right(sizes, max_bytes, key=lambda length: json_bytes(text[len(text) - length :])) - 1
    return text[len(text) - length :]


def readable(data: bytes) -> str:
    """Text of bytes that ought to be UTF-8; what is not becomes U+FFFD."""
    return data.decode("utf-8", "replace")


def path_text(path: str) -> str:
    r"""A path as it can be shown and stored: bytes of a name that are not UTF-8 become `\xNN`."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return path
