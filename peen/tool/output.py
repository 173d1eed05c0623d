"""What a command prints: kept within bounds as it comes, and made readable at the end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from peen.tool.bounds import fit_head, fit_tail, json_bytes, readable

_EDGE_BYTES: Final = 1024  # how far a cut is moved to fall between two lines
_MARKER_BYTES: Final = 60

_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor movement, erasing
    r"|\x1b[\]PX^_][^\x07\x1b\n]{0,2048}(?:\x07|\x1b\\)"  # strings: window titles, links
    r"|\x1b[ -/]*[0-~]"  # all shorter ones
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_ERASING: Final = re.compile(r"(?:\x1b\[|\x9b)[0-2]?[JK]")
_ERASED: Final = "\x18"  # in their place for a while; it is invisible as well
_SPACE: Final = " " + _ERASED
_NO_LETTERS: Final = re.compile(r"[\W\d_]+")
_REDRAWN: Final = "[... {} bytes of redrawn lines left out; peen job output and the REST API have them ...]\n"
_INVISIBLE: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class OutputCapture:
    """The first and the last bytes of a stream, each at most half of `max_bytes`, and the count of all."""

    def __init__(self, max_bytes: int) -> None:
        self._half = max(max_bytes // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def feed(self, chunk: bytes) -> None:
        self.total += len(chunk)
        if (room := self._half - len(self._head)) > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk[-self._half :]
        if len(self._tail) > 2 * self._half:  # not at every chunk, since it moves the bytes
            del self._tail[: -self._half]

    def parts(self) -> tuple[bytes, bytes]:
        """Beginning and end. Nothing lies between them if together they are as long as `total`."""
        return bytes(self._head), bytes(self._tail[-self._half :])


@dataclass(frozen=True, slots=True)
class Shown:
    """One stream as a model sees it. `omitted` bytes are left out between `head` and `tail`."""

    head: str
    tail: str
    omitted: int

    @property
    def size(self) -> int:
        """Bytes that `text` takes in JSON."""
        return json_bytes(self.text)

    @property
    def text(self) -> str:
        if not self.omitted:
            return self.head + self.tail
        return f"{self.head}\n[... {self.omitted} bytes left out ...]\n{self.tail}"

    def fitted(self, max_bytes: int) -> Shown:
        """The same within `max_bytes` of JSON: the middle goes, the ends stay."""
        if self.size <= max_bytes:
            return self
        room = max(max_bytes - _MARKER_BYTES, 0)
        whole = self.head + self.tail
        # An end of one long text, or the pieces on each side of what is already left out.
        head, tail = (self.head, self.tail) if self.omitted else (whole, whole)
        head = fit_head(head, max(room // 2, room - json_bytes(tail) if self.omitted else 0))
        tail = fit_tail(tail, room - json_bytes(head))
        return Shown(head, tail, self.omitted + len(whole.encode()) - len(head.encode()) - len(tail.encode()))


def show(capture: OutputCapture) -> Shown:
    """The captured bytes as text, without escape sequences, redraws and control characters."""
    head, tail = capture.parts()
    omitted = capture.total - len(head) - len(tail)
    if not omitted:
        return Shown(clean(readable(head + tail)), "", 0)
    # Cut between lines where one ends nearby; else at least not inside a character.
    at = head.rfind(b"\n", max(len(head) - _EDGE_BYTES, 0))
    kept_head = head[:at] if at >= 0 else head[: whole_characters(head)]
    at = tail.find(b"\n", 0, _EDGE_BYTES)
    kept_tail = tail[at + 1 :] if at >= 0 else tail.lstrip(bytes(range(0x80, 0xC0)))
    omitted += len(head) - len(kept_head) + len(tail) - len(kept_tail)
    return Shown(clean(readable(kept_head)), clean(readable(kept_tail)), omitted)


def clean(text: str) -> str:
    """What a person would have seen in the end: the last state of a line that was drawn several times.

    How much was drawn over is told in a last line. Where carriage returns end lines, as in some old files, instead of
    going back to draw again, every line is shown.
    """
    if "\x1b" in text or "\x9b" in text:
        text = _ESCAPES.sub("", _ERASING.sub(_ERASED, text))
    redrawn = 0
    if "\r" in text:
        rows = [_drawn(row) for row in text.split("\n")]
        text, redrawn = "\n".join(row for row, _ in rows), sum(count for _, count in rows)
    if "\b" in text:
        text = "\n".join(map(_without_overstrikes, text.split("\n")))
    text = _INVISIBLE.sub("", text)
    if redrawn:
        text += ("" if text.endswith("\n") else "\n") + _REDRAWN.format(redrawn)
    return text


def _drawn(row: str) -> tuple[str, int]:
    """What is left of a row that holds carriage returns, and how many bytes of text were drawn over."""
    if "\r" not in row:
        return row, 0
    parts = _erasing_told(row.split("\r"))
    states = [part for part in parts if part.strip(_ERASED)]
    if len(states) < 2:
        return "".join(states), 0
    if _are_lines(row, parts, states):
        return "\n".join(states), 0
    hidden, last = [state.strip(_SPACE) for state in states[:-1]], states[-1].strip(_SPACE)
    return states[-1], sum(len(state.encode()) for state in hidden if state != last)


def _erasing_told(parts: list[str]) -> list[str]:
    """The parts with `_ERASED` for those that do nothing but cover with blanks what was drawn before."""
    told, drawn = [], 0
    for part in parts:
        covers = 0 < drawn <= len(part) and not part.strip(" ")
        told.append(_ERASED if covers else part)
        drawn = len(part) or drawn
    return told


def _are_lines(row: str, parts: Sequence[str], states: Sequence[str]) -> bool:
    """Whether these are lines rather than states of one line: nothing is erased, and most have other words.

    What counts or moves differs in digits and signs alone.
    """
    if "\b" in row or any(_ERASED in part for part in parts):
        return False
    words = {_NO_LETTERS.sub("", state) for state in states}
    return 2 * len(words - {""}) > len(states)


def _without_overstrikes(row: str) -> str:
    if "\b" not in row:
        return row
    drawn: list[str] = []
    for character in row:
        if character != "\b":
            drawn.append(character)
        elif drawn:
            drawn.pop()
    return "".join(drawn)


def whole_characters(data: bytes) -> int:
    """Length of `data` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if needed > back else len(data)
        if byte < 0x80:
            break
    return len(data)
