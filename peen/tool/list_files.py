"""listFiles: the entries of a directory, or of a whole tree."""

from __future__ import annotations

import heapq
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import trio
from msgspec import Meta

from peen.tool.base import Tool, ToolArguments, ToolContext, ToolError, ToolResult
from peen.tool.bounds import path_text
from peen.tool.paths import failure, ledger_key, real_path, resolve_path, status_of

NOT_ENTERED: Final = ".git"
"""A directory that is listed but not walked: its objects would crowd out everything else."""

EntryType = Literal["file", "directory", "symlink", "other"]


class ListFilesArguments(ToolArguments, frozen=True, kw_only=True):
    path: Annotated[str | None, Meta(description="Directory to list. Default: the current directory.")] = None
    recursive: Annotated[bool | None, Meta(description="Also list what lies below. Default false.")] = None
    max_depth: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="With recursive: how deep to go, 1 is the directory itself. Default and at most 16."),
    ] = None


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`path` is relative to the directory; `mode` holds the permission bits in octal."""

    path: str
    type: EntryType
    size: int
    mode: str


class ListFilesResult(ToolResult, frozen=True, kw_only=True):
    directory: str
    entries: list[FileEntry]
    truncated: bool


class ListFiles(Tool[ListFilesArguments]):
    name = "listFiles"
    description = (
        "List a directory, sorted by path, hidden files included; with recursive also everything below it (the inside "
        "of .git is left out, symbolic links are not followed). At most 1000 entries; truncated says that more exist."
    )
    arguments = ListFilesArguments
    repeatable = True

    async def run(self, arguments: ListFilesArguments, context: ToolContext) -> ListFilesResult:
        directory = resolve_path(arguments.path, context)
        shown = path_text(str(directory))
        if not stat.S_ISDIR(status_of(directory).st_mode):
            raise ToolError("not a directory", f"{shown} is a file; use readFile")
        settings = context.settings
        depth = min(arguments.max_depth or settings.max_list_depth, settings.max_list_depth)
        walk = (directory, depth if arguments.recursive else 1, settings.max_list_entries, context.max_result_bytes)
        # A slow or dead file system must not hold up other agents; abandoned, it changes nothing.
        entries, truncated = await trio.to_thread.run_sync(_collect, *walk, abandon_on_cancel=True)
        real = real_path(directory)
        context.ledger.saw_paths([ledger_key(real), *(ledger_key(real / entry.path) for entry in entries)])
        return ListFilesResult(directory=shown, entries=entries, truncated=truncated)


def _collect(directory: Path, depth: int, max_entries: int, max_bytes: int) -> tuple[list[FileEntry], bool]:
    """The first entries in order of path, and whether there are more than fit."""
    entries: list[FileEntry] = []
    left = max_bytes - len(path_text(str(directory)).encode()) - 100
    for entry in walk_entries(directory, depth, max_entries + 1):
        left -= len(msgspec.json.encode(entry)) + 1
        if left < 0 or len(entries) == max_entries:
            return entries, True
        entries.append(entry)
    return entries, False


def walk_entries(directory: Path, depth: int, at_most: int) -> Iterator[FileEntry]:
    """Entries in order of path, at least the first `at_most` of them. Unreadable subdirectories are listed but skipped.

    Raises: ToolError if `directory` itself cannot be read.
    """
    try:
        waiting = _children(str(directory), "", at_most)
    except OSError as exc:
        raise failure(exc, directory) from exc
    # What waits is never smaller than what was given out, since a child sorts behind its parent.
    heapq.heapify(waiting)
    while waiting:
        relative, full = heapq.heappop(waiting)
        try:
            status = os.lstat(full)
        except OSError:  # gone since its directory was read
            continue
        yield FileEntry(
            path=path_text(relative),
            type=_type_of(status.st_mode),
            size=status.st_size,
            mode=f"{stat.S_IMODE(status.st_mode):04o}",
        )
        if stat.S_ISDIR(status.st_mode) and relative.count("/") + 1 < depth and os.path.basename(full) != NOT_ENTERED:
            try:
                children = _children(full, relative + "/", at_most)
            except OSError:
                continue
            for child in children:
                heapq.heappush(waiting, child)


def _children(full: str, prefix: str, at_most: int) -> list[tuple[str, str]]:
    """Relative and full path of the first entries of one directory, however many it has."""
    with os.scandir(full) as entries:
        return heapq.nsmallest(at_most, ((prefix + entry.name, entry.path) for entry in entries))


def _type_of(mode: int) -> EntryType:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"
