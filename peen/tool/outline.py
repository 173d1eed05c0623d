"""Which lines of a file are other ones than those that were read: one number a line is enough to tell."""

from __future__ import annotations

import zlib
from array import array
from itertools import takewhile
from typing import Final

from peen.tool.content import uses_bare_cr

MAX_LINES: Final = 16_384
"""Of one file, four bytes each; a longer one has no outline."""
MAX_BYTES: Final = 1024 * 1024


class Outline:
    """The checksums of the lines of one content."""

    def __init__(self, checksums: array[int]) -> None:
        self._checksums = checksums

    @classmethod
    def of(cls, data: bytes) -> Outline | None:
        """None for what is too large."""
        if len(data) > MAX_BYTES or data.count(b"\n") >= MAX_LINES:
            return None
        *lines, rest = data.split(b"\r" if uses_bare_cr(data) else b"\n")
        checksums = array("I", map(zlib.crc32, lines))
        if rest:
            checksums.append(zlib.crc32(rest + b"\0"))  # a last line without an end is another line
        return cls(checksums)

    def __len__(self) -> int:
        return len(self._checksums)

    def compared_with(self, data: bytes) -> str:
        """How a later content differs, as one range of lines: `lines 3-4 changed`. Empty where that is not known."""
        later = Outline.of(data)
        if later is None:
            return ""
        old, new = self._checksums, later._checksums
        shortest = min(len(old), len(new))
        head = sum(1 for _ in takewhile(lambda at: old[at] == new[at], range(shortest)))
        tail = sum(1 for _ in takewhile(lambda at: old[-1 - at] == new[-1 - at], range(shortest - head)))
        gone, come = len(old) - head - tail, len(new) - head - tail
        if gone == come:
            return f"{_range(head, gone)} changed" if gone else ""
        if not gone:
            return f"{_range(head, come)} {'is' if come == 1 else 'are'} new"
        if not come:
            return f"{_range(head, gone)} {'is' if gone == 1 else 'are'} gone"
        return f"{_range(head, gone)} became {_range(head, come)}"


def _range(first: int, count: int) -> str:
    return f"line {first + 1}" if count == 1 else f"lines {first + 1}-{first + count}"
