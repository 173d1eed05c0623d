"""Removing a tree: looked through as a whole before anything goes, then removed step by step."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import trio

from peen.tool.base import ToolError
from peen.tool.bounds import path_text
from peen.tool.directories import held_directory
from peen.tool.entry import Entry
from peen.tool.paths import failure, identity_of, told_to_the_model
from peen.tool.protected import Protected
from peen.tool.rename import sync_directory
from peen.tool.treewalk import Step, TooManyEntries, Walker

_NAMED_ENTRIES: Final = 50
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Removal:
    """`removed` entries, and why it ended early if it did: the problem says what is left."""

    removed: int
    problem: ToolError | None = None


def remove_entry(entry: Entry) -> Removal:
    """Remove a file, a link or an empty directory. Blocks. Raises: ToolError, and then nothing was removed."""
    name = entry.real.name
    with told_to_the_model(entry.real), held_directory(entry.real.parent) as directory:
        entry.require_unchanged(directory)
        if entry.is_directory:
            _remove_empty(entry, directory)
        else:
            os.unlink(name, dir_fd=directory)
        sync_directory(".", at=directory)
    return Removal(1)


def _remove_empty(entry: Entry, directory: int) -> None:
    try:
        os.rmdir(entry.real.name, dir_fd=directory)
    except OSError as exc:
        if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shown = path_text(str(entry.real))
        raise ToolError(
            "directory not empty", f"{shown} has entries; set recursive to remove it with all that it holds"
        ) from exc


def remove_tree(entry: Entry, max_entries: int, protected: Protected) -> Removal:
    """Remove a directory with all that it holds; links in it are removed and not followed.

    Blocks, in a thread of Trio: cancelled, it stops between two entries. What appears after the look through is not
    removed and makes it end early, as does anything that fails.
    Raises: ToolError, and then nothing was removed: the tree is too large, holds a mount point or the workspace, or
    may not be changed.
    """
    with told_to_the_model(entry.real), held_directory(entry.real.parent) as directory:
        steps = _Survey(entry, max_entries, protected).of(directory)
        _require_no_mount(entry.real)
        removal = _carry_out(steps, directory, entry.real)
        sync_directory(".", at=directory)
    return removal


class _Survey:
    """Plans the removal of a tree, and refuses it where it could not be completed."""

    def __init__(self, entry: Entry, max_entries: int, protected: Protected) -> None:
        self._real, self._identity = entry.real, identity_of(entry.status)
        self._max_entries, self._left = max_entries, max_entries - 1
        self._protected = protected
        self._steps: list[Step] = []

    def of(self, directory: int) -> list[Step]:
        """All steps in order. Raises: ToolError."""
        walker = Walker(directory)
        try:
            waiting = [self._enter(walker, self._real.name)]
            while waiting:
                if not waiting[-1]:
                    waiting.pop()
                    self._steps.append(Step("leave", walker.leave()))
                    continue
                name, is_directory = waiting[-1].pop()
                if is_directory:
                    waiting.append(self._enter(walker, name))
                else:
                    self._steps.append(Step("unlink", name))
        finally:
            walker.close()
        return self._steps

    def _enter(self, walker: Walker, name: str) -> list[tuple[str, bool]]:
        """Go into a directory. Returns its entries, the last one first."""
        trio.from_thread.check_cancelled()
        outer = walker.depth
        try:
            identity = walker.enter(name, None if outer else self._identity)
            entries = walker.entries(self._left)
            if entries and not os.access(".", os.W_OK | os.X_OK, dir_fd=walker.here):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as exc:
            below = [] if walker.depth > outer else [name]
            raise failure(exc, self._real.parent.joinpath(*walker.names, *below)) from exc
        except TooManyEntries as exc:
            raise ToolError(
                "limit exceeded",
                f"{path_text(str(self._real))} holds more than {self._max_entries} entries "
                "(PEEN_TOOL_MAX_REMOVE_ENTRIES). Nothing was removed: remove it part by part, "
                "or with runCommand (rm -r)",
            ) from exc
        if identity in self._protected:
            raise self._protected.refusal(self._real.parent.joinpath(*walker.names))
        if identity[0] != self._identity[0]:
            raise _mounted(self._real.parent.joinpath(*walker.names))
        self._left -= len(entries)
        self._steps.append(Step("enter", name, identity))
        return entries[::-1]


def _require_no_mount(real: Path) -> None:
    """Refuse a tree in which something is mounted, also from the same file system, and also on a single file.

    What is mounted after this look is another directory than the one that was planned, and a file that is busy.
    """
    inside = os.fsencode(real) + b"/"
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            point = _OCTAL.sub(lambda code: bytes([int(code[1], 8)]), line.split(b" ")[4])
            if (point + b"/").startswith(inside):
                raise _mounted(Path(os.fsdecode(point)))


def _mounted(place: Path) -> ToolError:
    return ToolError(
        "permission denied",
        f"{path_text(str(place))} is a mount point, and removal never leaves a file system. Nothing was removed",
    )


def _carry_out(steps: Sequence[Step], directory: int, real: Path) -> Removal:
    removed = 0
    walker = Walker(directory)
    try:
        for done, step in enumerate(steps):
            trio.from_thread.check_cancelled()
            depth = walker.depth
            try:
                removed += _perform(step, walker)
            except OSError as exc:
                inside = walker.names
                if walker.depth < depth:  # it was left, but could not be removed
                    inside.append(step.name)
                place = real.parent.joinpath(*inside, *([] if step.kind == "leave" else [step.name]))
                return Removal(removed, _told(failure(exc, place), removed, steps, done, inside))
    finally:
        walker.close()
    return Removal(removed)


def _perform(step: Step, walker: Walker) -> int:
    """Returns how many entries were removed. Raises: OSError."""
    if step.kind == "enter":
        walker.enter(step.name, step.identity)
        return 0
    if step.kind == "leave":
        walker.leave()
        os.rmdir(step.name, dir_fd=walker.here)
        return 1
    try:
        os.unlink(step.name, dir_fd=walker.here)
    except FileNotFoundError:  # somebody was faster
        return 0
    return 1


def _told(cause: ToolError, removed: int, steps: Sequence[Step], done: int, inside: list[str]) -> ToolError:
    """The problem in full: how far it came and what is left."""
    total = sum(step.kind != "enter" for step in steps)
    names = list(islice(_left(steps[done:], inside), _NAMED_ENTRIES + 1))
    more = ", and others" if len(names) > _NAMED_ENTRIES else ""
    left = ", ".join(path_text(name) for name in names[:_NAMED_ENTRIES])
    return ToolError(cause.kind, f"{cause.text}. {removed} of {total} entries were removed; left are: {left}{more}")


def _left(rest: Sequence[Step], inside: Sequence[str]) -> Iterator[str]:
    """What `rest` would have removed, relative to the tree; a directory not begun stands for all that it holds.

    `inside` are the directories that are begun, the tree itself (which is `.`) first.
    """
    begun = list(inside)
    untouched = 0
    for step in rest:
        if step.kind == "enter":
            if not untouched:
                yield "/".join([*begun[1:], step.name]) + "/"
            untouched += 1
        elif untouched:
            untouched -= step.kind == "leave"
        elif step.kind == "unlink":
            yield "/".join([*begun[1:], step.name])
        else:
            yield "/".join(begun[1:]) + "/" if begun[1:] else "."
            begun.pop()
