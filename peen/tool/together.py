"""Several files changed together: all of them, or none.

First everything that is needed is written beside the files; that is what takes space and fails. Then the new content
takes its place by renames, while the old one is kept under another name. If anything fails, that is taken back in
reverse order: the old files themselves return, not copies of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from peen.tool.base import ToolError
from peen.tool.bounds import path_text
from peen.tool.directories import unmake
from peen.tool.disk import Disk, Seen, changed_now, require_unchanged
from peen.tool.filesystem import read_now, sha256_hex
from peen.tool.locks import lock_new
from peen.tool.outline import Outline
from peen.tool.paths import Identity, identity_of, told_to_the_model

_NO_LINKS: Final = (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Change(Protocol):
    """One change of one file. All methods block and raise OSError or ToolError, but for `finish`.

    `real` is the path that a failure is told of. `undo` works after any part of the others, `finish` after `commit`.
    """

    real: Path

    def stage(self, disk: Disk) -> None:
        """Write what is needed. Nothing that anybody looks at changes."""

    def commit(self, disk: Disk) -> None:
        """Make the change."""

    def undo(self, disk: Disk) -> None:
        """Take back what was done."""

    def finish(self, disk: Disk) -> None:
        """Throw away what would have been needed to undo it."""

    @property
    def directories(self) -> list[Path]:
        """Those in which something was changed."""


class _NewFile:
    """A file made by a change, locked until the change is final: if it is undone, nobody has changed it meanwhile."""

    def __init__(self, temporary: Path, real: Path) -> None:
        self.temporary, self._real = temporary, real
        self._descriptor: int | None = None
        self.put: Identity | None = None

    def place(self, rename: Callable[[Path, Path], None]) -> None:
        """Give it its name by `rename`. Raises: OSError."""
        self._descriptor = lock_new(self.temporary)
        put = identity_of(self.temporary.lstat())
        rename(self.temporary, self._real)
        self.put = put

    def require_own(self) -> None:
        """Raises: OSError if somebody else has put something else there meanwhile, which is theirs."""
        if identity_of(self._real.lstat()) != self.put:
            raise OSError(errno.ESTALE, "it was exchanged meanwhile", str(self._real))

    def unlock(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Update:
    """New content for a file; mode, owner, links and attributes stay.

    `content` makes the new content from the old one. `source` is where the file is before the changes begin.
    `name` is that of a file that does not exist, made for this change alone.
    """

    def __init__(self, real: Path, source: Path, seen: Seen, content: Callable[[bytes], bytes], name: str) -> None:
        self.real, self._source, self._seen, self._content = real, source, seen, content
        self._new, self._kept = _NewFile(real.with_name(name), real), real.with_name(name.removesuffix(".tmp") + ".old")
        self._in_place: tuple[bytes, bytes] | None = None  # old and new, where a rename would lose something
        self._overwriting = self._linked = self._moved_away = False
        self.sha256 = ""
        self.outline: Outline | None = None

    @property
    def directories(self) -> list[Path]:
        return [self.real.parent]

    def stage(self, disk: Disk) -> None:
        require_unchanged(self._source, self._seen)
        old = read_now(self._source, max(self._seen.status.st_size, 1))
        if old.sha256 != self._seen.sha256:
            raise changed_now(self._source)
        new = self._content(old.data)
        self.sha256, self.outline = sha256_hex(new), Outline.of(new)
        if old.status.st_nlink > 1 or not disk.create_like(self._new.temporary, new, self._source, old.status):
            self._in_place = old.data, new

    def commit(self, disk: Disk) -> None:
        require_unchanged(self.real, self._seen)
        if self._in_place is not None:
            old, new = self._in_place
            self._overwriting = True
            disk.overwrite(self.real, new, old)
            return
        self._keep(disk)
        self._new.place(disk.rename)

    def undo(self, disk: Disk) -> None:
        try:
            self._undo(disk)
        finally:
            self._new.unlock()

    def finish(self, disk: Disk) -> None:
        self._new.unlock()
        _forget(self._kept, disk)

    def _undo(self, disk: Disk) -> None:
        if self._overwriting and self._in_place is not None:
            old, new = self._in_place
            disk.overwrite(self.real, old, new)
        elif self._new.put is not None:
            self._new.require_own()
            disk.rename(self._kept, self.real)
        else:
            if self._moved_away:
                disk.rename_new(self._kept, self.real)
            elif self._linked:
                disk.unlink(self._kept)
            self._new.temporary.unlink(missing_ok=True)

    def _keep(self, disk: Disk) -> None:
        try:
            disk.link(self.real, self._kept)
            self._linked = True
        except OSError as exc:
            if exc.errno not in _NO_LINKS:
                raise
            disk.rename_new(self.real, self._kept)
            self._moved_away = True


class Add:
    """A new file where there is none, with the directories that are missing above it."""

    def __init__(self, real: Path, data: bytes, name: str) -> None:
        self.real, self._data, self._new = real, data, _NewFile(real.with_name(name), real)
        self._made: list[Path] = []
        self.sha256, self.outline = sha256_hex(data), Outline.of(data)

    @property
    def directories(self) -> list[Path]:
        return [self.real.parent, *(made.parent for made in self._made)]

    def stage(self, disk: Disk) -> None:
        self._made = disk.make_parents(self.real)
        disk.create(self._new.temporary, self._data)

    def commit(self, disk: Disk) -> None:
        self._new.place(disk.rename_new)

    def undo(self, disk: Disk) -> None:
        try:
            if self._new.put is not None:
                self._new.require_own()
                disk.unlink(self.real)
            self._new.temporary.unlink(missing_ok=True)
            unmake(self._made)
        finally:
            self._new.unlock()

    def finish(self, disk: Disk) -> None:
        self._new.unlock()


class Delete:
    """A file that goes. Until all is done it has another name."""

    def __init__(self, real: Path, seen: Seen, name: str) -> None:
        self.real, self._seen = real, seen
        self._kept = real.with_name(name.removesuffix(".tmp") + ".old")
        self._moved_away = False

    @property
    def directories(self) -> list[Path]:
        return [self.real.parent]

    def stage(self, disk: Disk) -> None:
        pass

    def commit(self, disk: Disk) -> None:
        require_unchanged(self.real, self._seen)
        disk.rename_new(self.real, self._kept)
        self._moved_away = True

    def undo(self, disk: Disk) -> None:
        if self._moved_away:
            disk.rename_new(self._kept, self.real)

    def finish(self, disk: Disk) -> None:
        _forget(self._kept, disk)


class Move:
    """Another name for a file, where nothing has that name yet."""

    def __init__(self, real: Path, destination: Path, seen: Seen) -> None:
        self.real, self._destination, self._seen = real, destination, seen
        self._made: list[Path] = []
        self._moved = False

    @property
    def directories(self) -> list[Path]:
        return [self.real.parent, self._destination.parent, *(made.parent for made in self._made)]

    def stage(self, disk: Disk) -> None:
        self._made = disk.make_parents(self._destination)

    def commit(self, disk: Disk) -> None:
        require_unchanged(self.real, self._seen)
        try:
            disk.rename_new(self.real, self._destination)
        except OSError as exc:
            shown = path_text(str(self._destination))
            if exc.errno == errno.EXDEV:
                raise ToolError("failed", f"{shown} is on another file system; use runCommand (mv -n)") from exc
            if exc.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise ToolError("already exists", f"{shown} already exists") from exc
            raise
        self._moved = True

    def undo(self, disk: Disk) -> None:
        if self._moved:
            disk.rename_new(self._destination, self.real)
        unmake(self._made)

    def finish(self, disk: Disk) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the changes were not made. `stuck` are those that could not be taken back; none, as a rule."""

    problem: ToolError
    stuck: tuple[Change, ...]


