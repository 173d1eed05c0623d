"""One lock for each file that is being changed, shared by all agents of a worker."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from weakref import WeakValueDictionary

import trio

_Identity = tuple[int, int]  # device and inode; `paths` cannot be imported, since contexts hold locks


class FileLocks:
    """Changes of one file happen one after another, in the order in which they were asked for.

    A file is known by its real path, and one with several names (hard links) by its identity as well.
    """

    def __init__(self) -> None:
        # A lock lives as long as somebody holds it or waits for it.
        self._locks: WeakValueDictionary[Path | _Identity, trio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def holding(self, *real_paths: Path) -> AsyncIterator[None]:
        """Hold the locks of symlink-resolved paths. The wait has no deadline of its own: the call has one."""
        async with AsyncExitStack() as held:
            # All paths before all identities, each in order, so that two calls never wait for each other.
            for path in sorted(set(real_paths)):
                await held.enter_async_context(self._lock(path))
            for identity in sorted(set(_of_many_names(real_paths))):
                await held.enter_async_context(self._lock(identity))
            yield

    def _lock(self, key: Path | _Identity) -> trio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = trio.Lock()
        return lock


def _of_many_names(paths: Iterable[Path]) -> Iterator[_Identity]:
    for path in paths:
        with contextlib.suppress(OSError):  # absent, as a rule; whoever opens it will say what is wrong
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                yield status.st_dev, status.st_ino
