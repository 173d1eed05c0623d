"""Whole files out: one file gets new content, or a new file appears, durably, or nothing happened."""

from __future__ import annotations

import contextlib
from pathlib import Path

import trio

from peen.entropy import Entropy
from peen.tool.directories import sync_parents, unmake
from peen.tool.disk import Disk, require_unchanged, require_writable
from peen.tool.filesystem import FileContent
from peen.tool.paths import told_to_the_model


async def replace_file(real: Path, data: bytes, before: FileContent, entropy: Entropy) -> None:
    """Give an existing regular file new content, durably; mode, owner and attributes stay. Raises: ToolError.

    The new content takes the place of the old one at once, by a rename, if that is still `before`. Where that would
    break a hard link or lose the owner, or where the directory cannot be written, the file is written in place.
    Once started, it is carried out whatever happens to the caller.
    """
    with told_to_the_model(real):
        await trio.to_thread.run_sync(_replace, real, data, before, temporary_name(entropy), Disk())


async def create_file(real: Path, data: bytes, entropy: Entropy) -> None:
    """Create a file, and its parents where they are missing, durably and without ever replacing another.

    The mode is the usual one of the umask. Raises: ToolError, `already exists` if somebody was faster.
    """
    with told_to_the_model(real):
        await trio.to_thread.run_sync(_create, real, data, temporary_name(entropy), Disk())


def temporary_name(entropy: Entropy) -> str:
    """Of a file that is there for a moment, beside one that is being changed."""
    return f".peen-{entropy.token(8).hex()}.tmp"


def _replace(real: Path, data: bytes, before: FileContent, name: str, disk: Disk) -> None:
    require_writable(real)
    temporary = real.with_name(name)
    if before.status.st_nlink > 1 or not disk.create_like(temporary, data, real, before.status):
        require_unchanged(real, before)
        disk.overwrite(real, data, before.data)
        return
    try:
        require_unchanged(real, before)
        disk.rename(temporary, real)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise
    disk.sync(real.parent)


def _create(real: Path, data: bytes, name: str, disk: Disk) -> None:
    made = disk.make_parents(real)
    temporary = real.with_name(name)
    try:
        disk.create(temporary, data)
        try:
            disk.rename_new(temporary, real)
        except BaseException:
            with contextlib.suppress(OSError):
                disk.unlink(temporary)
            raise
    except BaseException:
        unmake(made)
        raise
    disk.sync(real.parent)
    sync_parents(made)
