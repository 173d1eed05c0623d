"""A rename that never replaces anything, and making it last."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path
from typing import Final

_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1
_NO_SUCH_CALL: Final = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


def rename_without_replacing(
    source: Path | str, target: Path | str, *, source_in: int | None = None, target_in: int | None = None
) -> None:
    """Rename within one file system. Relative names start at the directories `source_in` and `target_in`.

    Raises: OSError, EEXIST if there is a target, and then nothing was changed.
    Where system or file system cannot do that in one step, anything but a directory gets its new name first and then
    loses the old one: it is never lost, and a crash leaves both names. For a directory, which cannot have two names,
    the target is looked at first: one that appears in between makes the rename fail, unless it is an empty directory.
    """
    code = _renameat2(source, target, source_in, target_in)
    if code in _NO_SUCH_CALL:
        _rename_in_steps(source, target, source_in, target_in)
    elif code:
        raise OSError(code, os.strerror(code), str(target))


def sync_directory(directory: Path | str, *, at: int | None = None) -> None:
    """Wait until what was created, renamed and removed in a directory is on disk. Raises: OSError."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
    except PermissionError:  # it may be written but not read: the change was made, and nobody can wait for it
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _renameat2(source: Path | str, target: Path | str, source_in: int | None, target_in: int | None) -> int:
    """Zero or an error number."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # a C library without it
        return errno.ENOSYS
    done = call(
        _AT_FDCWD if source_in is None else source_in,
        os.fsencode(source),
        _AT_FDCWD if target_in is None else target_in,
        os.fsencode(target),
        _RENAME_NOREPLACE,
    )
    return 0 if done == 0 else ctypes.get_errno()


def _rename_in_steps(source: Path | str, target: Path | str, source_in: int | None, target_in: int | None) -> None:
    if not stat.S_ISDIR(os.stat(source, dir_fd=source_in, follow_symlinks=False).st_mode):
        os.link(source, target, src_dir_fd=source_in, dst_dir_fd=target_in, follow_symlinks=False)
        os.unlink(source, dir_fd=source_in)
        return
    try:
        os.stat(target, dir_fd=target_in, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(source, target, src_dir_fd=source_in, dst_dir_fd=target_in)
    else:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
