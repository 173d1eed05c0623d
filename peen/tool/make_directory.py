"""makeDirectory: a directory, with all that is missing above it."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Annotated

import trio
from msgspec import Meta

from peen.tool.base import Tool, ToolArguments, ToolContext, ToolError, ToolResult
from peen.tool.bounds import path_text
from peen.tool.directories import make_directories
from peen.tool.paths import ledger_key, real_path, resolve_path, told_to_the_model


class MakeDirectoryArguments(ToolArguments, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1, description="Directory to make: absolute, relative, or ~/...")]


class MakeDirectoryResult(ToolResult, frozen=True, kw_only=True):
    """`created` are the new directories by their real paths, the outermost first; none if all were there."""

    path: str
    created: list[str]


class MakeDirectory(Tool[MakeDirectoryArguments]):
    name = "makeDirectory"
    description = (
        "Make a directory and the missing ones above it, all or none. One that exists is left as it is. "
        "Not needed before writeFile and movePath, which make the parents of what they create."
    )
    arguments = MakeDirectoryArguments
    repeatable = False

    async def run(self, arguments: MakeDirectoryArguments, context: ToolContext) -> MakeDirectoryResult:
        path = resolve_path(arguments.path, context)
        real = real_path(path)
        async with context.locks.holding(real):
            made = await trio.to_thread.run_sync(_make, real)
            context.ledger.saw_paths([ledger_key(directory) for directory in {*made, real}])
        return MakeDirectoryResult(path=path_text(str(path)), created=[path_text(str(each)) for each in made])


def _make(real: Path) -> list[Path]:
    with told_to_the_model(real):
        try:
            if not stat.S_ISDIR(real.lstat().st_mode):
                raise ToolError("already exists", f"{path_text(str(real))} exists and is not a directory")
        except FileNotFoundError:
            pass
        return make_directories(real)
