"""Why a text does not occur in a file: what a model usually gets wrong, looked for one after another.

Nothing here changes what is matched. A near miss is named, with the line and what is there, so that the next attempt
is right; it is never taken for a match.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import msgspec

from peen.tool.bounds import readable

_MAX_LINES: Final = 50_000  # of a file that is compared line by line; it takes some 50 ms
_MAX_COMPARED: Final = 2_000  # lines that are compared letter by letter
_MAX_LINE_BYTES: Final = 300  # of a line that is compared letter by letter
_SHOWN_CHARACTERS: Final = 80
_SHOWN_BEFORE: Final = 30  # of them before the first difference
_TELLING_BYTES: Final = 3  # a line with fewer, such as a lone brace, says nothing about the place

_NUMBERED: Final = re.compile(r"[ \t]*\d+(?:\t|→|: ?|\| ?|  ?)")
_ESCAPES: Final = re.compile(r"\\([nrt\"'\\])")
_ESCAPING: Final = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t"}
_ENTITIES: Final = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&amp;": "&"}
_PLAIN: Final = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2013": "-",
        "\u2014": "-",
        "\u2026": "...",
        "\u00a0": " ",
    }
)


def why_absent(text: bytes, old: bytes, *, first_line: int = 1) -> str:
    r"""What may have gone wrong, in a few words that go behind "... does not occur"; it begins with `; `.

    `text` is the searched part of a file and begins with line `first_line` of it; both have `\n` line ends.
    """
    written = readable(old)
    for words, rewrite in _REWRITES:
        changed = rewrite(written)
        at = text.find(changed.encode()) if changed not in ("", written) else -1
        if at >= 0:
            number = first_line + text.count(b"\n", 0, at)
            return f"; {words} it does at line {number}"
    if text.count(b"\n") > _MAX_LINES:
        return "; find the place with searchText and copy it exactly"
    lines = text.split(b"\n")
    wanted = old.strip(b"\n").split(b"\n")
    return (
        _other_white_space(lines, wanted, first_line)
        or _most_alike(lines, wanted, first_line)
        or _alike_line(lines, wanted, first_line)
        or "; nothing in it is like that: look with readFile and copy the text exactly"
    )


def shown_line(line: bytes, other: bytes = b"") -> str:
    """A line in quotes with tabs and the like visible, cut around the first character that differs from `other`."""
    text, compared = readable(line), readable(other)
    at = next((at for at, pair in enumerate(zip(text, compared, strict=False)) if pair[0] != pair[1]), 0)
    start = 0 if len(text) <= _SHOWN_CHARACTERS else max(at - _SHOWN_BEFORE, 0)
    piece = text[start : start + _SHOWN_CHARACTERS]
    cut = start + len(piece) < len(text)
    return ("…" if start else "") + msgspec.json.encode(piece).decode() + ("…" if cut else "")


def _without_numbers(text: str) -> str:
    lines = text.split("\n")
    if not all(_NUMBERED.match(line) for line in lines if line.strip()):
        return text
    return "\n".join(_NUMBERED.sub("", line, count=1) for line in lines)


def _without_trailing_space(text: str) -> str:
    return "\n".join(line.rstrip(" \t\r") for line in text.split("\n"))


def _unescaped(text: str) -> str:
    return _ESCAPES.sub(lambda found: _ESCAPED.get(found[1], found[1]), text)


def _escaped(text: str) -> str:
    return text.translate(_ESCAPING)


def _escaped_with_quotes(text: str) -> str:
    return msgspec.json.encode(text).decode()[1:-1]


def _without_entities(text: str) -> str:
    for entity, character in _ENTITIES.items():
        text = text.replace(entity, character)
    return text


_REWRITES: Final[Sequence[tuple[str, Callable[[str], str]]]] = (
    ("without its line numbers", _without_numbers),
    ("without the white space at the ends of its lines", _without_trailing_space),
    ("without the line ends around it", lambda text: text.strip("\n")),
    (r"with real characters in place of escapes such as \n and \"", _unescaped),
    (r"with escapes such as \n and \" as the file has them", _escaped),
    (r"with escapes such as \n and \" as the file has them", _escaped_with_quotes),
    ("with < > & in place of &lt; &gt; &amp;", _without_entities),
    ("with plain quotes, dashes and spaces", lambda text: text.translate(_PLAIN)),
)


def _other_white_space(lines: Sequence[bytes], wanted: Sequence[bytes], first_line: int) -> str:
    words = [line.split() for line in wanted]
    if not any(words):
        return ""
    for start in range(len(lines) - len(words) + 1):
        if all(lines[start + at].split() == words[at] for at in range(len(words))):
            at = _first_difference(lines[start:], wanted)
            if at is None:
                return f"; without the empty lines around it it does at line {first_line + start}"
            return f"; only white space differs: {_told(lines, start + at, wanted[at], first_line)}"
    return ""


def _most_alike(lines: Sequence[bytes], wanted: Sequence[bytes], first_line: int) -> str:
    """The place at which most lines are the same, and the first of its lines that is not."""
    numbers: dict[bytes, list[int]] = {}
    for at, line in enumerate(wanted):
        if len(line.strip()) >= _TELLING_BYTES:
            numbers.setdefault(line.strip(), []).append(at)
    votes = Counter(start - at for start, line in enumerate(lines) for at in numbers.get(line.strip(), ()))
    if not votes:
        return ""
    most = max(votes.values())
    start = min(place for place, count in votes.items() if count == most)
    before = max(-start, 0)  # so many of its lines would come before the first one of the file
    where = f"; it is most like line {first_line + start + before} and on, but"
    if before:
        return f"{where} nothing is before that"
    differs = _first_difference(lines[start : start + len(wanted)], wanted)
    if differs is None:
        return f"{where} that is where the file ends"
    return f"{where} {_told(lines, start + differs, wanted[differs], first_line)}"


def _first_difference(lines: Sequence[bytes], wanted: Sequence[bytes]) -> int | None:
    return next((at for at, (there, given) in enumerate(zip(lines, wanted, strict=False)) if there != given), None)


def _told(lines: Sequence[bytes], at: int, given: bytes, first_line: int) -> str:
    there = lines[at]
    return f"line {first_line + at} is {shown_line(there, given)}, not {shown_line(given, there)}"


def _alike_line(lines: Sequence[bytes], wanted: Sequence[bytes], first_line: int) -> str:
    """A line that is nearly the first one. Only so many and so short ones are compared as take no time."""
    given = next((line.strip() for line in wanted if line.strip()), b"")
    if not _TELLING_BYTES <= len(given) <= _MAX_LINE_BYTES:
        return ""
    short = (line for line in lines if abs(len(line.strip()) - len(given)) <= len(given) // 2)
    near = difflib.get_close_matches(
        readable(given), [readable(line.strip()) for line in islice(short, _MAX_COMPARED)], n=1, cutoff=0.6
    )
    if not near:
        return ""
    at = next(at for at, line in enumerate(lines) if readable(line.strip()) == near[0])
    return f"; the nearest is line {first_line + at}, {shown_line(lines[at], given)}"
