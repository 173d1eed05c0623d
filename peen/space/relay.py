"""What a worker prints goes into the log: line by line, each of bounded length, and no faster than a log can bear."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import trio

MAX_LINE_BYTES: Final = 8 * 1024
BURST_LINES: Final = 1000
LINES_PER_S: Final = 100.0
RECEIVE_BYTES: Final = 16 * 1024

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class LineCutter:
    """Cuts bytes into lines of at most 8 KiB; a longer one comes in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes, without their ends and with control characters spelled out."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = [piece for line in whole for piece in _pieces(line)]
        if len(self._rest) >= MAX_LINE_BYTES:
            cut = len(self._rest) - len(self._rest) % MAX_LINE_BYTES
            lines += _pieces(self._rest[:cut])
            self._rest = self._rest[cut:]
        return [_text(line) for line in lines]

    def end(self) -> list[str]:
        """What is left when no more comes: one line without an end, or nothing."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []


class Budget:
    """How many lines may pass: 1,000 at once, then 100 a second. Counts those that may not."""

    def __init__(self, now_s: float) -> None:
        self._left = float(BURST_LINES)
        self._at_s = now_s
        self.dropped = 0

    def take(self, now_s: float) -> bool:
        """Whether one more line may pass at `now_s` (monotonic seconds)."""
        self._left = min(BURST_LINES, self._left + (now_s - self._at_s) * LINES_PER_S)
        self._at_s = now_s
        if self._left < 1:
            self.dropped += 1
            return False
        self._left -= 1
        return True

    def report(self) -> int:
        """Lines dropped since the last report."""
        dropped, self.dropped = self.dropped, 0
        return dropped


async def relay(stream: trio.abc.ReceiveStream, *, line: Callable[[str], None], dropped: Callable[[int], None]) -> None:
    """Hand each line of `stream` to `line` until its end; `dropped` hears how many were left out. Closes `stream`.

    No deadline: the owner cancels it once the process that writes is gone.
    """
    cutter, budget = LineCutter(), Budget(trio.current_time())

    def hand_over(lines: list[str]) -> None:
        for text in lines:
            if budget.take(trio.current_time()):
                if left_out := budget.report():
                    dropped(left_out)
                line(text)

    try:
        async with stream:
            async for data in stream:
                hand_over(cutter.feed(bytes(data)))
    finally:
        hand_over(cutter.end())
        if left_out := budget.report():
            dropped(left_out)


def _pieces(line: bytes) -> list[bytes]:
    return [line[at : at + MAX_LINE_BYTES] for at in range(0, len(line), MAX_LINE_BYTES)] or [b""]


def _text(line: bytes) -> str:
    text = line.removesuffix(b"\r").decode("utf-8", "replace")
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", text)
