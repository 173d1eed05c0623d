"""Arrays as trees of runs. A run ends behind an element whose own hash says so, never at a position."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final
from zlib import crc32

import msgspec

from peen.store.blobs.text import STRING, Keep, run_reference

MIN_RUN_BYTES: Final = 512
"""A run of elements is at least this long. A shorter array stays as it is."""
MIN_FOLD_BYTES: Final = 128
"""A run of references, three or more of them, is at least this long."""
MAX_RUN_BYTES: Final = 16 * 1024
"""A run ends here whatever the hashes say. Only a single element that is larger makes a larger run."""
_ELEMENT_MASK: Final = 1  # every second element may end a run,
_REFERENCE_MASK: Final = 3  # every fourth reference

_STRUCTURE: Final = re.compile(STRING + rb"|[\[\]{},]", re.DOTALL)
_QUOTE, _COMMA, _OPEN, _CLOSE, _OPEN_OBJECT, _CLOSE_OBJECT = b'",[]{}'
_split_fast: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Runs:
    """One array that only grows. Its closed runs are with `keep`, its open tails are here.

    The reference to a closed run becomes an element one level up, where the same rule applies: a tree whose left
    part never changes. An element added costs the same whatever the length.
    """

    __slots__ = ("_keep", "_levels")

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._levels = [_Tail(MIN_RUN_BYTES, _ELEMENT_MASK)]

    @property
    def is_folded(self) -> bool:
        """Whether any run was closed."""
        return len(self._levels) > 1

    def add(self, element: bytes) -> None:
        """Append one element, packed already."""
        self._add(element, 0)

    def tokens(self) -> Iterator[bytes]:
        """What now stands for the whole array: the open tails, the oldest elements first."""
        for level in reversed(self._levels):
            yield from level.tokens

    def _add(self, token: bytes, at: int) -> None:
        if at == len(self._levels):
            self._levels.append(_Tail(MIN_FOLD_BYTES, _REFERENCE_MASK))
        tail = self._levels[at]
        if tail.least <= tail.size and tail.size + len(token) >= MAX_RUN_BYTES:
            self._close(at)
        tail.size += len(token) + (1 if tail.tokens else 0)
        tail.tokens.append(token)
        if tail.size >= tail.least and (crc32(token) & tail.mask == 0 or tail.size >= MAX_RUN_BYTES):
            self._close(at)

    def _close(self, at: int) -> None:
        tail = self._levels[at]
        run = b",".join(tail.tokens)
        tail.tokens, tail.size = [], 0
        self._add(run_reference(self._keep(run)), at + 1)


class _Tail:
    """The open end of one level. `size` is the length of its tokens joined by commas."""

    __slots__ = ("least", "mask", "size", "tokens")

    def __init__(self, least: int, mask: int) -> None:
        self.least, self.mask = least, mask
        self.tokens: list[bytes] = []
        self.size = 0


def fold_arrays(text: bytes, keep: Keep) -> bytes:
    """`text` with the runs of all its arrays moved into blobs, inner arrays first.

    It may also be a piece of JSON that ends inside arrays and objects; those stay as they are.
    """
    if len(text) < MIN_RUN_BYTES:
        return text
    edits = _Edits(text)
    open_arrays: list[_Array | None] = []  # None: an object
    for match in _STRUCTURE.finditer(text):
        at = match.start()
        mark = text[at]
        if mark == _QUOTE:
            continue
        if mark == _OPEN:
            open_arrays.append(_Array(at))
        elif mark == _OPEN_OBJECT:
            open_arrays.append(None)
        elif not open_arrays:
            continue
        elif mark == _CLOSE_OBJECT:
            open_arrays.pop()
        elif (array := open_arrays[-1]) is not None:
            array.end_element(at, edits)
            if mark == _CLOSE:
                open_arrays.pop()
                array.fold(at + 1, edits, keep)
    return edits.take(0, len(text))


class _Array:
    """An array that is being read."""

    __slots__ = ("_at", "_begins", "_elements", "_is_edited")

    def __init__(self, begins: int) -> None:
        self._begins, self._at = begins, begins + 1
        self._elements: list[bytes] = []
        self._is_edited = False

    def end_element(self, at: int, edits: _Edits) -> None:
        """An element ends before `at`, where a comma or the closing bracket is."""
        self._is_edited |= edits.since(self._at)
        self._elements.append(edits.take(self._at, at))
        self._at = at + 1

    def fold(self, ends: int, edits: _Edits, keep: Keep) -> None:
        """The array ends before `ends`: leave an edit if it, or an array inside, became shorter."""
        tokens: Iterable[bytes] = self._elements
        if sum(map(len, self._elements)) + len(self._elements) > MIN_RUN_BYTES:
            runs = Runs(keep)
            for element in self._elements:
                runs.add(element)
            tokens, self._is_edited = runs.tokens(), self._is_edited or runs.is_folded
        if self._is_edited:
            edits.put(self._begins, ends, b"[" + b",".join(tokens) + b"]")


class _Edits:
    """Replacements that were not taken yet, in the order of the text."""

    __slots__ = ("_edits", "_text")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._edits: list[tuple[int, int, bytes]] = []

    def put(self, begins: int, ends: int, new: bytes) -> None:
        self._edits.append((begins, ends, new))

    def since(self, begins: int) -> bool:
        """Whether there is an edit at or behind `begins`."""
        return bool(self._edits) and self._edits[-1][0] >= begins

    def take(self, begins: int, ends: int) -> bytes:
        """The text of a span that reaches to the last edit, with its edits done; they are forgotten."""
        first = len(self._edits)
        while first and self._edits[first - 1][0] >= begins:
            first -= 1
        pieces: list[bytes] = []
        at = begins
        for start, end, new in self._edits[first:]:
            pieces += (self._text[at:start], new)
            at = end
        del self._edits[first:]
        pieces.append(self._text[at:ends])
        return b"".join(pieces)


def split_elements(inside: bytes) -> list[bytes]:
    """The elements of an array, given what stands between its brackets: joined by commas they are `inside` again."""
    try:
        elements = [bytes(each) for each in _split_fast(b"[" + inside + b"]")]
    except (msgspec.DecodeError, RecursionError):
        elements = []
    if b",".join(elements) == inside:
        return elements
    # White space between the elements, or text that only the slower parser takes.
    elements, begins, depth = [], 0, 0
    for match in _STRUCTURE.finditer(inside):
        mark = inside[match.start()]
        if mark in (_OPEN, _OPEN_OBJECT):
            depth += 1
        elif mark in (_CLOSE, _CLOSE_OBJECT):
            depth -= 1
        elif mark == _COMMA and depth == 0:
            elements.append(inside[begins : match.start()])
            begins = match.end()
    elements.append(inside[begins:])
    return elements
