"""Walking a tree by descriptors: one directory is open at a time, however deep the tree is, and no link is followed."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from peen.tool.paths import Identity, identity_of

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class TooManyEntries(Exception):
    """The tree has more entries than may be removed at once."""


@dataclass(frozen=True, slots=True)
class Step:
    """`enter` a directory, `unlink` anything else, `leave` a directory and remove it."""

    kind: Literal["enter", "unlink", "leave"]
    name: str
    identity: Identity = (0, 0)  # of a directory that is entered


class Walker:
    """Stands in a directory. Borrows the one it starts from, owns every other.

    Names are given relative to where it stands. A directory that is moved or exchanged meanwhile is noticed, since
    it is compared with what was entered: nothing outside of the tree is ever touched.
    """

    def __init__(self, start: int) -> None:
        self.here = self._start = start
        self._entered: list[tuple[str, Identity]] = []

    @property
    def depth(self) -> int:
        return len(self._entered)

    @property
    def names(self) -> list[str]:
        """The directories that were entered, the outermost first."""
        return [name for name, _ in self._entered]

    def enter(self, name: str, expected: Identity | None = None) -> Identity:
        """Go into a directory. Raises: OSError, ESTALE if it is not the expected one."""
        inner = os.open(name, _OPEN, dir_fd=self.here)
        identity = identity_of(os.fstat(inner))
        if expected not in (None, identity):
            os.close(inner)
            raise OSError(errno.ESTALE, "it was exchanged meanwhile")
        self._move_to(inner)
        self._entered.append((name, identity))
        return identity

    def leave(self) -> str:
        """Go up, and return the name of what was left. Raises: OSError, ESTALE if that was moved elsewhere."""
        if len(self._entered) == 1:
            outer = self._start
        else:
            outer = os.open("..", _OPEN, dir_fd=self.here)
            if identity_of(os.fstat(outer)) != self._entered[-2][1]:
                os.close(outer)
                raise OSError(errno.ESTALE, "it was moved elsewhere meanwhile")
        self._move_to(outer)
        return self._entered.pop()[0]

    def entries(self, at_most: int) -> list[tuple[str, bool]]:
        """Names with whether each is a directory, in order of name. Raises: TooManyEntries, OSError."""
        with os.scandir(self.here) as found:
            entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(found, at_most + 1)]
        if len(entries) > at_most:
            raise TooManyEntries
        return sorted(entries)

    def close(self) -> None:
        self._move_to(self._start)

    def _move_to(self, descriptor: int) -> None:
        if self.here != self._start:
            os.close(self.here)
        self.here = descriptor
