"""Bodies of HTTP/1.1 answers, cut out of the bytes that arrive. Pure: bytes are read elsewhere.

h11 reads the heads. It could read bodies too, but where every piece of a stream comes alone, its events cost half of
what a piece costs; what is here costs next to nothing.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

import h11

MAX_LINE_BYTES: Final = 4096
"""The longest line between two chunks."""
MAX_TRAILER_BYTES: Final = 64 * 1024

_CUT: Final = "it ended in the middle of the answer"
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;.*)?[ \t]*")
_NO_BODY: Final = frozenset({204, 304})


class Body(Protocol):
    """One body. `over` when all of it was fed; `fault` is why it cannot go on, in words that quote nothing of it."""

    over: bool
    fault: str
    surplus: bool
    """More came than belongs to it: whatever that is, it must not pass for the next answer."""

    def feed(self, data: bytes) -> bytes:
        """What `data`, which is not empty, holds of the body. Sets `over` or `fault`; then it must not be called."""

    def end(self) -> None:
        """The server has closed the connection."""


class ChunkedBody:
    """A body in chunks; the fields behind it are skipped."""

    def __init__(self) -> None:
        self.over, self.fault, self.surplus = False, "", False
        self._rest = b""  # the beginning of a line whose end has not come yet
        self._left = 0  # bytes of the chunk that have not come yet
        self._in_line_end = False  # behind a chunk, in front of its CRLF
        self._in_trailer = False
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> bytes:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        pieces: list[bytes] = []
        at = self._cut(data, pieces)
        if self.over:
            self.surplus = at < len(data)
        elif not self.fault:
            self._rest = data[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def end(self) -> None:
        self.fault = _CUT

    def _cut(self, data: bytes, pieces: list[bytes]) -> int:
        """Take all that is whole; how far that goes."""
        at, size = 0, len(data)
        while at < size and not (self.over or self.fault):
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._in_line_end = not self._left
            elif self._in_line_end:
                if size - at < 2:
                    break
                if data[at : at + 2] != b"\r\n":
                    self.fault = "a chunk is longer than it says"
                at += 2
                self._in_line_end = False
            else:
                line_end = b"\n" if self._in_trailer else b"\r\n"  # fields may end in LF alone
                end = data.find(line_end, at)
                if end < 0:
                    if size - at > MAX_LINE_BYTES:
                        self.fault = "a line between two chunks is too long"
                    break
                self._line(data[at:end])
                at = end + len(line_end)
        return at

    def _line(self, line: bytes) -> None:
        if self._in_trailer:
            self._trailer_bytes += len(line)
            self.over = line in (b"", b"\r")
            if self._trailer_bytes > MAX_TRAILER_BYTES:
                self.fault = "the fields behind the answer are too long"
            return
        found = _SIZE.fullmatch(line)
        if found is None:
            self.fault = "a chunk does not begin with its size"
            return
        self._left = int(found[1], 16)
        self._in_trailer = not self._left


class SizedBody:
    """A body whose length was said in front of it."""

    def __init__(self, size: int) -> None:
        self.over, self.fault, self.surplus = not size, "", False
        self._left = size

    def feed(self, data: bytes) -> bytes:
        self.surplus = len(data) > self._left
        piece = data[: self._left]
        self._left -= len(piece)
        self.over = not self._left
        return piece

    def end(self) -> None:
        self.fault = _CUT


class OpenBody:
    """A body that ends with its connection."""

    def __init__(self) -> None:
        self.over, self.fault, self.surplus = False, "", False

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> None:
        self.over = True


def body_of(method: str, head: h11.Response) -> Body:
    """The body that follows `head`, by RFC 9112, section 6.3. h11 has checked the fields that say so."""
    if method == "HEAD" or head.status_code in _NO_BODY:
        return SizedBody(0)
    fields = dict(head.headers)
    if b"transfer-encoding" in fields:
        return ChunkedBody()
    if b"content-length" in fields:
        return SizedBody(int(fields[b"content-length"]))
    return OpenBody()


def keeps_open(head: h11.Response) -> bool:
    """Whether the server means to serve another request over the same connection."""
    options = b",".join(value for name, value in head.headers if name == b"connection").lower()
    return head.http_version >= b"1.1" and b"close" not in [option.strip() for option in options.split(b",")]