def carry_out(changes: Sequence[Change], disk: Disk) -> Failure | None:
    """Make all changes, durably; None if that is done. Blocks."""
    begun: list[Change] = []
    try:
        for change in changes:
            begun.append(change)
            with told_to_the_model(change.real):
                change.stage(disk)
        for change in changes:
            with told_to_the_model(change.real):
                change.commit(disk)
        for directory in _directories(changes):
            with told_to_the_model(directory):
                disk.sync(directory)
    except ToolError as exc:
        return Failure(exc, _taken_back(begun, disk))
    except BaseException:
        _taken_back(begun, disk)
        raise
    for change in changes:
        change.finish(disk)
    return None


def _taken_back(begun: Sequence[Change], disk: Disk) -> tuple[Change, ...]:
    """Undo in reverse order. Returns the changes for which that failed."""
    directories = _directories(begun)
    stuck: list[Change] = []
    for change in reversed(begun):
        try:
            change.undo(disk)
        except (OSError, ToolError):
            stuck.append(change)
    for directory in directories:
        with contextlib.suppress(OSError):
            disk.sync(directory)
    return tuple(reversed(stuck))


def _directories(changes: Sequence[Change]) -> list[Path]:
    return sorted({directory for change in changes for directory in change.directories})


def _forget(path: Path, disk: Disk) -> None:
    # The change is made and on disk. That a second name of the old content stays is no reason to say otherwise.
    with contextlib.suppress(OSError):
        disk.unlink(path)
