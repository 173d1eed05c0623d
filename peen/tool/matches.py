"""Reading ripgrep's JSON lines as they come, and keeping as many matches as may be shown."""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from peen.tool.bounds import path_text, readable

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
    submatches: list[_Submatch] = []
    binary_offset: int | None = None


class _Message(msgspec.Struct, frozen=True):
    type: str
    data: _Data


_decode: Final = msgspec.json.Decoder(_Message).decode


class MatchCollector:
    """Takes ripgrep's output and holds the first `max_matches` matches that take at most `max_bytes` of JSON."""

    def __init__(self, max_matches: int, max_bytes: int) -> None:
        self._max_matches, self._left_bytes = max_matches, max_bytes
        self._partial = bytearray()
        self._matches: list[TextMatch] = []
        self._of_this_file = 0
        self._full = False
        self.truncated = False
        self.saw_binary = False
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
            self._of_this_file = 0
        elif message.type == "match":
            self._add(data)
        elif message.type == "end":
            if data.binary_offset is not None:
                self.saw_binary = True
                self._forget_this_file()
            # Only here is it known whether the matches of this file count.
            self.truncated = self.truncated or self._full
            return not self._full
        return True

    def _add(self, data: _Data) -> None:
        if self._full or data.path is None or data.lines is None:
            return
        match = TextMatch(
            path=path_text(data.path.raw.decode("utf-8", "surrogateescape")),
            line=data.line_number or 0,
            text=_shortened(data.lines.raw.rstrip(b"\r\n"), data.submatches[0].start if data.submatches else 0),
        )
        size = len(msgspec.json.encode(match)) + 1
        if len(self._matches) == self._max_matches or size > self._left_bytes:
            self._full = True
            return
        self._left_bytes -= size
        self._matches.append(match)
        self._of_this_file += 1

    def _forget_this_file(self) -> None:
        for match in self._matches[len(self._matches) - self._of_this_file :]:
            self._left_bytes += len(msgspec.json.encode(match)) + 1
        del self._matches[len(self._matches) - self._of_this_file :]
        self._full = False


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
