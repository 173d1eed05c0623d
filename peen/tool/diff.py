"""Unified diffs of known changes: nothing has to be searched for, so only the changed places are looked at."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from peen.tool.bounds import readable
from peen.tool.longline import LONG_BYTES, Span, changed_part, shortened
from peen.tool.splice import Splice, apply_splices

CONTEXT_LINES: Final = 3
_APART_LINES: Final = 2 * CONTEXT_LINES + 2


@dataclass(frozen=True, slots=True)
class _Change:
    """Old lines `first` up to (not including) `last`, counted from 0, become `new`.

    `removed` and `added` are these lines as they are shown: long ones are shortened around what changed in them.
    """

    first: int
    last: int
    new: list[bytes]
    removed: list[str]
    added: list[str]


def unified_diff(path: str, data: bytes, splices: Sequence[Splice]) -> str:
    """The change as `diff -u` would show it, empty if nothing changed. `splices` are sorted and do not overlap.

    Only the lines around the splices are looked at. Long lines are shortened to what changed in them.
    """
    shown: list[str] = []
    shift = 0
    for cluster in _clusters(data, splices):
        start, end = _back(data, cluster[0].start), _forward(data, cluster[-1].end)
        moved = [replace(splice, start=splice.start - start, end=splice.end - start) for splice in cluster]
        lines, before = _lines(data[start:end]), data.count(b"\n", 0, start)
        for hunk in _hunks(data[start:end], lines, moved):
            shown.append(_hunk_text(lines, hunk, before, shift))
            shift += sum(len(change.new) - (change.last - change.first) for change in hunk)
    return f"--- {path}\n+++ {path}\n" + "".join(shown) if shown else ""


def _clusters(data: bytes, splices: Sequence[Splice]) -> Iterator[list[Splice]]:
    """Splices in groups so far apart that no hunk can hold parts of two."""
    cluster: list[Splice] = []
    for splice in splices:
        if cluster and data.count(b"\n", cluster[-1].end, splice.start) > _APART_LINES:
            yield cluster
            cluster = []
        cluster.append(splice)
    if cluster:
        yield cluster


def _back(data: bytes, at: int) -> int:
    """The beginning of a line, as far before `at` as context reaches."""
    for _ in range(CONTEXT_LINES + 2):
        at = data.rfind(b"\n", 0, max(at, 0))
    return at + 1


def _forward(data: bytes, at: int) -> int:
    """The end of a line, as far behind `at` as context reaches."""
    for _ in range(CONTEXT_LINES + 2):
        found = data.find(b"\n", at)
        if found < 0:
            return len(data)
        at = found + 1
    return at


def _hunks(data: bytes, lines: list[bytes], splices: Sequence[Splice]) -> list[list[_Change]]:
    hunks: list[list[_Change]] = []
    for change in _changes(data, lines, splices):
        if hunks and change.first - hunks[-1][-1].last <= 2 * CONTEXT_LINES:
            hunks[-1].append(change)
        else:
            hunks.append([change])
    return hunks


def _lines(data: bytes) -> list[bytes]:
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _changes(data: bytes, lines: list[bytes], splices: Sequence[Splice]) -> Iterator[_Change]:
    """Splices widened to whole lines, those that share or touch lines put together, and what stayed equal taken off."""
    offsets = [0, *accumulate(map(len, lines))]
    group: list[Splice] = []
    first = last = 0
    for splice in splices:
        begins = min(bisect_right(offsets, splice.start), len(lines)) - 1
        ends = min(bisect_right(offsets, splice.end), len(lines))
        if group and begins > last:
            yield from _trimmed(data, lines, offsets, first, last, group)
            group = []
        if not group:
            first = begins
        group.append(splice)
        last = ends
    if group:
        yield from _trimmed(data, lines, offsets, first, last, group)


def _trimmed(
    data: bytes, lines: list[bytes], offsets: list[int], first: int, last: int, group: list[Splice]
) -> Iterator[_Change]:
    base = offsets[first]
    moved = [replace(splice, start=splice.start - base, end=splice.end - base) for splice in group]
    whole = data[base : offsets[last]]
    old, new = lines[first:last], _lines(apply_splices(whole, moved))
    shortest = min(len(old), len(new))
    head = next((at for at in range(shortest) if old[at] != new[at]), shortest)
    tail = next((at for at in range(shortest - head) if old[-1 - at] != new[-1 - at]), shortest - head)
    if head < len(old) - tail or head < len(new) - tail:
        before, old, new = old[:head], old[head : len(old) - tail], new[head : len(new) - tail]
        removed = _shown(old, new, (span for span, _ in _spans(whole, moved, before)))
        added = _shown(new, old, (span for _, span in _spans(whole, moved, before)))
        yield _Change(first + head, last - tail, new, removed, added)


def _spans(data: bytes, splices: Sequence[Splice], equal: list[bytes]) -> Iterator[tuple[Span, Span]]:
    """What really changes, before and after, as offsets behind lines that are equal: a splice also names what stays."""
    start, grown = sum(map(len, equal)), 0
    for splice in splices:
        before, after = changed_part(data[splice.start : splice.end], splice.new)
        at = splice.start - start
        yield before.moved(at), after.moved(at + grown)
        grown += len(splice.new) - (splice.end - splice.start)


def _shown(lines: list[bytes], others: list[bytes], spans: Iterable[Span]) -> list[str]:
    """Lines as text. `spans` are the changed parts of them all, `others` what they were or became."""
    if max(map(len, lines), default=0) <= LONG_BYTES:
        return list(map(readable, lines))
    changed, shown, offset = list(spans), [], 0
    for index, line in enumerate(lines):
        parts: list[Span] = []
        if len(line) > LONG_BYTES:
            end = offset + len(line)
            parts = [span.clipped(offset, end).moved(-offset) for span in changed if span.touches(offset, end)]
            if len(lines) == len(others):  # one by one they tell more exactly what changed
                own, _ = changed_part(line, others[index])
                parts = [part.clipped(own.start, own.end) for part in parts if part.touches(own.start, own.end)]
        shown.append(shortened(line, parts))
        offset += len(line)
    return shown


def _hunk_text(lines: list[bytes], hunk: list[_Change], before: int, shift: int) -> str:
    """`lines` are those behind the first `before` of the file, which has grown by `shift` lines before this hunk."""
    start = max(hunk[0].first - CONTEXT_LINES, 0)
    end = min(hunk[-1].last + CONTEXT_LINES, len(lines))
    grown = sum(len(change.new) - (change.last - change.first) for change in hunk)
    body, at = [], start
    for change in hunk:
        body += [_line(" ", shortened(line)) for line in lines[at : change.first]]
        body += [_line("-", line) for line in change.removed]
        body += [_line("+", line) for line in change.added]
        at = change.last
    body += [_line(" ", shortened(line)) for line in lines[at:end]]
    first = before + start
    old, new = _range(first, end - start), _range(first + shift, end - start + grown)
    return f"@@ -{old} +{new} @@\n" + "".join(body)


def _range(start: int, count: int) -> str:
    # An empty range names the line before it.
    return f"{start + 1 if count else start},{count}"


def _line(mark: str, line: str) -> str:
    return mark + line + ("" if line.endswith("\n") else "\n\\ No newline at end of file\n")
