"""The files of a database: where they may be, who may read them, and what must reach the disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from peen.errors import StorageNotWritable

PRIVATE: Final = 0o600
COMPANIONS: Final = ("-wal", "-shm", "-journal")


def companions(path: Path) -> list[Path]:
    """The files that SQLite keeps beside the one at `path`."""
    return [path.with_name(path.name + ending) for ending in COMPANIONS]


def check_path(path: Path) -> None:
    """Refuse a path that SQLite could read as something else, or that leads somewhere else.

    Raises: StorageNotWritable.
    """
    if any(sign in str(path) for sign in "?#"):
        raise StorageNotWritable(str(path), "the path of a database must not contain '?' or '#'")
    for each in (path, *companions(path)):
        if each.is_symlink():
            raise StorageNotWritable(str(each), "is a symbolic link; a database must be a plain file")
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise StorageNotWritable(str(path), "is not a plain file")
    if not path.parent.is_dir():
        raise StorageNotWritable(str(path), "its directory does not exist")


def make_private(path: Path) -> None:
    """Let nobody but the owner read the database and what SQLite keeps beside it."""
    for each in (path, *companions(path)):
        if each.exists() and stat.S_IMODE(each.stat().st_mode) != PRIVATE:
            each.chmod(PRIVATE)


def create_private(path: Path) -> None:
    """Make an empty file that only the owner can read, in place of any that is there."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE))


def publish(made: Path, path: Path) -> None:
    """Give the finished file `made` its name `path`, so that a crash leaves the old state or the new one."""
    sync(made)
    made.replace(path)
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a half-made database and what SQLite keeps beside it."""
    path.unlink(missing_ok=True)
    remove_companions(path)


def remove_companions(path: Path) -> None:
    """Remove what SQLite keeps beside the database at `path`."""
    for each in companions(path):
        each.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until the file or directory at `path` is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
