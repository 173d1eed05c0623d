"""Whole files in and out: bounded reads that never block, and writes that are on disk or did not happen."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from peen.entropy import Entropy
from peen.tool.base import ToolError
from peen.tool.bounds import path_text
from peen.tool.paths import regular_status_of, require_regular, told_to_the_model
from peen.tool.rename import rename_without_replacing, sync_directory

DIRECT_BYTES: Final = 1024 * 1024  # up to here reading is cheaper than handing it to a thread
_READ_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file as it was at one moment."""

    data: bytes
    sha256: str
    status: os.stat_result


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def read_whole(path: Path, *, max_bytes: int) -> FileContent:
    """Read a regular file. Raises: ToolError, `limit exceeded` if it is larger than `max_bytes`."""
    if regular_status_of(path).st_size <= DIRECT_BYTES:
        return _read(path, max_bytes)
    return await trio.to_thread.run_sync(_read, path, max_bytes, abandon_on_cancel=True)


def read_head(path: Path, max_bytes: int) -> bytes:
    """The first bytes of a regular file. Raises: ToolError."""
    with told_to_the_model(path), open(os.open(path, _READ_FLAGS), "rb", buffering=0) as file:
        require_regular(os.fstat(file.fileno()), path)
        return file.read(max_bytes)


def _read(path: Path, max_bytes: int) -> FileContent:
    with told_to_the_model(path), open(os.open(path, _READ_FLAGS), "rb") as file:
        # It may have been exchanged since it was looked at.
        status = os.fstat(file.fileno())
        require_regular(status, path)
        if status.st_size > max_bytes:
            raise too_large(path, status.st_size, max_bytes)
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:  # it grows, or it is one of those files whose size is not known beforehand
        raise too_large(path, len(data), max_bytes)
    return FileContent(data, sha256_hex(data), status)


def too_large(path: Path, size: int, max_bytes: int) -> ToolError:
    return ToolError("limit exceeded", f"{path_text(str(path))} has at least {size} bytes; the limit is {max_bytes}")


async def replace_file(real: Path, data: bytes, before: os.stat_result, entropy: Entropy) -> None:
    """Give an existing regular file new content, durably; mode, owner and attributes stay. Raises: ToolError.

    The new content takes the place of the old one at once, by a rename. Where that would break a hard link or lose
    the owner, or where the directory cannot be written, the file is written in place.
    Once started, it is carried out whatever happens to the caller.
    """
    with told_to_the_model(real):
        await trio.to_thread.run_sync(_replace, real, data, before, _temporary_name(entropy))


async def create_file(real: Path, data: bytes, entropy: Entropy) -> None:
    """Create a file, and its parents where they are missing, durably and without ever replacing another.

    The mode is the usual one of the umask. Raises: ToolError, `already exists` if somebody was faster.
    """
    with told_to_the_model(real):
        await trio.to_thread.run_sync(_create, real, data, _temporary_name(entropy))


def _temporary_name(entropy: Entropy) -> str:
    return f".peen-{entropy.token(8).hex()}.tmp"


def _replace(real: Path, data: bytes, before: os.stat_result, temporary_name: str) -> None:
    if not os.access(real, os.W_OK):  # a rename would not ask, but whoever protected the file meant it
        raise ToolError("permission denied", f"{path_text(str(real))} is write-protected for this account")
    if before.st_nlink > 1:
        _write_in_place(real, data)
        return
    temporary = real.with_name(temporary_name)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        if exc.errno not in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
            raise
        _write_in_place(real, data)
        return
    try:
        kept = _fill_like(descriptor, data, real, before)
        if kept:
            temporary.rename(real)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if kept:
        sync_directory(real.parent)
    else:
        temporary.unlink()
        _write_in_place(real, data)


def _fill_like(descriptor: int, data: bytes, real: Path, before: os.stat_result) -> bool:
    """Make the open file a copy of `real` with other content. False if this account cannot give it that owner."""
    with open(descriptor, "wb") as file:
        if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
            try:
                os.fchown(descriptor, before.st_uid, before.st_gid)
            except PermissionError:
                return False
        _copy_attributes(real, descriptor)
        # After the owner, since a change of owner clears the set-user-id bits.
        os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    return True


def _copy_attributes(real: Path, descriptor: int) -> None:
    """Access lists and other extended attributes, as far as this account may copy them."""
    with contextlib.suppress(OSError):
        for name in os.listxattr(real):
            with contextlib.suppress(OSError):
                os.setxattr(descriptor, name, os.getxattr(real, name))


def _write_in_place(real: Path, data: bytes) -> None:
    descriptor = os.open(real, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "wb") as file:
        require_regular(os.fstat(descriptor), real)
        file.write(data)
        file.flush()
        os.ftruncate(descriptor, len(data))  # afterwards, so that a full disk is noticed while the old end is there
        os.fsync(descriptor)


def _create(real: Path, data: bytes, temporary_name: str) -> None:
    missing = list(itertools.takewhile(lambda directory: not directory.exists(), real.parents))
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as exc:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(real)) from exc
    temporary = real.with_name(temporary_name)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        rename_without_replacing(temporary, real)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(real.parent)
    for directory in missing:
        sync_directory(directory.parent)
