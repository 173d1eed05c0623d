"""A directory entry that is to be removed or moved: looked at without following it, and known to the agent."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peen.tool.base import ToolContext, ToolError
from peen.tool.bounds import path_text
from peen.tool.changes import require_known, require_showable
from peen.tool.content import Foreign, foreign
from peen.tool.directories import held_directory
from peen.tool.filesystem import sha256_hex, too_large
from peen.tool.paths import identity_of, ledger_key, real_path, require_regular, told_to_the_model

_READ_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
_BY_COMMAND: Final = " (rm, mv) if it is really to go"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, directory or link as it was at one moment. `sha256` is that of a file, `foreign` why it is no text."""

    real: Path
    status: os.stat_result
    sha256: str | None = None
    foreign: Foreign | None = None

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)

    def require_unchanged(self, directory: int) -> None:
        """Raises: ToolError unless `directory` still holds under this name what was looked at; OSError."""
        now = os.stat(self.real.name, dir_fd=directory, follow_symlinks=False)
        same = identity_of(now) == identity_of(self.status)
        # The change time cannot be set by anybody, and grows with every change of content.
        if not same or (not self.is_directory and now.st_ctime_ns != self.status.st_ctime_ns):
            raise ToolError(
                "stale hash", f"{path_text(str(self.real))} was changed or exchanged at this moment; look at it again"
            )


def look_at(real: Path, max_bytes: int) -> Entry:
    """The entry at a real path. Blocks. Raises: ToolError; pipes, devices and files over `max_bytes` are refused."""
    with told_to_the_model(real), held_directory(real.parent) as directory:
        status = os.stat(real.name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode):
            return Entry(real, status)
        require_regular(status, real)
        with open(os.open(real.name, _READ_FLAGS, dir_fd=directory), "rb") as file:
            status = os.fstat(file.fileno())  # it may have been exchanged since it was looked at
            require_regular(status, real)
            data = file.read(max_bytes + 1) if status.st_size <= max_bytes else b""
    if max(status.st_size, len(data)) > max_bytes:
        raise ToolError(
            "limit exceeded", f"{too_large(real, status.st_size, max_bytes).text}; use runCommand{_BY_COMMAND}"
        )
    return Entry(real, status, sha256_hex(data), foreign(data))


def require_observed(entry: Entry, expected: str | None, context: ToolContext) -> None:
    """Refuse what the agent has not seen: content for a file, existence for a directory or a link.

    Raises: ToolError, `not observed`, `stale hash`, or `validation failed` for a hash of what has no content.
    """
    shown, key = path_text(str(entry.real)), ledger_key(entry.real)
    if entry.sha256 is not None:
        if entry.foreign is not None and context.ledger.sha256_of(key) is None:
            require_showable(entry.foreign, entry.status.st_size, shown, context, instead=_BY_COMMAND)
        require_known(entry.real, entry.sha256, expected, context)
        return
    what = "a symbolic link" if entry.is_link else "a directory"
    if expected is not None:
        raise ToolError("validation failed", f"expectedSha256: {shown} is {what} and has no hash; leave it out")
    # Whoever read through a link has seen that it is there.
    if not context.ledger.knows(key) and not (entry.is_link and _target_is_known(entry, context)):
        raise ToolError(
            "not observed", f"{shown} is {what} that you have not seen; list it with listFiles first, then retry"
        )


def _target_is_known(entry: Entry, context: ToolContext) -> bool:
    try:
        target = real_path(entry.real)
    except ToolError:  # a loop
        return False
    return context.ledger.knows(ledger_key(target))
