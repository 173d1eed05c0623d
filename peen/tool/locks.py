"""One change of a file at a time: among the agents of this worker, and among all programs that lock what they change.

Within a worker the agents queue for a lock in memory. Other workers see nothing of that, so the file itself is locked
too, as `flock` does it. A rename puts another file in its place, and that has to be locked as well before it is the
file that everybody else would lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import trio

from peen.tool.base import ToolError
from peen.tool.bounds import path_text
from peen.tool.paths import Identity, failure, identity_of

BUSY_S: Final = 10.0  # how long a file may be locked by others before a call gives up
_FIRST_SLEEP_S: Final = 0.001
_LONGEST_SLEEP_S: Final = 0.05
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAY_NOT: Final = (errno.EACCES, errno.EPERM)  # then it may not be read either, and the tool says so
_CANNOT_LOCK: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EBADF)  # the last: NFS


class FileLocks:
    """Changes of one file happen one after another: those of a worker in the order in which they were asked for.

    A file is known by its real path, and one with several names (hard links) by its identity as well.
    """

    def __init__(self) -> None:
        # A lock lives as long as somebody holds it or waits for it.
        self._locks: WeakValueDictionary[Path | Identity, trio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def holding(self, *real_paths: Path) -> AsyncIterator[frozenset[Path]]:
        """Hold the locks of symlink-resolved paths. Gives those where nothing was when it began to lock.

        The wait for agents of this worker has no deadline of its own: the call has one. Raises: ToolError, `conflict`,
        if another program has a file locked for 10 s. A file system without locks is used without them.
        """
        async with AsyncExitStack() as held:
            # All paths before all identities, each in order, so that two calls never wait for each other.
            paths = sorted(set(real_paths))
            for path in paths:
                await held.enter_async_context(self._lock(path))
            for identity in sorted({identity_of(status) for _, status in _files(paths) if status.st_nlink > 1}):
                await held.enter_async_context(self._lock(identity))
            absent = _absent(paths)
            held.enter_context(await _locked(paths))
            yield absent

    def _lock(self, key: Path | Identity) -> trio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = trio.Lock()
        return lock


def lock_new(path: Path) -> int | None:
    """Lock a new file before it gets the name by which others know it; nobody does, so this never waits.

    Returns a descriptor to close, or None for a file that this account may not read. Raises: OSError.
    """
    try:
        descriptor = os.open(path, _OPEN)
    except OSError as exc:
        if exc.errno in _MAY_NOT:
            return None
        raise
    try:
        _flock(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


async def _locked(paths: list[Path]) -> ExitStack:
    """The locks of all regular files among `paths`, to be entered and left. Raises: ToolError."""
    until, sleep_s = trio.current_time() + BUSY_S, _FIRST_SLEEP_S
    while True:
        with ExitStack() as held:
            busy = _try_to_lock(paths, held)
            if busy is None:
                return held.pop_all()
        # Nothing is held during a wait, so that two programs never wait for each other.
        if trio.current_time() >= until:
            raise ToolError(
                "conflict",
                f"another program has held a lock (flock) on {path_text(str(busy))} for {BUSY_S:.0f} s. Nothing was "
                "changed; wait until it is done, then retry, or find it with runCommand (fuser -v, lslocks)",
            )
        await trio.sleep(sleep_s)
        sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)


def _try_to_lock(paths: Iterable[Path], held: ExitStack) -> Path | None:
    """Lock the files, which `held` unlocks. Returns one that is locked by another program or was just exchanged."""
    locked: set[Identity] = set()
    # In the same order everywhere, so that of several programs one always comes through.
    for path, status in sorted(_files(paths), key=lambda file: identity_of(file[1])):
        if identity_of(status) in locked:
            continue  # another name of the same file, which would wait for itself
        try:
            descriptor = os.open(path, _OPEN)
        except OSError as exc:
            if exc.errno in _MAY_NOT:
                continue
            if exc.errno in (errno.ENOENT, errno.ELOOP):
                return path
            raise failure(exc, path) from exc
        held.callback(os.close, descriptor)
        try:
            _flock(descriptor)
            now = identity_of(path.lstat())
        except (BlockingIOError, FileNotFoundError):
            return path
        except OSError as exc:
            raise failure(exc, path) from exc
        if not now == identity_of(status) == identity_of(os.fstat(descriptor)):
            return path
        locked.add(now)
    return None


def _flock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        if exc.errno not in _CANNOT_LOCK:
            raise


def _absent(paths: Iterable[Path]) -> frozenset[Path]:
    return frozenset(path for path in paths if not os.path.lexists(path))


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """The regular files among real paths. What cannot be looked at is left to whoever opens it."""
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                yield path, status
