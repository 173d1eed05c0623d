"""SIGINT, taken only where nothing is half done."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Final, Self, TypeVar

T = TypeVar("T")

_NOT_OURS: Final = (signal.SIG_IGN, None)
"""Ignored, as in a script's background; or handled by something that is not Python."""


class Interrupts:
    """While it is entered, SIGINT is KeyboardInterrupt inside `during`, and waits for the next one anywhere else.

    Only a second SIGINT while the first waits is raised at once, wherever that is: something hangs there.
    Ends: gives the former handler back; a SIGINT that still waits then came too late to matter.
    """

    def __init__(self) -> None:
        self._waits = self._may_break = False
        self._former: Callable[[int, FrameType | None], object] | int | signal.Handlers | None = None

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGINT) not in _NOT_OURS:
            self._former = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)
            self._former = None

    def during(self, work: Callable[[], T]) -> T:
        """Do `work`, which may be broken off anywhere. Raises: KeyboardInterrupt, also for one that came before."""
        try:
            self._may_break = True
            if self._waits:
                self._waits = False
                raise KeyboardInterrupt
            return work()
        finally:
            self._may_break = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._may_break or self._waits:
            self._waits = False
            raise KeyboardInterrupt
        self._waits = True
