"""Reading ripgrep's JSON lines as they come, and keeping as many matches as may be shown."""

from __future__ import annotations

import base64
import codecs
import os
from pathlib import Path
from typing import Final

import msgspec

from peen.tool.base import ToolError
from peen.tool.bounds import path_text, readable
from peen.tool.content import foreign
from peen.tool.filesystem import read_head, read_to_judge

MAX_TEXT_BYTES: Final = 500  # of one matching line
_BEFORE_MATCH_BYTES: Final = 150


class TextMatch(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A matching line: absolute path, number from 1, and its text without the line end."""

    path: str
    line: int
    text: str


class _Text(msgspec.Struct, frozen=True):
    """ripgrep gives `text` where it is UTF-8, else `bytes` in base64."""

    text: str = ""
    coded: str | None = msgspec.field(name="bytes", default=None)

    @property
    def raw(self) -> bytes:
        return self.text.encode() if self.coded is None else base64.b64decode(self.coded)


class _Submatch(msgspec.Struct, frozen=True):
    start: int
    end: int


class _Data(msgspec.Struct, frozen=True):
    path: _Text | None = None
    lines: _Text | None = None
    line_number: int | None = None
    absolute_offset: int = 0
    submatches: list[_Submatch] = []
    binary_offset: int | None = None


class _Message(msgspec.Struct, frozen=True):
    type: str
    data: _Data


_decode: Final = msgspec.json.Decoder(_Message).decode


class MatchCollector:
    """Takes ripgrep's output and holds the first `max_matches` matches that take at most `max_bytes` of JSON.

    Of files that readFile would not show as text it holds none. They are looked at once they have matches, as far as
    `max_file_bytes`.
    """

    def __init__(self, max_matches: int, max_bytes: int, max_file_bytes: int) -> None:
        self._max_matches, self._left_bytes = max_matches, max_bytes
        self._max_file_bytes = max_file_bytes
        self._partial = bytearray()
        self._matches: list[TextMatch] = []
        self._places: list[int] = []  # of the matches of the present file: offsets in it
        self._full = False
        self.truncated = False
        self.began = False

    def feed(self, chunk: bytes) -> bool:
        """Take in more output. False once enough is there and the rest is not needed."""
        self._partial += chunk
        *lines, rest = self._partial.split(b"\n") if b"\n" in chunk else [self._partial]
        self._partial = rest
        return all(self._take(_decode(line)) for line in lines)

    def sorted_matches(self) -> list[TextMatch]:
        return sorted(self._matches, key=lambda match: (match.path, match.line))

    def _take(self, message: _Message) -> bool:
        data = message.data
        if message.type == "begin":
            self.began = True
            self._places = []
        elif message.type == "match":
            self._add(data)
        elif message.type == "end":
            self._judge(data)
            # Only here is it known whether the matches of this file count.
            self.truncated = self.truncated or self._full
            return not self._full
        return True

    def _add(self, data: _Data) -> None:
        if self._full or data.path is None or data.lines is None:
            return
        at = data.submatches[0].start if data.submatches else 0
        self._keep(data.path, data.line_number or 0, data.lines.raw.rstrip(b"\r\n"), at, data.absolute_offset + at)

    def _keep(self, path: _Text, number: int, line: bytes, match_at: int, place: int) -> None:
        match = TextMatch(path=path_text(os.fsdecode(path.raw)), line=number, text=_shortened(line, match_at))
        size = len(msgspec.json.encode(match)) + 1
        if len(self._matches) == self._max_matches or size > self._left_bytes:
            self._full = True
            return
        self._left_bytes -= size
        self._matches.append(match)
        self._places.append(place)

    def _judge(self, data: _Data) -> None:
        """The end of a file: its matches stay only if it is text."""
        if data.path is None or not (self._places or self._full):
            return
        has_nul = data.binary_offset is not None
        content = _content(data.path, self._max_file_bytes, whole=has_nul)
        if content is None or foreign(content) is not None:
            self._forget_this_file()
        elif has_nul:
            self._find_lines(data.path, content)

    def _find_lines(self, path: _Text, content: bytes) -> None:
        """Give the matches their lines in a file with NUL, which ripgrep may take for a line end."""
        places, full = self._places, self._full
        self._forget_this_file()
        shift = len(codecs.BOM_UTF8) if content.startswith(codecs.BOM_UTF8) else 0  # ripgrep leaves that out
        last = -1
        for place in places:
            start = content.rfind(b"\n", 0, place + shift) + 1
            end = content.find(b"\n", start)
            if start != last:
                line = content[start : end if end >= 0 else len(content)].removesuffix(b"\r")
                self._keep(path, content.count(b"\n", 0, start) + 1, line, place + shift - start, place)
            last = start
        self._full = self._full or full

    def _forget_this_file(self) -> None:
        for match in self._matches[len(self._matches) - len(self._places) :]:
            self._left_bytes += len(msgspec.json.encode(match)) + 1
        del self._matches[len(self._matches) - len(self._places) :]
        self._places = []
        self._full = False


def _content(path: _Text, max_bytes: int, *, whole: bool) -> bytes | None:
    """A file, or as much of it as it can be judged by; None if it is gone or no file any more."""
    try:
        return (read_head if whole else read_to_judge)(Path(os.fsdecode(path.raw)), max_bytes)
    except ToolError:
        return None


def _shortened(line: bytes, match_at: int) -> str:
    """A line as text, cut around the match where it is long."""
    if len(line) <= MAX_TEXT_BYTES:
        return readable(line)
    start = max(min(match_at - _BEFORE_MATCH_BYTES, len(line) - MAX_TEXT_BYTES), 0)
    while start < len(line) and 0x80 <= line[start] < 0xC0:  # not inside a character
        start += 1
    end = start + MAX_TEXT_BYTES
    piece = line[start:end].decode("utf-8", "replace").rstrip("\ufffd") if end < len(line) else readable(line[start:])
    return ("…" if start else "") + piece + ("…" if end < len(line) else "")
