"""How much of what jobs print may be stored: the least valuable thing in the store is the first to be refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from peen.store.jobs import Allowance

LOOK_S: Final = 1.0
"""How long a look at the disk holds while little is stored."""
_MIB: Final = 1024 * 1024
LEAST_FLOOR_BYTES: Final = 16 * _MIB
MOST_FLOOR_BYTES: Final = 512 * _MIB
_SHARE: Final = 20
_COPIES: Final = 2
"""What is stored is written to the log first, and then to the database."""


class OutputRoom:
    """Knows whether the disk of a database has room for output. Used on the Trio thread alone.

    The disk is looked at once a second, and before so much was stored since that the floor may have been reached.
    """

    def __init__(
        self,
        database: Path,
        *,
        min_free_bytes: int | None = None,
        max_job_bytes: int = 0,
        now_s: Callable[[], float],
        space_of: Callable[[Path], tuple[int, int]] | None = None,
    ) -> None:
        """`min_free_bytes` must stay free: 0 is no floor, None 5 % of the disk within 16 to 512 MiB.

        `max_job_bytes` is the limit on each job, 0 for none. `space_of` gives the free and all the bytes of the disk
        that a database is on.
        """
        self._database, self._min_free, self._now_s = database, min_free_bytes, now_s
        self._space_of = space_of or free_space
        self._floor = self._left = 0
        self._next_look_s = float("-inf")
        limit = f"no more than {max_job_bytes} bytes of a job are (PEEN_MAX_JOB_OUTPUT_BYTES)"
        self._allowed = Allowance(max_job_bytes, limit)

    def allowance(self, size: int) -> Allowance:
        """What may be stored now, for `size` bytes of output that are about to be."""
        if self._min_free == 0:
            return self._allowed
        now_s = self._now_s()
        if now_s >= self._next_look_s or self._left < _COPIES * size:
            self._look()
            self._next_look_s = now_s + LOOK_S
        if self._left < _COPIES * size:
            kept = f"{self._floor} bytes of the disk of PEEN_STATE_DIR are kept free for more important things"
            reason = f"{kept} (PEEN_JOB_OUTPUT_MIN_FREE_BYTES)"
            return self._allowed._replace(refusal=reason)
        self._left -= _COPIES * size
        return self._allowed

    def _look(self) -> None:
        free, total = self._space_of(self._database)
        floor = min(max(total // _SHARE, LEAST_FLOOR_BYTES), MOST_FLOOR_BYTES)
        self._floor = floor if self._min_free is None else self._min_free
        self._left = free - self._floor


def free_space(database: Path) -> tuple[int, int]:
    """Free bytes of the disk of this file, less the size of its log, which is copied in the end, and bytes of the disk.

    A disk that cannot be asked has as much as there can be: whatever is wrong with it, writing will tell.
    """
    try:
        space = os.statvfs(database.parent)
        log_bytes = _size_of(database.with_name(database.name + "-wal"))
    except OSError:
        return 2**63 - 1, 2**63 - 1
    return space.f_bavail * space.f_frsize - log_bytes, space.f_blocks * space.f_frsize


def _size_of(path: Path) -> int:
    """0 if there is no such file. Raises: OSError."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
