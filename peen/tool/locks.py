"""One lock for each file that is being changed, shared by all agents of a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from weakref import WeakValueDictionary

import trio


class FileLocks:
    """Changes of one real path happen one after another, in the order in which they were asked for.

    Two names of one file through hard links are two paths here; the content hash still catches what they do
    to each other.
    """

    def __init__(self) -> None:
        # A lock lives as long as somebody holds it or waits for it.
        self._locks: WeakValueDictionary[Path, trio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def holding(self, real_path: Path) -> AsyncIterator[None]:
        """Hold the lock of a symlink-resolved path. The wait has no deadline of its own: the call has one."""
        lock = self._locks.get(real_path)
        if lock is None:
            lock = self._locks[real_path] = trio.Lock()
        async with lock:
            yield
