"""writeFile: create a file, or replace the whole content of one that was read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from peen.tool.base import Tool, ToolArguments, ToolContext, ToolError, ToolResult
from peen.tool.bounds import path_text
from peen.tool.changes import require_known
from peen.tool.filesystem import read_whole, sha256_hex
from peen.tool.outline import Outline
from peen.tool.paths import ledger_key, real_path, resolve_path
from peen.tool.writing import create_file, replace_file

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class WriteFileArguments(ToolArguments, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1, description="File to write: absolute, relative, or ~/...")]
    content: Annotated[str, Meta(description="The whole new content, written exactly as given.")]
    expected_sha256: Annotated[
        Sha256 | None, Meta(description="Optional: sha256 of the content to be replaced; must match if given.")
    ] = None


class WriteFileResult(ToolResult, frozen=True, kw_only=True):
    path: str
    created: bool
    bytes: int
    sha256: str


class WriteFile(Tool[WriteFileArguments]):
    name = "writeFile"
    description = (
        "Create a text file (missing parent directories are made), or replace the whole content of an existing one. "
        "An existing file must have been read with readFile and be unchanged since; use editFile to change parts of it."
    )
    arguments = WriteFileArguments
    repeatable = False

    async def run(self, arguments: WriteFileArguments, context: ToolContext) -> WriteFileResult:
        data = arguments.content.encode()
        limit = context.settings.max_write_bytes
        if len(data) > limit:
            raise ToolError("limit exceeded", f"content has {len(data)} bytes; writeFile takes at most {limit}")
        path = resolve_path(arguments.path, context)
        real = real_path(path)
        async with context.locks.holding(real) as absent:
            # Not looked at again: what appeared since then may be a file that this call has not locked.
            created = real in absent
            if created:
                await _create(real, data, arguments, context)
            else:
                await _replace(real, data, arguments, context)
            sha256 = sha256_hex(data)
            context.ledger.saw_content(ledger_key(real), sha256, Outline.of(data))
        return WriteFileResult(path=path_text(str(path)), created=created, bytes=len(data), sha256=sha256)


async def _create(real: Path, data: bytes, arguments: WriteFileArguments, context: ToolContext) -> None:
    if arguments.expected_sha256 is not None:
        raise ToolError("not found", f"{path_text(str(real))} does not exist; leave out expectedSha256 to create it")
    await create_file(real, data, context.entropy)


async def _replace(real: Path, data: bytes, arguments: WriteFileArguments, context: ToolContext) -> None:
    # Content beyond the limit cannot have been seen, so there is nothing to compare.
    before = await read_whole(real, max_bytes=context.settings.max_write_bytes)
    require_known(real, before.sha256, arguments.expected_sha256, context, before.data)
    await replace_file(real, data, before, context.entropy)
