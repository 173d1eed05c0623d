"""Server-sent events from bytes that arrive in any split: incremental, linear in time, bounded in memory."""

from __future__ import annotations

from typing import Final, NamedTuple

from peen.errors import ModelError

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
"""The longest line, and the most data that one event may gather over its lines."""

_BOM: Final = b"\xef\xbb\xbf"
_LF: Final = 0x0A
_CR: Final = 0x0D


class SseEvent(NamedTuple):
    """One event. `name` is empty where the stream names none; `data` is what stood behind `data:`, joined by LF."""

    name: str
    data: bytes


class SseParser:
    """Takes the bytes of one stream; gives back the events that are whole.

    Lines end with LF, CR or CRLF, mixed as they like. Comments, `id` and `retry` are left out, and so are events
    without data. Nothing is decoded: UTF-8 never holds a line end inside a character, so a split cannot hurt one.
    """

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_event_bytes
        self._line = bytearray()  # the start of a line whose end has not come yet
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._name = ""
        self._at_start = True
        self._skip_lf = False  # the last piece ended with CR: an LF that follows belongs to it

    def feed(self, piece: bytes) -> list[SseEvent]:
        """The events that `piece` completes. Raises: ModelError `bad_stream` when one grows past its limit."""
        if not piece:
            return []
        if self._skip_lf and piece[0] == _LF:
            piece = piece[1:]
        self._skip_lf = False
        lines = piece.splitlines()
        if not lines:
            return []
        last = piece[-1]
        rest = b"" if last in (_LF, _CR) else lines.pop()
        self._skip_lf = last == _CR
        events: list[SseEvent] = []
        if lines and self._line:
            self._check_size(len(self._line) + len(lines[0]))
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        for line in lines:
            self._take(line, events)
        if rest:
            self._check_size(len(self._line) + len(rest))
            self._line += rest
        return events

    def finish(self) -> list[SseEvent]:
        """What was complete but for its line end or its blank line when the stream ended."""
        events: list[SseEvent] = []
        if self._line:
            line = bytes(self._line)
            self._line.clear()
            self._take(line, events)
        self._take(b"", events)
        return events

    def _take(self, line: bytes, events: list[SseEvent]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if line.startswith(b"data:"):
            self._add(line[6:] if line.startswith(b"data: ") else line[5:])
        elif not line:
            if self._data:
                events.append(SseEvent(self._name, b"\n".join(self._data)))
                self._data.clear()
                self._data_bytes = 0
            self._name = ""
        elif line.startswith(b"event:"):
            self._name = line[6:].removeprefix(b" ").decode("utf-8", "replace")
        elif line == b"data":
            self._add(b"")
        # Anything else is a comment, or a field that means nothing to us.

    def _add(self, value: bytes) -> None:
        self._data_bytes += len(value) + 1
        self._check_size(self._data_bytes)
        self._data.append(value)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise ModelError(
                f"the provider sent an event of more than {self._max_bytes} bytes", kind="bad_stream", retryable=True
            )
