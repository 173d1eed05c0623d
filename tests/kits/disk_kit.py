"""Disks that are full, or that nobody may write to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def tiny_disk(directory: Path, *, kib: int) -> Iterator[Path]:
    """A real file system of this size. Only root can make one."""
    with _mounted(directory, f"size={kib}k,mode=0700"):
        yield directory


@contextmanager
def unwritable(directory: Path) -> Iterator[Path]:
    """A directory in which this user may not write; root, who may everywhere else, gets a read-only disk."""
    if os.geteuid() != 0:
        directory.mkdir(mode=0o500)
        yield directory
        return
    with _mounted(directory, "ro,size=64k,mode=0700"):
        yield directory


def fill(directory: Path) -> Path:
    """Take all the space there is; the file that holds it."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return filler


@contextmanager
def _mounted(directory: Path, options: str) -> Iterator[None]:
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
