"""The steps in which files are changed: each is on disk or did not happen, and a failed one leaves no trace."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peen.tool.base import ToolError
from peen.tool.bounds import path_text
from peen.tool.directories import held_directory, unmake
from peen.tool.filesystem import FileContent, read_now
from peen.tool.paths import require_regular
from peen.tool.rename import rename_without_replacing, sync_directory

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_IN_PLACE: Final = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_NEW_NAME: Final = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
_CANNOT_RESERVE: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Disk:
    """One method a step, so that a test can make any of them fail. All block, and raise OSError."""

    def create(self, path: Path, data: bytes) -> None:
        """Write a new file, with the usual mode of the umask."""
        with _made(path, 0o666) as descriptor:
            _write_all(descriptor, data)
            os.fsync(descriptor)

    def create_like(self, path: Path, data: bytes, real: Path, status: os.stat_result) -> bool:
        """Write a new file with mode, owner and attributes of `real`, whose status is given.

        False if this account cannot make such a file there; then there is none.
        """
        try:
            with _made(path, 0o600) as descriptor:
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, status.st_uid, status.st_gid)
                _copy_attributes(real, descriptor)
                # After the owner, since a change of owner clears the set-user-id bits.
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
                _write_all(descriptor, data)
                os.fsync(descriptor)
        except OSError as exc:
            if exc.errno in _NO_NEW_NAME:
                return False
            raise
        return True

    def overwrite(self, real: Path, data: bytes, old: bytes) -> None:
        """Give a file other content under all its names. If that fails, the `old` one is put back."""
        descriptor = os.open(real, _IN_PLACE)
        try:
            require_regular(os.fstat(descriptor), real)
            try:
                if len(data) > len(old):
                    _reserve(descriptor, len(old), len(data))  # a full disk is noticed before anything is overwritten
                _put(descriptor, data)
            except BaseException:
                _put(descriptor, old)
                raise
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Replaces the target."""
        source.rename(target)

    def rename_new(self, source: Path, target: Path) -> None:
        """EEXIST if there is a target."""
        rename_without_replacing(source, target)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target, follow_symlinks=False)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def make_parents(self, real: Path) -> list[Path]:
        """Make the missing directories above a real path, all or none. Returns the new ones, outermost first."""
        made: list[Path] = []
        try:
            with held_directory(real.parent, made):
                return made
        except OSError:
            unmake(made)
            raise

    def sync(self, directory: Path) -> None:
        sync_directory(directory)


def require_writable(real: Path) -> None:
    """Raises: ToolError. A rename would not ask, but whoever protected the file meant it."""
    if not os.access(real, os.W_OK):
        raise ToolError("permission denied", f"{path_text(str(real))} is write-protected for this account")


@dataclass(frozen=True, slots=True)
class Seen:
    """A regular file as it was looked at, without its content."""

    sha256: str
    status: os.stat_result


def require_unchanged(real: Path, before: Seen | FileContent) -> None:
    """Raises: ToolError if the file has other content than a moment ago; OSError."""
    now, then = os.stat(real, follow_symlinks=False), before.status
    if _stamp(now) == _stamp(then):
        return
    # Touched, renamed or exchanged: its content decides.
    if now.st_size != then.st_size or read_now(real, now.st_size + 1).sha256 != before.sha256:
        raise changed_now(real)


def changed_now(real: Path) -> ToolError:
    return ToolError("stale hash", f"{path_text(str(real))} was changed at this moment; read it again, then retry")


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    # The change time cannot be set by anybody, and grows with every change of content.
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@contextlib.contextmanager
def _made(path: Path, mode: int) -> Iterator[int]:
    """A descriptor of a new file, which is removed if the block fails."""
    descriptor = os.open(path, _NEW, mode)
    try:
        yield descriptor
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _put(descriptor: int, data: bytes) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    _write_all(descriptor, data)
    os.ftruncate(descriptor, len(data))
    os.fsync(descriptor)


def _reserve(descriptor: int, start: int, end: int) -> None:
    try:
        os.posix_fallocate(descriptor, start, end - start)
    except OSError as exc:
        if exc.errno not in _CANNOT_RESERVE:
            raise


def _copy_attributes(real: Path, descriptor: int) -> None:
    """Access lists and other extended attributes, as far as this account may copy them."""
    with contextlib.suppress(OSError):
        for name in os.listxattr(real):
            with contextlib.suppress(OSError):
                os.setxattr(descriptor, name, os.getxattr(real, name))
