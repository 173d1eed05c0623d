"""Long lines in short: what changed in them, a little around it, and how much was left out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from peen.tool.bounds import readable

LONG_BYTES: Final = 1000  # a line up to here is shown whole
_AROUND_BYTES: Final = 120  # of what stayed, on each side of a change
_INSIDE_BYTES: Final = 240  # of what changed, at each end of it
_HEAD_BYTES: Final = 200  # of a line in which nothing changed
_EDGE_BYTES: Final = 24  # at each end of a line, which tell where it begins and how it ends
_LEAST_GAP_BYTES: Final = 80  # less is not worth leaving out
_MOST_SPANS: Final = 16  # shown in one line
_COMPARED_BYTES: Final = 64 * 1024  # at once
_start: Final = attrgetter("start")


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` up to (not including) `end`; an empty one is a place."""

    start: int
    end: int

    def moved(self, by: int) -> Span:
        return Span(self.start + by, self.end + by)

    def touches(self, start: int, end: int) -> bool:
        return self.start <= end and self.end >= start

    def clipped(self, start: int, end: int) -> Span:
        """The part of it that lies in a range that it touches."""
        return Span(max(self.start, start), min(self.end, end))


def changed_part(old: bytes, new: bytes) -> tuple[Span, Span]:
    """What is left of both without their common beginning and end."""
    shortest = min(len(old), len(new))
    head = _common(old, new, shortest)
    tail = _common_end(old, new, shortest - head)
    return Span(head, len(old) - tail), Span(head, len(new) - tail)


def shortened(line: bytes, changed: Sequence[Span] = ()) -> str:
    """A line as text: the parts around `changed`, sorted spans of it, and how many characters are left out.

    Of very many changes the last are left out with what surrounds them, and counted as well.
    """
    if len(line) <= LONG_BYTES:
        return readable(line)
    pieces, at = [], 0
    for start, end in _windows(line, changed):
        if start > at:
            pieces.append(f"[... {len(readable(line[at:start]))} characters left out{_hidden(changed, at, start)} ...]")
        pieces.append(readable(line[start:end]))
        at = end
    return "".join(pieces)


def _hidden(changed: Sequence[Span], start: int, end: int) -> str:
    """How many changes begin in a part that is not shown."""
    count = bisect_left(changed, end, key=_start) - bisect_left(changed, start, key=_start)
    return f", {count} of the changes among them" if count else ""


def _windows(line: bytes, changed: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """The parts of a long line that are shown, the first and the last byte among them."""
    size = len(line)
    wanted = [(0, _EDGE_BYTES if changed else _HEAD_BYTES), (size - _EDGE_BYTES, size)]
    for span in changed[:_MOST_SPANS]:
        wanted.append((span.start - _AROUND_BYTES, span.start + _INSIDE_BYTES))
        wanted.append((span.end - _INSIDE_BYTES, span.end + _AROUND_BYTES))
    wanted.sort()
    start, end = wanted[0]
    for next_start, next_end in wanted[1:]:
        if next_start - end > _LEAST_GAP_BYTES:
            yield _whole(line, start), _whole(line, end)
            start = next_start
        end = max(end, next_end)
    yield _whole(line, start), size


def _whole(line: bytes, at: int) -> int:
    """The next place that does not lie inside a character."""
    at = max(at, 0)
    for place in range(at, min(at + 4, len(line))):
        if not 0x80 <= line[place] < 0xC0:
            return place
    return at


def _common(old: bytes, new: bytes, most: int) -> int:
    """How many of the first `most` bytes are equal."""
    at = 0
    while at < most and old[at : at + _COMPARED_BYTES] == new[at : at + _COMPARED_BYTES]:
        at += _COMPARED_BYTES
    return min(at + _first_difference(old[at : at + _COMPARED_BYTES], new[at : at + _COMPARED_BYTES]), most)


def _common_end(old: bytes, new: bytes, most: int) -> int:
    at = 0
    while at < most:
        one, other = _back(old, at), _back(new, at)
        if one != other:
            return min(at + _first_difference(one[::-1], other[::-1]), most)
        at += _COMPARED_BYTES
    return most


def _back(data: bytes, at: int) -> bytes:
    """The bytes before the last `at`."""
    end = max(len(data) - at, 0)
    return data[max(end - _COMPARED_BYTES, 0) : end]


def _first_difference(one: bytes, other: bytes) -> int:
    """Offset of the first byte that differs, found by halving."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
