"""The zstd dictionary that ships with Peen: what source text, tool output and messages in JSON often say.

A database keeps a copy under an id of its own, so what was written with one dictionary stays readable when a release
ships another.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Final

FILE: Final = "text.zdict"


@lru_cache(maxsize=1)
def shipped() -> bytes:
    """The trained dictionary of this release, 32 KiB."""
    return (resources.files(__name__) / FILE).read_bytes()
