"""APSW and operating system errors, as the storage errors that a caller can handle."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from peen.errors import StorageDamaged, StorageError, StorageFailed, StorageFull, StorageNotWritable

FULL_TEXT: Final = "the disk is full; nothing of this change was written"
_FULL_BELOW_BYTES: Final = 64 * 1024
# The shared-memory file and a delayed allocation report a full disk as an I/O error, so the disk itself is asked.
_IOERR_OF_A_FULL_DISK: Final = frozenset(
    {apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMMAP, apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_FSYNC}
)
_BUSY: Final = (apsw.BusyError, apsw.LockedError, apsw.ProtocolError)
_DAMAGED: Final = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)
_NOT_WRITABLE: Final = (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError)


def storage_error(exc: BaseException, path: Path) -> StorageError | None:
    """What `exc` says about the file at `path`, or None if it is not about the file at all."""
    name = str(path)
    match exc:
        case StorageError():
            return exc
        case apsw.FullError():
            return StorageFull(name, FULL_TEXT)
        case apsw.IOError():
            if getattr(exc, "extendedresult", None) in _IOERR_OF_A_FULL_DISK and _is_full(path.parent):
                return StorageFull(name, FULL_TEXT)
            return StorageFailed(name, f"an I/O error: {exc}; nothing of this change was written")
        case apsw.Error() if isinstance(exc, _DAMAGED):
            return StorageDamaged(name, f"not a sound database: {exc}")
        case apsw.Error() if isinstance(exc, _NOT_WRITABLE):
            return StorageNotWritable(name, f"cannot be opened or written: {exc}")
        case apsw.Error() if isinstance(exc, _BUSY):
            return StorageFailed(name, f"another process holds the database: {exc}")
        case OSError():
            return _system_error(exc, name)
    return None


def _system_error(exc: OSError, name: str) -> StorageError:
    if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageFull(name, FULL_TEXT)
    if exc.errno in {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR}:
        return StorageNotWritable(name, f"cannot be opened or written: {exc}")
    return StorageFailed(name, str(exc))


def translated(exc: BaseException, path: Path) -> BaseException:
    """`exc` as the caller of a change gets it: a StorageError caused by it, or itself, unchanged."""
    error = storage_error(exc, path)
    if error is None or error is exc:
        return exc
    error.__cause__ = exc
    return error


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Let every error of the block that is about the file at `path` come out as a StorageError."""
    try:
        yield
    except (apsw.Error, OSError) as exc:
        error = storage_error(exc, path)
        if error is None:
            raise
        raise error from exc


def _is_full(directory: Path) -> bool:
    try:
        space = os.statvfs(directory)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < _FULL_BELOW_BYTES
