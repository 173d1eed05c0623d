"""How a command ends: its exit code, and what it says on standard error."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

from peen.errors import ConfigurationInvalid, PeenError, Refused

COMPLETED: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
"""Wrong usage, a wrong setting, or a request that the controller does not accept. Nothing was stored."""
CANCELLED: Final = 3
UNFINISHED: Final = 4
"""The turn was interrupted or paused, or nobody can tell any more how it goes on."""
NO_CONTROLLER: Final = 5
"""None is running and none could be started."""
INTERRUPTED: Final = 130
"""SIGINT, as shells count it."""


class CommandEnds(Exception):
    """The command cannot go on. The text is for people, `code` for scripts."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class NotSent(PeenError):
    """The controller went away before the message was sent: another one may be tried."""

    code = "CONNECTION_LOST"


class ServesOthers(NotSent):
    """The controller does not allow the workspace, but ends by itself: the next one may allow it."""


def say(text: str) -> None:
    """A line on standard error for each line of `text`. It does not matter if nobody can read it."""
    with suppress(OSError, ValueError):  # ValueError: the stream was closed
        for line in text.splitlines():
            print(f"peen: {printable(line)}", file=sys.stderr, flush=True)


def code_of(error: PeenError) -> int:
    """The exit code for an error that ends a command."""
    if isinstance(error, Refused | ConfigurationInvalid):
        return REFUSED
    return NO_CONTROLLER


def printable(text: str) -> str:
    """`text` on one line, without what a terminal would obey or could not show."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
