"""Saving values: a growing list costs each step what the step appended; any other JSON text is packed by itself."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from peen.store.blobs.runs import MAX_RUN_BYTES, Runs, fold_arrays
from peen.store.blobs.text import Blob, Keep, check_json, hash_of, lift_strings

CHAIN: Final = 16
"""A value is read from at most so many saved ones: a root, and what the steps after it appended."""

_quoted: Final = msgspec.json.encode
_UNCHANGED: Final = b"0"


class Saved(NamedTuple):
    """What one save writes: `value` into the row of its step, `new_blobs` with it in the same transaction.

    `value` is JSON. A root can be read by itself, any other one needs the values since the last root.
    """

    value: bytes
    new_blobs: list[Blob]
    is_root: bool


def pack(value: bytes, known: Container[bytes] = ()) -> Saved:
    """Any JSON text, with its long strings and runs of array elements in blobs. `unpack` gives the same bytes back.

    `known` are hashes that the store has for this session: their blobs are left out.
    Raises: ValueError if `value` is not JSON.
    """
    check_json(value)
    new: dict[bytes, bytes] = {}

    def keep(data: bytes) -> bytes:
        digest = hash_of(data)
        if digest not in known:
            new[digest] = data
        return digest

    return Saved(_pack_text(value, keep), _blobs(new), is_root=True)


class Encoder:
    """A JSON value `before [ elements ] after` whose list grows from save to save.

    It keeps every element (the caller's own bytes, not a copy) and the open tails of the tree, so appending and
    saving cost the same at any length; replacing and truncating cost the whole list. Not for two threads at once.
    `known` are hashes that the store has for this session. The encoder adds what it hands out, and several encoders
    of a session may share one set.
    """

    def __init__(self, known: set[bytes] | None = None) -> None:
        self.known: Final[set[bytes]] = set() if known is None else known
        self._elements: list[bytes] = []
        self._before, self._after = _Piece(), _Piece()
        self._runs = Runs(self._keep_run)
        self._new: dict[bytes, bytes] = {}  # kept since the last save
        self._closed: dict[bytes, bytes] = {}  # runs closed since the last root: only a root names them
        self._fresh: list[bytes] = []  # elements added since the last save, packed
        self._fresh_bytes = 0
        self._check = 0  # of every element and a comma behind it
        self._depth = -1  # saves since the last root, -1: there is none

    @property
    def elements(self) -> Sequence[bytes]:
        """The elements as they are now. Not to be changed, nor kept across a change."""
        return self._elements

    def append(self, element: bytes) -> None:
        """Add one JSON value to the end. Raises: ValueError if it is not JSON."""
        check_json(element)
        self._elements.append(element)
        self._add(element)

    def replace_all(self, elements: Iterable[bytes]) -> None:
        """Let the list be `elements`. If it begins with what is there now, the rest is appended; else the next save
        is a root. Raises: ValueError if one is not JSON; then nothing has changed.
        """
        wanted = list(elements)
        kept = len(self._elements)
        is_grown = wanted[:kept] == self._elements  # mostly the same objects, which compares as fast as pointers
        new = wanted[kept:] if is_grown else wanted
        for element in new:
            check_json(element)
        self._elements = wanted
        if not is_grown:
            self._start_over()
        for element in new:
            self._add(element)

    def truncate(self, length: int) -> None:
        """Keep the first `length` elements. Raises: ValueError if there are fewer, or `length` is negative."""
        if not 0 <= length <= len(self._elements):
            raise ValueError(f"cannot keep {length} of {len(self._elements)} elements")
        if length < len(self._elements):
            self.replace_all(self._elements[:length])

    def save(self, before: bytes = b"", after: bytes = b"", *, root: bool = False) -> Saved:
        """What makes the present state durable. `before` and `after` are the raw text around the list.

        Every 16th save is a root, as is one after an edit or one that appended much. A caller whose last saved value
        was not stored asks for a `root`. Raises: ValueError unless `before [] after` is JSON; then nothing has changed.
        """
        if before != self._before.text or after != self._after.text:
            check_json(before + b"[]" + after)
        self._before.change(before, self._keep)
        self._after.change(after, self._keep)
        is_root = root or not 0 <= self._depth < CHAIN - 1 or self._fresh_bytes > MAX_RUN_BYTES
        if is_root:
            self._depth = 0
            new = self._new | self._closed
            tokens = list(self._runs.tokens())
            self._closed = {}
        else:
            self._depth += 1
            new, tokens = self._new, self._fresh
        value = self._value(tokens, is_root)
        self.known.update(new)
        self._new, self._fresh, self._fresh_bytes = {}, [], 0
        return Saved(value, _blobs(new), is_root)

    def blobs(self, hashes: Collection[bytes]) -> list[Blob]:
        """Those blobs of the present value that the store asks for, known or not. It costs the whole list."""
        found: dict[bytes, bytes] = {}

        def keep(data: bytes) -> bytes:
            digest = hash_of(data)
            if digest in hashes:
                found[digest] = data
            return digest

        runs = Runs(keep)
        for piece in (self._before.text, self._after.text):
            _pack_text(piece, keep)
        for element in self._elements:
            runs.add(_pack_text(element, keep))
        return _blobs(found)

    def _start_over(self) -> None:
        """An empty tree. What was kept and never saved goes with the old one."""
        self._runs = Runs(self._keep_run)
        self._new, self._closed, self._fresh = {}, {}, []
        self._fresh_bytes = self._check = 0
        self._depth = -1

    def _add(self, element: bytes) -> None:
        packed = _pack_text(element, self._keep)
        self._check = crc32(b",", crc32(element, self._check))
        self._runs.add(packed)
        self._fresh.append(packed)
        self._fresh_bytes += len(packed)

    def _keep(self, data: bytes) -> bytes:
        digest = hash_of(data)
        if digest not in self.known:
            self._new[digest] = data
        return digest

    def _keep_run(self, data: bytes) -> bytes:
        digest = hash_of(data)
        if digest not in self.known:
            self._closed[digest] = data
        return digest

    def _value(self, tokens: list[bytes], is_root: bool) -> bytes:
        check = crc32(self._after.text, crc32(self._before.text, self._check))
        head = b'["~l%d.%08x"' % (self._depth, check)
        return b",".join([head, self._before.take(is_root), self._after.take(is_root), *tokens]) + b"]"


class _Piece:
    """The raw text on one side of the list, and what stands for it in a saved value: a JSON string that holds it,
    packed, or nothing while it is what the value before said."""

    __slots__ = ("_is_saved", "_quoted", "text")

    def __init__(self) -> None:
        self.text, self._quoted, self._is_saved = b"", b'""', False

    def change(self, text: bytes, keep: Keep) -> None:
        if text != self.text:
            quoted = _quoted(_pack_text(text, keep).decode())
            self.text, self._quoted, self._is_saved = text, quoted, False

    def take(self, whole: bool) -> bytes:
        """For a value that is saved now."""
        if self._is_saved and not whole:
            return _UNCHANGED
        self._is_saved = True
        return self._quoted


def _pack_text(text: bytes, keep: Keep) -> bytes:
    return fold_arrays(lift_strings(text, keep), keep)


def _blobs(found: dict[bytes, bytes]) -> list[Blob]:
    return [Blob(digest, data) for digest, data in found.items()]
