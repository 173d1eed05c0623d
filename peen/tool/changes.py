"""May this agent change this file? The one question that all tools ask before they write."""

from __future__ import annotations

from pathlib import Path

from peen.tool.base import ToolContext, ToolError
from peen.tool.bounds import path_text
from peen.tool.content import Foreign, foreign
from peen.tool.paths import ledger_key


def require_known(
    real: Path, sha256: str, expected: str | None, context: ToolContext, data: bytes | None = None
) -> None:
    """Refuse a change of content that the agent has not seen. The time stamp of the file plays no part.

    `sha256` is that of the present content, `data` that itself where it is at hand, `expected` what the model believes
    the hash to be, if it said so. Raises: ToolError, `not observed` or `stale hash`.
    """
    shown, key = path_text(str(real)), ledger_key(real)
    known = context.ledger.sha256_of(key)
    if known is None:
        found = foreign(data) if data is not None else None
        if found is not None:
            require_showable(found, len(data or b""), shown, context, instead=" (mv, rm), then write it anew")
        raise ToolError("not observed", f"{shown} exists, and you have not read it; read it with readFile, then retry")
    if known != sha256:
        outline = context.ledger.outline_of(key) if data is not None else None
        what = outline.compared_with(data) if outline is not None and data is not None else ""
        raise ToolError(
            "stale hash",
            f"{shown} was changed by something else since you last read or wrote it{': ' if what else ''}{what}. "
            "Nothing was written. Read it again with readFile, then retry with its present content",
        )
    if expected is not None and expected != sha256:
        raise ToolError("stale hash", f"expectedSha256 is wrong: {shown} has {sha256}; correct it or leave it out")


def require_showable(found: Foreign, size: int, shown: str, context: ToolContext, *, instead: str) -> None:
    """Raises: ToolError for a file that is no text, unless it is an image that readFile would show.

    `instead` continues "use runCommand".
    """
    if not (found.is_image and context.image_input and size <= context.settings.max_image_bytes):
        raise ToolError("not observed", f"{shown} {found.what}, and readFile cannot show it; use runCommand{instead}")
