r"""A file with `\n` as its only line end, as a model writes it, and the way back to the bytes that the file has."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property

from peen.tool.content import encoding_guess, invalid_utf8_at, line_ends, most_common, uses_bare_cr


class Unified:
    r"""A file and its copy with `\n` as the only line end; offsets of the copy are turned into those of the file."""

    def __init__(self, data: bytes) -> None:
        self.original = data
        self.bare_cr = uses_bare_cr(data)
        self.crlf_count = data.count(b"\r\n") if b"\r" in data else 0
        if self.bare_cr:
            self.text = data.replace(b"\r", b"\n")
        else:
            self.text = data.replace(b"\r\n", b"\n") if self.crlf_count else data
        # Where all line ends are alike, counting them is enough; a list is only made for mixed files.
        self._mixed = 0 < self.crlf_count < data.count(b"\n")

    @cached_property
    def _crlf_at(self) -> list[int]:
        found: list[int] = []
        at = self.original.find(b"\r\n")
        while at >= 0:
            found.append(at - len(found))  # each earlier pair has become one byte shorter
            at = self.original.find(b"\r\n", at + 2)
        return found

    @cached_property
    def invalid_at(self) -> int | None:
        """Offset of the first byte of the file that is not UTF-8."""
        return None if self.original.isascii() else invalid_utf8_at(self.original)

    @cached_property
    def usual_end(self) -> bytes:
        """The line end that most lines have; of equals, the first; a line feed where there is none."""
        if self.bare_cr:
            return b"\r"
        if not self._mixed:
            return b"\r\n" if self.crlf_count else b"\n"
        return most_common(line_ends(self.original))

    def original_offset(self, offset: int) -> int:
        if self._mixed:
            return offset + bisect_left(self._crlf_at, offset)
        return offset + (self.text.count(b"\n", 0, offset) if self.crlf_count else 0)

    def needle(self, old: str) -> bytes:
        """Text of a model in the form of `text`."""
        old = old.replace("\r\n", "\n")
        return (old.replace("\r", "\n") if self.bare_cr else old).encode()

    def ends_between(self, start: int, end: int) -> list[bytes]:
        """The line ends in a part of the original."""
        piece = self.original[start:end]
        return [b"\r"] * piece.count(b"\r") if self.bare_cr else line_ends(piece)

    def line_of(self, offset: int) -> int:
        """Number, from 1, of the line in which an offset of `text` lies."""
        return self.text.count(b"\n", 0, offset) + 1

    def places_of(self, needle: bytes, start: int = 0) -> Iterator[int]:
        """Offsets in `text` at which something begins, also where one overlaps with the next."""
        at = self.text.find(needle, start)
        while at >= 0:
            yield at
            at = self.text.find(needle, at + 1)

    def foreign_text(self) -> str:
        """What a model is told of a file that is not UTF-8."""
        at = self.invalid_at or 0
        return (
            f"not UTF-8 (byte {self.original[at]:#04x} at offset {at}); it looks like {encoding_guess(self.original)}"
        )
