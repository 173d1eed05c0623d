r"""Finding and replacing pieces of a file, byte for byte.

A model writes `\n` for every line end, a file may have `\r\n` or even both. So an edit is looked for in a copy of the
file whose line ends are all `\n`, and what it names there is carried back to the bytes of the file. Outside the spans
found in this way no byte changes; inside them a line end that the edit keeps stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

from peen.tool.base import ToolError
from peen.tool.content import most_common
from peen.tool.nearest import why_absent
from peen.tool.unified import Unified

_LINES_NAMED: Final = 5
_MOST_COUNTED: Final = 1000
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


def plan_splices(data: bytes, edits: Sequence[Replacement], *, path: str) -> list[Splice]:
    """Where each edit applies, sorted by place. Every `old` must occur exactly once and no two may overlap.

    Raises: ToolError that names the edit; then none of them is to be applied.
    """
    unified = Unified(data)
    if unified.invalid_at is not None:
        _require_ascii(unified, edits, path)
    splices = []
    for index, edit in enumerate(edits):
        at = _find_once(unified, edit, index, path)
        needle = unified.needle(edit.old)
        start, end = unified.original_offset(at), unified.original_offset(at + len(needle))
        if unified.invalid_at is not None:
            _require_character_start(data, start, index, path)
        splices.append(Splice(start, end, _with_line_ends(unified, edit, start, end), index))
    splices.sort(key=lambda splice: splice.start)
    for one, other in pairwise(splices):
        if other.start < one.end:
            first, second = sorted((one.edit, other.edit))
            raise ToolError(
                "overlap",
                f"edits[{first}] and edits[{second}] touch the same text of {path}; join them",
            )
    return splices


def apply_splices(data: bytes, splices: Sequence[Splice]) -> bytes:
    """The file after the change. `splices` are sorted and do not overlap."""
    pieces, at = [], 0
    for splice in splices:
        pieces += [data[at : splice.start], splice.new]
        at = splice.end
    return b"".join([*pieces, data[at:]])


def _find_once(unified: Unified, edit: Replacement, index: int, path: str) -> int:
    needle = unified.needle(edit.old)
    at = unified.text.find(needle)
    if at < 0:
        raise ToolError("match not found", f"edits[{index}].old does not occur in {path}{_hint(unified, edit)}")
    if unified.text.find(needle, at + 1) >= 0:
        count, lines = occurrences(unified, unified.places_of(needle))
        raise ToolError(
            "match not unique",
            f"edits[{index}].old occurs {count} times in {path} (at lines {lines}); "
            "add surrounding text until it occurs once",
        )
    return at


def occurrences(unified: Unified, places: Iterable[int]) -> tuple[int, str]:
    """How often something occurs, and the first of the lines, for a model: overlapping ones count, up to 1000."""
    found = list(islice(places, _MOST_COUNTED))
    lines = ", ".join(str(unified.line_of(at)) for at in found[:_LINES_NAMED])
    return len(found), lines + (", …" if len(found) > _LINES_NAMED else "")


def _hint(unified: Unified, edit: Replacement) -> str:
    """What may have gone wrong, in a few words."""
    new = unified.needle(edit.new)
    if len(new) > 1 and unified.text.count(new) == 1:
        number = unified.line_of(unified.text.find(new))
        return f", but its new text does at line {number}: perhaps it was applied before"
    return why_absent(unified.text, unified.needle(edit.old))


def _with_line_ends(unified: Unified, edit: Replacement, start: int, end: int) -> bytes:
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


def _neighbour(unified: Unified, start: int, end: int) -> bytes:
    if unified.bare_cr:
        return b"\r"
    data = unified.original
    at = data.rfind(b"\n", 0, start)
    if at < 0:
        at = data.find(b"\n", end)
    return b"\r\n" if at > 0 and data[at - 1 : at] == b"\r" else b"\n"


def _require_ascii(unified: Unified, edits: Sequence[Replacement], path: str) -> None:
    for index, edit in enumerate(edits):
        if not (edit.old.isascii() and edit.new.isascii()):
            raise ToolError(
                "binary",
                f"{path} is {unified.foreign_text()}. edits[{index}] holds other than ASCII characters, which cannot "
                "be matched or written safely; nothing was changed. Use ASCII, or convert with runCommand (iconv)",
            )


def _require_character_start(data: bytes, start: int, index: int, path: str) -> None:
    """In a double-byte encoding an ASCII byte can be the second half of a character; such a match is none."""
    if start > 0 and data[start - 1] >= 0x80 and data[start] >= _FIRST_POSSIBLE_TRAIL:
        raise ToolError(
            "binary",
            f"{path} is not UTF-8, and edits[{index}].old follows a byte {data[start - 1]:#04x}: it may begin inside "
            "a character. Let it begin at a space, a line end, or further left",
        )
