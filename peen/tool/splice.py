r"""Finding and replacing pieces of a file, byte for byte.

A model writes `\n` for every line end, a file may have `\r\n` or even both. So an edit is looked for in a copy of the
file whose line ends are all `\n`, and what it names there is carried back to the bytes of the file. Outside the spans
found in this way no byte changes; inside them a line end that the edit keeps stays what it was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from peen.tool.base import ToolError
from peen.tool.content import encoding_guess, invalid_utf8_at, line_ends, most_common, uses_bare_cr

_LINES_NAMED: Final = 5
_FIRST_POSSIBLE_TRAIL: Final = 0x30  # lowest ASCII byte that can be the second half of a double-byte character


@dataclass(frozen=True, slots=True)
class Splice:
    """Bytes `start` to `end` of the original become `new`. `edit` is the index of the edit that asks for it."""

    start: int
    end: int
    new: bytes
    edit: int


@dataclass(frozen=True, slots=True)
class Replacement:
    """One edit as the model wrote it."""

    old: str
    new: str


class _Unified:
    r"""A file and its copy with `\n` as the only line end; offsets of the copy are turned into those of the file."""

    def __init__(self, data: bytes) -> None:
        self.original = data
        self.bare_cr = uses_bare_cr(data)
        self.crlf_count = data.count(b"\r\n")
        self.text = data.replace(b"\r", b"\n") if self.bare_cr else data.replace(b"\r\n", b"\n")
        # Where all line ends are alike, counting them is enough; a list is only made for mixed files.
        self._mixed = 0 < self.crlf_count < data.count(b"\n")
        self._crlf_at = self._list_crlf() if self._mixed else []

    def _list_crlf(self) -> list[int]:
        found: list[int] = []
        at = self.original.find(b"\r\n")
        while at >= 0:
            found.append(at - len(found))  # each earlier pair has become one byte shorter
            at = self.original.find(b"\r\n", at + 2)
        return found

    def original_offset(self, offset: int) -> int:
        if self._mixed:
            return offset + bisect_left(self._crlf_at, offset)
        return offset + (self.text.count(b"\n", 0, offset) if self.crlf_count else 0)

    def needle(self, old: str) -> bytes:
        old = old.replace("\r\n", "\n")
        return (old.replace("\r", "\n") if self.bare_cr else old).encode()

    def ends_between(self, start: int, end: int) -> list[bytes]:
        piece = self.original[start:end]
        return [b"\r"] * piece.count(b"\r") if self.bare_cr else line_ends(piece)


def plan_splices(data: bytes, edits: Sequence[Replacement], *, path: str) -> list[Splice]:
    """Where each edit applies, sorted by place. Every `old` must occur exactly once and no two may overlap.

    Raises: ToolError that names the edit; then none of them is to be applied.
    """
    if not data.isascii() and (invalid := invalid_utf8_at(data)) is not None:
        _require_ascii(data, edits, invalid, path)
        foreign = True
    else:
        foreign = False
    unified = _Unified(data)
    splices = []
    for index, edit in enumerate(edits):
        at = _find_once(unified, edit, index, path)
        needle = unified.needle(edit.old)
        start, end = unified.original_offset(at), unified.original_offset(at + len(needle))
        if foreign:
            _require_character_start(data, start, index, path)
        splices.append(Splice(start, end, _with_line_ends(unified, edit, start, end), index))
    splices.sort(key=lambda splice: splice.start)
    for one, other in pairwise(splices):
        if other.start < one.end:
            first, second = sorted((one.edit, other.edit))
            raise ToolError("overlap", f"edits[{first}] and edits[{second}] touch the same text of {path}; join them")
    return splices


def apply_splices(data: bytes, splices: Sequence[Splice]) -> bytes:
    """The file after the change. `splices` are sorted and do not overlap."""
    pieces, at = [], 0
    for splice in splices:
        pieces += [data[at : splice.start], splice.new]
        at = splice.end
    return b"".join([*pieces, data[at:]])


def _find_once(unified: _Unified, edit: Replacement, index: int, path: str) -> int:
    needle = unified.needle(edit.old)
    at = unified.text.find(needle)
    if at < 0:
        raise ToolError("match not found", f"edits[{index}].old does not occur in {path}{_hint(unified, edit)}")
    if unified.text.find(needle, at + 1) >= 0:
        lines, total = _places(unified.text, needle)
        raise ToolError(
            "match not unique",
            f"edits[{index}].old occurs {total} times in {path} (at lines {lines}); "
            "add surrounding text until it occurs once",
        )
    return at


def _places(text: bytes, needle: bytes) -> tuple[str, int]:
    """Line numbers of the first few occurrences, and how many there are (overlapping ones counted up to 1000)."""
    found: list[int] = []
    at = text.find(needle)
    while at >= 0 and len(found) < 1000:
        found.append(at)
        at = text.find(needle, at + 1)
    lines = [str(text.count(b"\n", 0, at) + 1) for at in found[:_LINES_NAMED]]
    return ", ".join(lines) + (", …" if len(found) > _LINES_NAMED else ""), len(found)


def _hint(unified: _Unified, edit: Replacement) -> str:
    """What may have gone wrong, in a few words."""
    new = unified.needle(edit.new)
    if len(new) > 1 and unified.text.count(new) == 1:
        number = unified.text.count(b"\n", 0, unified.text.find(new)) + 1
        return f", but its new text does at line {number}: perhaps it was applied before"
    wanted = next((line.split() for line in unified.needle(edit.old).split(b"\n") if line.strip()), [])
    for number, line in enumerate(unified.text.split(b"\n"), 1):
        if wanted and line.split() == wanted:
            return f"; line {number} is like its first line: compare white space and the lines that follow"
    return "; copy the text exactly from readFile, without line numbers"


def _with_line_ends(unified: _Unified, edit: Replacement, start: int, end: int) -> bytes:
    """`new` with the line ends of the file: a line end that the edit keeps is kept as it is.

    Others become like those that they replace, else like the nearest one before or after the span.
    """
    new = edit.new.split("\n")
    if len(new) == 1:
        return edit.new.encode()
    lines = [line.encode() for line in new]
    old = unified.needle(edit.old).split(b"\n")
    ends = unified.ends_between(start, end)
    shortest = min(len(old), len(lines)) - 1
    # A line end is kept if all lines of the edit before it, or all after it, are the same in old and new.
    head = next((at for at in range(shortest) if old[at] != lines[at]), shortest)
    tail = next((at for at in range(shortest - head) if old[-1 - at] != lines[-1 - at]), shortest - head)
    replaced = ends[head : len(ends) - tail] or ends
    usual = most_common(replaced) if replaced else _neighbour(unified, start, end)
    added = len(lines) - 1 - head - tail
    written = [*ends[:head], *[usual] * added, *(ends[len(ends) - tail :] if tail else [])]
    # `\r\n` in the new text is meant as it stands: its own `\r` and the line end `\n`.
    return lines[0] + b"".join(
        (b"\n" if before.endswith(b"\r") else written_end) + line
        for before, written_end, line in zip(lines, written, lines[1:], strict=False)
    )


def _neighbour(unified: _Unified, start: int, end: int) -> bytes:
    if unified.bare_cr:
        return b"\r"
    data = unified.original
    at = data.rfind(b"\n", 0, start)
    if at < 0:
        at = data.find(b"\n", end)
    return b"\r\n" if at > 0 and data[at - 1 : at] == b"\r" else b"\n"


def _require_ascii(data: bytes, edits: Sequence[Replacement], invalid: int, path: str) -> None:
    for index, edit in enumerate(edits):
        if not (edit.old.isascii() and edit.new.isascii()):
            raise ToolError(
                "binary",
                f"{path} is not UTF-8 (byte {data[invalid]:#04x} at offset {invalid}); it looks like "
                f"{encoding_guess(data)}. edits[{index}] holds other than ASCII characters, which cannot be matched or "
                "written safely; nothing was changed. Use plain ASCII, or convert with runCommand (iconv)",
            )


def _require_character_start(data: bytes, start: int, index: int, path: str) -> None:
    """In a double-byte encoding an ASCII byte can be the second half of a character; such a match is none."""
    if start > 0 and data[start - 1] >= 0x80 and data[start] >= _FIRST_POSSIBLE_TRAIL:
        raise ToolError(
            "binary",
            f"{path} is not UTF-8, and edits[{index}].old follows a byte {data[start - 1]:#04x}: it may begin inside "
            "a character. Let it begin at a space, a line end, or further left",
        )
