"""May this agent change this file? The one question that all tools ask before they write."""

from __future__ import annotations

from pathlib import Path

from peen.tool.base import ToolContext, ToolError
from peen.tool.bounds import path_text
from peen.tool.paths import ledger_key


def require_known(real: Path, sha256: str, expected: str | None, context: ToolContext) -> None:
    """Refuse a change of content that the agent has not seen. The time stamp of the file plays no part.

    `sha256` is that of the present content, `expected` what the model believes it to be, if it said so.
    Raises: ToolError, `not observed` or `stale hash`.
    """
    shown = path_text(str(real))
    known = context.ledger.sha256_of(ledger_key(real))
    if known is None:
        raise ToolError("not observed", f"{shown} exists, and you have not read it; read it with readFile, then retry")
    if known != sha256:
        raise ToolError(
            "stale hash",
            f"{shown} was changed by something else since you last read or wrote it; nothing was written. "
            "Read it again with readFile, then retry with its present content",
        )
    if expected is not None and expected != sha256:
        raise ToolError("stale hash", f"expectedSha256 is wrong: {shown} has {sha256}; correct it or leave it out")
