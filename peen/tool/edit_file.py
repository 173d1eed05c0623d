"""editFile: replace pieces of a file that was read; everything else in it stays as it is, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from peen.tool.base import Tool, ToolArguments, ToolContext, ToolError, ToolResult
from peen.tool.bounds import fit_bytes, fit_head, path_text
from peen.tool.changes import require_known
from peen.tool.content import foreign
from peen.tool.diff import unified_diff
from peen.tool.filesystem import FileContent, read_whole, sha256_hex
from peen.tool.outline import Outline
from peen.tool.paths import ledger_key, real_path, resolve_path
from peen.tool.splice import Replacement, apply_splices, plan_splices
from peen.tool.write_file import Sha256
from peen.tool.writing import replace_file


class EditArguments(ToolArguments, frozen=True, kw_only=True):
    old: Annotated[
        str, Meta(min_length=1, description="Text to replace; must occur exactly once in the file as it is before.")
    ]
    new: Annotated[str, Meta(description="Text to put in its place; may be empty.")]


class EditFileArguments(ToolArguments, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1, description="File to change: absolute, relative, or ~/...")]
    edits: Annotated[
        list[EditArguments],
        Meta(min_length=1, description="1 to 64 replacements, all made or none; they must not overlap."),
    ]
    expected_sha256: Annotated[
        Sha256 | None, Meta(description="Optional: sha256 of the present content; must match if given.")
    ] = None


class EditFileResult(ToolResult, frozen=True, kw_only=True):
    path: str
    diff: str
    diff_truncated: bool
    applied: int
    sha256: str


class EditFile(Tool[EditFileArguments]):
    name = "editFile"
    description = (
        "Replace exact pieces of text in a file that was read with readFile and is unchanged since. Copy `old` exactly "
        "from the file, with enough around it to occur once. All edits refer to the file as it was before the call. "
        "\\n matches whatever line end the file has, and line ends, encoding and mode are kept."
    )
    arguments = EditFileArguments
    repeatable = False

    async def run(self, arguments: EditFileArguments, context: ToolContext) -> EditFileResult:
        if len(arguments.edits) > context.settings.max_edits:
            raise ToolError(
                "limit exceeded",
                f"{len(arguments.edits)} edits in one call; the limit is {context.settings.max_edits}, split them up",
            )
        path = resolve_path(arguments.path, context)
        shown = path_text(str(path))
        real = real_path(path)
        async with context.locks.holding(real):
            before = await read_whole(real, max_bytes=context.settings.max_write_bytes)
            require_text(before, shown)  # first: what cannot be edited need not be read
            require_known(real, before.sha256, arguments.expected_sha256, context, before.data)
            splices = plan_splices(
                before.data, [Replacement(edit.old, edit.new) for edit in arguments.edits], path=shown
            )
            after = apply_splices(before.data, splices)
            require_small(len(after), real, context)
            await replace_file(real, after, before, context.entropy)
            sha256 = sha256_hex(after)
            context.ledger.saw_content(ledger_key(real), sha256, Outline.of(after))
        diff = unified_diff(shown, before.data, splices)
        result = EditFileResult(path=shown, diff="", diff_truncated=False, applied=len(splices), sha256=sha256)
        kept = cut_diff(diff, result, context)
        return msgspec.structs.replace(result, diff=kept, diff_truncated=len(kept) < len(diff))


def require_text(before: FileContent, shown: str) -> None:
    """Raises: ToolError for a file whose bytes are no text in an encoding that holds ASCII."""
    found = foreign(before.data)
    if found is not None:
        raise ToolError("binary", f"{shown} {found.what} and cannot be edited; use runCommand ({found.changed_by})")


def require_small(size: int, real: Path, context: ToolContext) -> None:
    """Raises: ToolError if a file would get more bytes than may be written."""
    limit = context.settings.max_write_bytes
    if size > limit:
        raise ToolError("limit exceeded", f"{path_text(str(real))} would have {size} bytes; the limit is {limit}")


def cut_diff(diff: str, result: ToolResult, context: ToolContext) -> str:
    """As much of a diff as may be returned and fits into the result, which does not hold it yet."""
    diff = fit_bytes(diff, context.settings.max_diff_bytes)
    return fit_head(diff, context.max_result_bytes - len(msgspec.json.encode(result)))
