"""What no tool removes or moves: the workspace, the root of the file system, and everything on the way between."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from peen.tool.base import ToolError
from peen.tool.bounds import path_text
from peen.tool.paths import Identity, identity_of

_MAX_LINKS: Final = 40  # as many as the kernel follows


class Protected:
    """The entries without which the workspace could not be reached: by name, and by identity for other names of them.

    Links that lead to the workspace from elsewhere are not among them: without them it is where it was.
    """

    def __init__(self, workspace: Path) -> None:
        self._paths = set(_looked_up(workspace))
        self._identities: set[Identity] = set()
        for path in self._paths:
            with contextlib.suppress(OSError):
                self._identities.add(identity_of(path.lstat()))

    def require_free(self, real: Path) -> None:
        """Raises: ToolError if the entry is protected. It need not exist."""
        identity: Identity | None = None
        with contextlib.suppress(OSError):
            identity = identity_of(real.lstat())
        if real in self._paths or identity in self._identities:
            raise self.refusal(real)

    def __contains__(self, identity: Identity) -> bool:
        return identity in self._identities

    @staticmethod
    def refusal(real: Path) -> ToolError:
        return ToolError(
            "permission denied", f"{path_text(str(real))} is or holds the workspace and is never removed or moved"
        )


def _looked_up(path: Path) -> Iterator[Path]:
    """The real name of every entry that is looked up on the way to an absolute path, links and their targets too."""
    at = Path("/")
    yield at
    waiting = list(reversed(path.parts[1:]))
    links = 0
    while waiting:
        part = waiting.pop()
        if part == "..":
            at = at.parent
            continue
        entry = at / part
        yield entry
        try:
            target = Path(os.readlink(entry))
        except OSError:  # not a link, as a rule
            at = entry
            continue
        links += 1
        if links > _MAX_LINKS:
            return
        if target.is_absolute():
            at = Path("/")
        waiting += reversed(target.parts[1:] if target.is_absolute() else target.parts)
