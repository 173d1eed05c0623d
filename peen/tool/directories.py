"""Directories held by a descriptor: what happens to their names meanwhile no longer matters."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from peen.tool.rename import sync_directory

_HOLD: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def held_directory(real: Path, made: list[Path] | None = None) -> Iterator[int]:
    """A descriptor of a directory given by its real path; one that has become a link, at any level, is refused.

    With `made`, missing directories are created with the usual mode and added to that list, the outermost first.
    Raises: OSError; what was made until then stays, see `unmake`.
    """
    held = os.open("/", _HOLD)
    try:
        at = Path("/")
        for part in real.parts[1:]:
            at /= part
            inner = _inner(held, at, made)
            os.close(held)
            held = inner
        yield held
    finally:
        os.close(held)


def make_directories(real: Path) -> list[Path]:
    """Create a directory and what is missing above it, durably, all or none. Returns the new ones, outermost first.

    Raises: OSError.
    """
    made: list[Path] = []
    try:
        with held_directory(real, made):
            pass
    except OSError:
        unmake(made)
        raise
    sync_parents(made)
    return made


def unmake(made: list[Path]) -> None:
    """Take back directories that were created in vain, as far as nobody else uses them by now."""
    for directory in reversed(made):
        with contextlib.suppress(OSError):
            directory.rmdir()


def sync_parents(made: list[Path]) -> None:
    """Wait until new directories are on disk. Raises: OSError."""
    for directory in made:
        sync_directory(directory.parent)


def _inner(held: int, at: Path, made: list[Path] | None) -> int:
    try:
        return os.open(at.name, _HOLD, dir_fd=held)
    except FileNotFoundError:
        if made is None:
            raise
    with contextlib.suppress(FileExistsError):  # somebody was faster
        os.mkdir(at.name, dir_fd=held)
        made.append(at)
    return os.open(at.name, _HOLD, dir_fd=held)
