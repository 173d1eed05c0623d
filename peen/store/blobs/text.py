"""Packed JSON text: references, the strings that look like one, and long strings moved into blobs of their own.

Everything works on the raw text, so that what comes back is what went in: order of keys, duplicate keys, white space,
the spelling of numbers and escapes.
"""

from __future__ import annotations

import json
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from hashlib import sha256
from typing import Final, NamedTuple, NoReturn, TypeAlias

import msgspec

MIN_STRING_BYTES: Final = 512
"""A string with this many bytes between its quotes, as they are spelled, is a blob of its own."""

STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRING: Final = re.compile(STRING, re.DOTALL)
# In JSON a quote behind a backslash never opens a string, and no closing quote is followed by "~".
_LOOK_ALIKE: Final = re.compile(rb'(?<!\\)"~')
MARKED: Final = re.compile(rb'(?<!\\)"~(?:([sr])([A-Za-z0-9+/]{43})"|(~)|)')
"""Every string of a packed text that begins with "~": (kind, hash) of a reference, the second "~" of an escaped string,
or nothing for what no packed text holds."""

_check_fast: Final = msgspec.json.Decoder(msgspec.Raw).decode


class Blob(NamedTuple):
    """`data` is stored under `hash`, its SHA-256 (32 bytes)."""

    hash: bytes
    data: bytes


Keep: TypeAlias = Callable[[bytes], bytes]
"""Takes the bytes of a blob and returns their hash."""


def hash_of(data: bytes) -> bytes:
    """SHA-256 of `data`, 32 bytes."""
    return sha256(data).digest()


def string_reference(digest: bytes) -> bytes:
    """What stands for a whole string, quotes included. 47 bytes."""
    return b'"~s' + b2a_base64(digest, newline=False)[:43] + b'"'


def run_reference(digest: bytes) -> bytes:
    """What stands for a run of array elements. 47 bytes."""
    return b'"~r' + b2a_base64(digest, newline=False)[:43] + b'"'


def hash_in(digits: bytes) -> bytes:
    """The hash that 43 base64 digits of a reference spell."""
    return a2b_base64(digits + b"=")


def check_json(text: bytes) -> None:
    """Raises: ValueError unless `text` is one JSON value in UTF-8 (nested less than about a thousand deep)."""
    try:
        text.decode()
        try:
            _check_fast(text)
        except msgspec.DecodeError:
            # Grammatical all the same: an escaped half of a surrogate pair. This parser is slower.
            json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("JSON is nested too deep") from None


def lift_strings(text: bytes, keep: Keep) -> bytes:
    """`text` with its long strings moved into blobs, and look-alikes of references escaped."""
    if len(text) < MIN_STRING_BYTES:
        return _LOOK_ALIKE.sub(b'"~~', text) if b'"~' in text else text

    def lifted(match: re.Match[bytes]) -> bytes:
        token = match[0]
        if len(token) >= MIN_STRING_BYTES + 2:
            return string_reference(keep(token[1:-1]))
        return b'"~' + token[1:] if token.startswith(b'"~') else token

    return _STRING.sub(lifted, text)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
