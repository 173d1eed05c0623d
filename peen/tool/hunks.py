r"""Where the hunks of a patch apply in a file, and what they put there.

Lines are compared as wholes and to the byte, but for their line ends: those of the file stay where a line stays, and
new lines get the one that most lines of the file have. A file whose last line has no end is seen as if it had one,
which is taken away again in the end, so that it still has none.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Final

from peen.tool.base import ToolError
from peen.tool.nearest import shown_line, why_absent
from peen.tool.patch import Hunk
from peen.tool.splice import Splice, occurrences
from peen.tool.unified import Unified

_LINE_NUMBERS: Final = re.compile(r"-\d+(,\d+)? \+\d+(,\d+)? @@")
_MOST_FOUND: Final = 1000
_BOM: Final = codecs.BOM_UTF8.decode()


@dataclass(slots=True)
class _Run:
    """Text from `start` to `end`, whole lines with their ends, becomes `new`, lines with an end each."""

    start: int
    end: int
    new: list[str]
    hunk: int


def place_hunks(data: bytes, hunks: Sequence[Hunk], *, path: str) -> list[Splice]:
    """What the hunks change, sorted by place and without overlap.

    Raises: ToolError that names the hunk; then none of them is to be applied.
    """
    unified = Unified(data)
    if unified.invalid_at is not None:
        _require_ascii(unified, hunks, path)
    return _Placement(unified, path).splices(hunks)


class _Placement:
    def __init__(self, unified: Unified, path: str) -> None:
        self._unified, self._path = unified, path
        self._begin = len(codecs.BOM_UTF8) if unified.text.startswith(codecs.BOM_UTF8) else 0
        self._unended = len(unified.text) > self._begin and not unified.text.endswith(b"\n")
        # One line end more than the file may have; `_splice` turns that back.
        self._text = unified.text + b"\n" if self._unended else unified.text
        self._cursor = self._begin

    def splices(self, hunks: Sequence[Hunk]) -> list[Splice]:
        joined: list[_Run] = []
        for index, hunk in enumerate(hunks):
            for run in self._runs(index, hunk):
                if joined and joined[-1].end == run.start:
                    joined[-1].end = run.end
                    joined[-1].new += run.new
                else:
                    joined.append(run)
        return [self._splice(run) for run in joined]

    def _runs(self, index: int, hunk: Hunk) -> Iterator[_Run]:
        """The changes of one hunk, without its context. The cursor goes behind it."""
        at = self._find(index, hunk)
        old = iter(self._needles(hunk.old) if hunk.old else [])
        for changes, lines in groupby(hunk.lines, key=lambda line: line[0] != " "):
            size = 0
            new: list[str] = []
            for mark, text in lines:
                if mark != "+":
                    size += len(next(old))
                else:
                    new.append(text.removeprefix(_BOM) if 0 < self._begin == at and not new else text)
            if changes:
                yield _Run(at, at + size, new, index)
            at += size
        self._cursor = at

    def _find(self, index: int, hunk: Hunk) -> int:
        """Offset of the line at which the hunk begins."""
        if hunk.anchor is not None:
            self._cursor = self._behind_anchor(index, hunk.anchor)
        if not hunk.old:
            return len(self._text) if hunk.at_end else self._cursor
        block = b"".join(self._needles(hunk.old))
        found = self._at_end(block) if hunk.at_end else list(islice(self._places(block, self._cursor), _MOST_FOUND))
        if len(found) == 1:
            return found[0]
        if found:
            count, lines = occurrences(self._unified, found)
            raise ToolError(
                "context not unique",
                f"{self._named(index, hunk)} occurs {count} times (at lines {lines}); "
                'add context lines, or an anchor: "@@ " and a line before it that occurs once',
            )
        raise ToolError("context not found", f"{self._named(index, hunk)} {self._missing(hunk, block)}")

    def _behind_anchor(self, index: int, anchor: str) -> int:
        line = self._needles([anchor])[0]
        found = list(islice(self._places(line, self._cursor), _MOST_FOUND))
        if len(found) == 1:
            return found[0] + len(line)
        named = f"hunk {index + 1} of {self._path}: its anchor"
        if found:
            count, lines = occurrences(self._unified, found)
            raise ToolError(
                "context not unique",
                f"{named} occurs {count} times (at lines {lines}); choose a line that occurs once, or give context",
            )
        if _LINE_NUMBERS.match(anchor):
            raise ToolError(
                "context not found", f'{named} is a range of line numbers; write "@@" alone or "@@ " and a line'
            )
        why = self._before_cursor(line) or self._why(line[:-1])
        raise ToolError("context not found", f"{named} is no whole line of it{why}")

    def _places(self, block: bytes, start: int) -> Iterator[int]:
        """Offsets from `start` on, which is that of a line, at which a block of whole lines begins."""
        if self._text.startswith(block, start):
            yield start
        at = self._text.find(b"\n" + block, start)
        while at >= 0:
            yield at + 1
            at = self._text.find(b"\n" + block, at + 1)

    def _at_end(self, block: bytes) -> list[int]:
        at = len(self._text) - len(block)
        fits = at == self._cursor or (at > self._cursor and self._text[at - 1 : at] == b"\n")
        return [at] if fits and self._text.endswith(block) else []

    def _needles(self, lines: Sequence[str]) -> list[bytes]:
        """Lines of a hunk in the form of the text, each with its end."""
        # The byte order mark stands before the first line and stays, though readFile shows it as a part of that.
        first = lines[0].removeprefix(_BOM) if self._begin else lines[0]
        return [self._unified.needle(text) + b"\n" for text in (first, *lines[1:])]

    def _named(self, index: int, hunk: Hunk) -> str:
        return f"hunk {index + 1} of {self._path} (line {hunk.line} of the patch): its context"

    def _missing(self, hunk: Hunk, block: bytes) -> str:
        if hunk.at_end and (found := list(islice(self._places(block, self._cursor), 1))):
            return f'is at line {self._unified.line_of(found[0])} and not at the end; leave out "*** End of File"'
        return f"does not occur{self._before_cursor(block) or self._why(block[:-1])}"

    def _before_cursor(self, block: bytes) -> str:
        earlier = next(self._places(block, self._begin), None)
        if earlier is None:
            return ""
        line, cursor = self._unified.line_of(earlier), self._unified.line_of(self._cursor)
        return f" from line {cursor} on, but at line {line}; put the hunks in the order of the file"

    def _why(self, block: bytes) -> str:
        return why_absent(self._text[self._cursor :], block, first_line=self._unified.line_of(self._cursor))

    def _splice(self, run: _Run) -> Splice:
        """A run in the bytes of the file."""
        unified, end = self._unified, self._unified.usual_end
        new = [line.encode() + end for line in run.new]
        start, stop = run.start, run.end
        if self._unended and stop == len(self._text):
            stop -= 1
            if new:
                new[-1] = new[-1].removesuffix(end)
            if start > stop:  # behind the last line, which now gets an end
                start, new = stop, [end, *new]
            elif not new and start > self._begin:  # the line before is the last one now, and loses its end
                start -= 1
        return Splice(unified.original_offset(start), unified.original_offset(stop), b"".join(new), run.hunk)


def _require_ascii(unified: Unified, hunks: Sequence[Hunk], path: str) -> None:
    for index, hunk in enumerate(hunks):
        text = next((text for text in (hunk.anchor or "", *(text for _, text in hunk.lines)) if not text.isascii()), "")
        if text:
            raise ToolError(
                "binary",
                f"{path} is {unified.foreign_text()}. Hunk {index + 1} holds other than ASCII characters "
                f"({shown_line(text.encode())}), which cannot be matched or written safely. Leave such lines out of "
                "the context, or convert with runCommand (iconv)",
            )
