"""removePath: a file, a link, or a directory with all that it holds."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Annotated

import trio
from msgspec import Meta

from peen.tool.base import Tool, ToolArguments, ToolContext, ToolResult
from peen.tool.bounds import path_text
from peen.tool.entry import look_at, require_observed
from peen.tool.paths import entry_path, ledger_key, resolve_path
from peen.tool.protected import Protected
from peen.tool.removal import remove_entry, remove_tree
from peen.tool.write_file import Sha256


class RemovePathArguments(ToolArguments, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1, description="What to remove: absolute, relative, or ~/...")]
    recursive: Annotated[
        bool | None, Meta(description="Remove a directory that is not empty, with all that it holds. Default false.")
    ] = None
    expected_sha256: Annotated[
        Sha256 | None, Meta(description="Optional, for a file: sha256 of its content; must match if given.")
    ] = None


class RemovePathResult(ToolResult, frozen=True, kw_only=True):
    """`removed` counts entries: the directory itself and everything in it."""

    path: str
    removed: int


class RemovePath(Tool[RemovePathArguments]):
    name = "removePath"
    description = (
        "Remove a file, a directory, or a symbolic link (the link itself, never what it leads to). A file must have "
        "been read with readFile and be unchanged since; a directory or link must have been listed with listFiles. "
        "It cannot be undone. If it fails half way, the error names what is left."
    )
    arguments = RemovePathArguments
    repeatable = False

    async def run(self, arguments: RemovePathArguments, context: ToolContext) -> RemovePathResult:
        path = resolve_path(arguments.path, context)
        real = entry_path(path)
        protected = Protected(context.workspace)
        protected.require_free(real)
        async with context.locks.holding(real):
            limit = context.settings.max_write_bytes
            entry = await trio.to_thread.run_sync(look_at, real, limit, abandon_on_cancel=True)
            require_observed(entry, arguments.expected_sha256, context)
            if entry.is_directory and arguments.recursive:
                most = context.settings.max_remove_entries
                removal = await trio.to_thread.run_sync(remove_tree, entry, most, protected)
            else:
                removal = await trio.to_thread.run_sync(remove_entry, entry)
            known = context.ledger.at_or_below(ledger_key(real))
            if removal.problem is not None:
                context.ledger.removed(_missing(known))
                raise removal.problem
            context.ledger.removed(known)
        return RemovePathResult(path=path_text(str(path)), removed=removal.removed)


def _missing(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if not os.path.lexists(path)]
