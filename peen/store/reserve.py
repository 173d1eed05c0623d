"""Space set aside for the day the disk is full, so that what ends can still be recorded."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from peen.store.files import PRIVATE

RESERVE_BYTES: Final = 8 * 1024 * 1024
_EVERY_S: Final = 30.0  # how often a missing reserve is tried again while the store works
_EVERY_SPENT_S: Final = 1.0  # and while new work is refused: space that came back should be noticed soon


class Reserve:
    """A file of `size` bytes of real blocks beside the database. Used by the writer alone.

    It is *spent* from the moment when a terminal commit needed its space until the file could be made again. In
    that time the space belongs to terminal commits: new work would only eat what the next one needs. Nothing here
    raises: a reserve that cannot be had is one that is not there.
    """

    def __init__(self, database: Path, *, size: int) -> None:
        self.path = database.with_name(database.name + ".reserve")
        self.size = size
        self.spent = False
        self._next_try_s = 0.0

    def spend(self) -> None:
        """Give the space back to the disk. Does nothing if there is no reserve."""
        with suppress(OSError):
            self.path.unlink()
            self.spent = True
            self._next_try_s = 0.0

    def restore(self, now_s: float) -> None:
        """Make the file if it is missing and it is time to try again. `now_s` is a monotonic clock."""
        if self.size == 0 or now_s < self._next_try_s:
            return
        self._next_try_s = now_s + (_EVERY_SPENT_S if self.spent else _EVERY_S)
        if self._is_whole() or (self._has_room() and self._make()):
            self.spent = False

    def _is_whole(self) -> bool:
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return found.st_size == self.size and found.st_blocks * 512 >= self.size

    def _has_room(self) -> bool:
        # Asked first: an attempt that must fail would take what is left away from others for a moment.
        try:
            space = os.statvfs(self.path.parent)
        except OSError:
            return False
        return space.f_bavail * space.f_frsize >= self.size

    def _make(self) -> bool:
        """Whether the file could be made. Some file systems cannot promise blocks."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, PRIVATE)
        except OSError:
            return False
        try:
            os.posix_fallocate(descriptor, 0, self.size)
        except OSError:
            with suppress(OSError):
                self.path.unlink()
            return False
        finally:
            os.close(descriptor)
        return True
