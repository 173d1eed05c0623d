"""What to do about a session that was not opened, in the words of the one who can do it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from peen.cli.client import CallRefused
from peen.cli.ends import REFUSED, CommandEnds
from peen.settings import Settings, contains, lexical_path

NOT_ALLOWED: Final = "WORKSPACE_NOT_ALLOWED"


def open_refused(refused: CallRefused, workspace: str, settings: Settings, *, borrowed: bool) -> CommandEnds:
    """The end of a command whose `sessions/open` was refused (exit 2).

    The server does not name its directories; here speaks the user's own program, which may.
    """
    if refused.error_code != NOT_ALLOWED:
        return CommandEnds(f"{workspace}: {refused}", REFUSED)
    if missing(workspace):  # which the server does not tell of what lies outside its root
        return CommandEnds(f"the directory {workspace} does not exist (403 {NOT_ALLOWED})", REFUSED)
    root = settings.workspace_root
    kept = [path for path in (settings.state_dir, settings.config_dir) if contains(Path(workspace), lexical_path(path))]
    if kept:
        where = f"not allowed: it holds {' and '.join(map(str, kept))}, where Peen keeps its own"
        remedy = "work in a directory below it (-w)"
    elif borrowed:
        where = "outside the PEEN_WORKSPACE_ROOT of the running controller, or touches a directory that it keeps"
        remedy = "stop it (peen stop) and start it with a PEEN_WORKSPACE_ROOT that holds this directory"
    elif not contains(lexical_path(root), lexical_path(workspace)):
        where = f"outside PEEN_WORKSPACE_ROOT ({root})"
        remedy = "set PEEN_WORKSPACE_ROOT to a directory that holds it, or work in another one (-w)"
    else:
        own = f"{settings.config_dir}, {settings.state_dir}"
        where = f"not inside PEEN_WORKSPACE_ROOT ({root}) by its real name, or touches what Peen keeps ({own})"
        remedy = "work in another directory (-w)"
    return CommandEnds(f"workspace {workspace} is {where}; {remedy} (403 {NOT_ALLOWED})", REFUSED)


def missing(path: str) -> bool:
    """Whether there is nothing of that name. What may not be looked at is not missing."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False
