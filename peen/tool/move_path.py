"""movePath: another name for a file, a directory or a link, where nothing has that name yet."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import Annotated, Final

import trio
from msgspec import Meta

from peen.tool.base import Tool, ToolArguments, ToolContext, ToolError, ToolResult
from peen.tool.bounds import path_text
from peen.tool.directories import held_directory, sync_parents, unmake
from peen.tool.entry import Entry, look_at, require_observed
from peen.tool.paths import entry_path, failure, ledger_key, resolve_path, told_to_the_model
from peen.tool.protected import Protected
from peen.tool.rename import rename_without_replacing, sync_directory

_OF_THE_SOURCE: Final = (errno.ENOENT, errno.EBUSY)
_OF_BOTH: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


class MovePathArguments(ToolArguments, frozen=True, kw_only=True):
    source: Annotated[str, Meta(min_length=1, description="What to move: absolute, relative, or ~/...")]
    destination: Annotated[
        str, Meta(min_length=1, description="Its whole new path, last part included; nothing may exist there.")
    ]


class MovePathResult(ToolResult, frozen=True, kw_only=True):
    source: str
    destination: str


class MovePath(Tool[MovePathArguments]):
    name = "movePath"
    description = (
        "Move or rename a file, a directory, or a symbolic link (the link itself). Nothing is ever replaced; missing "
        "parent directories are made. A file must have been read with readFile and be unchanged since; a directory or "
        "link must have been listed with listFiles. What was read stays known under the new path."
    )
    arguments = MovePathArguments
    repeatable = False

    async def run(self, arguments: MovePathArguments, context: ToolContext) -> MovePathResult:
        source = resolve_path(arguments.source, context)
        destination = resolve_path(arguments.destination, context)
        old, new = entry_path(source), entry_path(destination)
        Protected(context.workspace).require_free(old)
        async with context.locks.holding(old, new):
            limit = context.settings.max_write_bytes
            entry = await trio.to_thread.run_sync(look_at, old, limit, abandon_on_cancel=True)
            require_observed(entry, None, context)
            made = await trio.to_thread.run_sync(_move, entry, new)
            context.ledger.moved(ledger_key(old), ledger_key(new))
            context.ledger.saw_paths(map(ledger_key, [*made, new]))
        return MovePathResult(source=path_text(str(source)), destination=path_text(str(destination)))


def _move(entry: Entry, new: Path) -> list[Path]:
    """Blocks. Returns the directories that were made. Raises: ToolError, and then nothing was changed."""
    _require_absent(new)
    if new.is_relative_to(entry.real):
        raise ToolError("validation failed", f"destination: {path_text(str(new))} lies in what is to be moved")
    made: list[Path] = []
    try:
        with contextlib.ExitStack() as held:
            with told_to_the_model(entry.real):
                source_in = held.enter_context(held_directory(entry.real.parent))
                entry.require_unchanged(source_in)
            with told_to_the_model(new):
                target_in = held.enter_context(held_directory(new.parent, made))
            try:
                rename_without_replacing(entry.real.name, new.name, source_in=source_in, target_in=target_in)
            except OSError as exc:
                raise _refusal(exc, entry.real, new) from exc
            with told_to_the_model(new):
                sync_directory(".", at=target_in)
                sync_directory(".", at=source_in)
                sync_parents(made)
    except ToolError:
        unmake(made)  # what holds the moved entry is not empty and stays
        raise
    return made


def _require_absent(new: Path) -> None:
    with told_to_the_model(new):
        try:
            new.lstat()
        except FileNotFoundError:
            return
    raise _exists(new)


def _exists(new: Path) -> ToolError:
    return ToolError(
        "already exists", f"{path_text(str(new))} already exists; give a destination that does not, or remove it first"
    )


def _refusal(problem: OSError, old: Path, new: Path) -> ToolError:
    shown = f"{path_text(str(old))} cannot be moved to {path_text(str(new))}"
    if problem.errno in (errno.EEXIST, errno.ENOTEMPTY):
        return _exists(new)
    if problem.errno == errno.EXDEV:
        return ToolError("failed", f"{shown}: that is another file system; use runCommand (mv -n)")
    if problem.errno in _OF_BOTH:
        return ToolError("permission denied", f"{shown}: {problem.strerror}")
    return failure(problem, old if problem.errno in _OF_THE_SOURCE else new)
